"""What a start imports: no library that it does not need."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lamella.model.shipped import FOLDER, NAME

# libraries that are slow to import
SLOW = {
    *(
        "cuda.bindings",
        "gguf",
        "huggingface_hub",
        "jinja2",
        "llguidance",
        "numba",
        "opentelemetry",
        "prometheus_client",
    ),
    *("prometheus_client", "prompt_toolkit", "rich", "sentencepiece", "tokenizers", "yaml"),
    # ours that most processes do not need
    *("lamella.model.guide.translate", "lamella.model.guide.schema", "lamella.sched.explain"),
}
OF_SERVERS = {"aiohttp", "pydantic", "asyncio"}  # `lamella serve` imports them beside the weights

PROGRAM = """
import sys
before = set()
{code}
sys.stdout.write("imported: " + " ".join(set(sys.modules) - before))
"""
RUN = "from lamella.cli.main import main\nmain({args!r})"
SERVE = """
from lamella.cli import serve
from lamella.cli.main import parser
args = parser(["serve"]).parse_args(["serve", {path!r}])
model = serve.open_served(serve.open_params(args), {{}}, serve.LoadProgress())
model.worker.close()
"""
SPARE = """
import lamella.cli.spare
before = set(sys.modules)
"""
PATH = str(FOLDER / NAME)


def imported(code: str) -> set[str]:
    """The modules that a process has imported at its end, without those in `before`."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(code=code)],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("imported: ")[2].split())


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        (RUN.format(args=["run", PATH, "-p", "Once", "-n", "2"]), SLOW | OF_SERVERS),
        # a server prepares its compiler of grammars
        (SERVE.format(path=PATH), (SLOW | OF_SERVERS) - {"llguidance"}),
    ],
    ids=["run", "serve"],
)
def test_a_start_imports_no_slow_library(code: str, absent: set[str]) -> None:
    found = imported(code)
    if found & absent:  # it may have compiled kernels that were missing
        found = imported(code)
    assert found & absent == set()


def test_a_process_started_ahead_has_imported_what_a_model_needs() -> None:
    code = SPARE + SERVE.format(path=PATH)
    found, expected = imported(code), {"lamella.model.arch.llama"}
    if found != expected:  # it may have compiled kernels that were missing
        found = imported(code)
    assert found == expected


INTERRUPTED_IMPORT = """
import runpy
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "lamella.cli.parser":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Finder())
runpy.run_module({module!r}, run_name="__main__")
"""


@pytest.mark.parametrize("module", ["lamella", "lamella.cli"])
def test_ctrl_c_during_the_imports_of_the_command_is_silent(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT.format(module=module)],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
