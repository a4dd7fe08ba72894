"""The servers that `scripts/compat` compares: Lamella and llama-server with the same flags."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import httpx
from compat_client import KEY, Target
from make_adapter import arch_of, named, random_matrices, write_adapter

from lamella.model.shipped import shipped_model

LAMELLA: Final = (sys.executable, "-m", "lamella.cli", "serve")
START_SECONDS: Final = 300.0  # the first start compiles kernels
# the shipped model has no tokens for infill: ordinary ones play them
FILL: Final = {"pre": 300, "suf": 301, "mid": 302}


# a template with tools, in a usual form: the shipped model's has none
TEMPLATE: Final = """\
{%- if tools %}<|im_start|>system
You may call one or more functions. They are <tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>. Write a call as <tool_call>
{"name": NAME, "arguments": OBJECT}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content or "" }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@contextmanager
def started(command: Sequence[str], kinds: Collection[str]) -> Iterator[Target]:
    """Start servers of these kinds with the program `command`, and end them."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = {
            kind: stack.enter_context(_server(command, flags, folder))
            for kind, flags in _all_flags(folder).items()
            if kind in kinds
        }
        for url in urls.values():
            _wait(url, folder)
        yield Target(**urls)


def _all_flags(folder: Path) -> dict[str, list[str]]:
    """Write what the servers need into a folder. Return the flags of each kind."""
    model, adapter, template = shipped_model(), folder / "adapter.gguf", folder / "tools.jinja"
    template.write_text(TEMPLATE)
    write_adapter(adapter, arch_of(model), named(random_matrices(model, 4)), alpha=4.0)
    overrides = [
        word
        for name, id in FILL.items()
        for word in ("--override-kv", f"tokenizer.ggml.fim_{name}_token_id=int:{id}")
    ]
    text = [
        *("-m", str(model), "--alias", "stories", "-c", "2048", "-np", "2", "--lora", str(adapter)),
        *("--metrics", "--props", "--slot-save-path", str(folder), *overrides),
        *("--jinja", "--chat-template-file", str(template)),
    ]
    vectors = ["-m", str(model), "--alias", "stories", "-c", "512", "--embeddings"]
    models = folder / "models"
    models.mkdir()
    for name in ("first", "second"):
        shutil.copy(model, models / f"{name}.gguf")
    return {
        "text": text,
        "vectors": [*vectors, "--pooling", "mean", "--api-key", KEY],
        "router": ["--models-dir", str(models), "-c", "512", "-np", "1"],
    }


@contextmanager
def _server(command: Sequence[str], flags: Sequence[str], folder: Path) -> Iterator[str]:
    """Start a server; it ends with the context. Its URL."""
    port = _free_port()
    where = ["--host", "127.0.0.1", "--port", str(port)]
    with (folder / f"{port}.log").open("wb") as log:
        process = subprocess.Popen([*command, *flags, *where], stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _wait(url: str, folder: Path) -> None:
    """Wait until a server is ready. Raises SystemExit with its log if that takes too long."""
    until = time.monotonic() + START_SECONDS
    with httpx.Client(timeout=5) as client:
        while time.monotonic() < until:
            with suppress(httpx.HTTPError):
                if client.get(f"{url}/health").status_code == 200:
                    return
            time.sleep(0.05)
    log = (folder / f"{url.rpartition(':')[2]}.log").read_text(errors="replace")
    raise SystemExit(f"{url} is not ready: {log[-2000:]}")
