"""Draw the pictures of the documentation again: .venv/bin/python docs/pictures.py (needs Graphviz).

`split.svg` is the graph of the example in docs/scheduling.md, coloured by device.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

from lamella.sched import draw

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    text = (ROOT / "docs" / "scheduling.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(blocks[0], names)
    picture = subprocess.run(
        ["dot", "-Tsvg"],
        input=draw(names["scheduled"]),
        text=True,
        capture_output=True,
        check=True,
    )
    (ROOT / "docs" / "split.svg").write_text(picture.stdout, "utf-8")


if __name__ == "__main__":
    main()
