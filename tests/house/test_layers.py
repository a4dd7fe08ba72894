"""Rooms import only from rooms below them, and only the switchboard reads the environment."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest
from house import ROOMS, packages, read, relative_targets, room_of, room_sources

SWITCHBOARD = PurePosixPath("base/settings.py")
ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
# what every use has; looking for it is faster than parsing
MENTIONED = re.compile(rf"{'|'.join(ENVIRONMENT)}|Switch|import \*")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def walk(node: ast.AST, function: str = "") -> Iterator[tuple[ast.AST, str]]:
    """All nodes below `node`, each with the name of its function."""
    left = [(node, function)]
    while left:
        parent, function = left.pop()
        inner = parent.name if isinstance(parent, Function) else function
        for child in ast.iter_child_nodes(parent):
            yield child, inner
            left.append((child, inner))


def absolute_names(node: ast.AST) -> list[str]:
    """Modules of ours with absolute names, in an import or in a call of the import machinery."""
    match node:
        case ast.Import(names=names):
            modules = [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), level=0):
            modules = [module]
        case ast.Call(
            func=ast.Name(id="import_module" | "__import__")
            | ast.Attribute(attr="import_module" | "__import__"),
            args=[ast.Constant(value=str(module)), *_],
        ):
            # a leading dot is relative to one of our packages
            modules = ["lamella" + module] if module.startswith(".") else [module]
        case _:
            modules = []
    return [module for module in modules if module.split(".")[0] == "lamella"]


LAZY = "__getattr__"  # may import lazily (PEP 562)
# slow to import, and not needed by each start, or not at once: functions may import them
SLOW = {
    "lamella.cluster.service",
    "lamella.cli.mcp_servers",
    "lamella.kernels.cpu.compiler.numba_compile",
    "lamella.kernels.cpu.simd.numba_registers",
    "lamella.model.chat.sandbox",
    "lamella.model.guide.token_names",
    "lamella.model.guide.translate",
    "lamella.model.guide.trigger_steps",
    "lamella.sched.explain",
    "lamella.server.app",
    "lamella.server.listening",
    "lamella.server.router.app",
    "lamella.server.state",
}


def wrong_imports(path: PurePosixPath, source: str) -> list[str]:
    """The faults in the imports of one file, by line."""
    room = path.parts[0]
    found = []
    for node, function in walk(ast.parse(source)):
        where = f"{path}:{getattr(node, 'lineno', 0)}"
        found += [f"{where}: {name} is not imported relatively" for name in absolute_names(node)]
        if not isinstance(node, ast.ImportFrom) or node.level == 0:
            continue
        targets = relative_targets(node, packages(path))
        if not targets:
            found.append(f"{where}: climbs out of lamella")
        names = [(*target, alias.name) for target in targets for alias in node.names]
        is_slow = any(".".join(name) in SLOW for name in (*targets, *names))
        if function and function != LAZY and not is_slow:
            found.append(f"{where}: our own import inside {function}()")
        for target in targets:
            if ROOMS.index(room_of(target)) > ROOMS.index(room):
                found.append(f"{where}: {room} must not know {'.'.join(target)}")
    return found


def environment_uses(path: PurePosixPath, source: str) -> list[str]:
    """The uses of the environment and the declared switches in one file, by line."""
    if not MENTIONED.search(source):
        return []
    tree = ast.parse(source)
    os_names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "os"
    }
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if name in os_names:
                used = [attr]
            case ast.ImportFrom(module="os", level=0, names=names):
                used = [alias.name for alias in names]
            case _:
                used = []
        for attr in used:
            if attr in {*ENVIRONMENT, "*"}:
                found.append(f"{path}:{getattr(node, 'lineno', 0)}: os.{attr}")
        match node:
            case ast.Call(func=ast.Name(id="Switch") | ast.Attribute(attr="Switch")):
                found.append(f"{path}:{node.lineno}: a switch is declared")
    return found


def test_imports_look_down() -> None:
    assert [fault for path in room_sources() for fault in wrong_imports(path, read(path))] == []


def test_only_the_switchboard_reads_the_environment() -> None:
    uses = {path: environment_uses(path, read(path)) for path in room_sources()}
    assert uses.pop(SWITCHBOARD)
    assert [use for found in uses.values() for use in found] == []


def test_the_walk_sees_the_rooms() -> None:
    rooms = {path.parts[0] for path in room_sources()}
    assert rooms >= {"base", "graph", "alloc", "sched", "kernels", "api"}
    assert PurePosixPath("graph/ops/data.py") in room_sources()


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        # upwards
        ("base/log.py", "from ..graph import Tensor", "base must not know lamella.graph"),
        ("graph/tensor.py", "from ..alloc.buffer import Buffer", "graph must not know"),
        (
            "sched/sched.py",
            "from ..kernels.sim import Sim",
            "sched must not know lamella.kernels.sim",
        ),
        ("graph/ops/data.py", "from ...sched import Split", "graph must not know lamella.sched"),
        ("graph/ops/__init__.py", "from ...sched import Split", "graph must not know"),
        ("model/load.py", "from ..server import engine", "model must not know lamella.server"),
        ("server/app.py", "from ..cli import main", "server must not know lamella.cli"),
        ("base/__init__.py", "from .. import graph", "base must not know lamella.graph"),
        ("graph/x.py", "from ..alloc import Buffer, host", "graph must not know lamella.alloc"),
        ("base/x.py", "from .. import base, alloc", "base must not know lamella.alloc"),
        # the public package is above all rooms
        ("cli/main.py", "from .. import load", "cli must not know lamella.load"),
        ("cli/main.py", "from ..version import __version__", "cli must not know lamella.version"),
        # absolute names
        ("alloc/a.py", "import lamella", "lamella is not imported relatively"),
        ("alloc/a.py", "import os, lamella.base as b", "lamella.base is not imported relatively"),
        ("alloc/a.py", "from lamella.base import errors", "lamella.base is not"),
        ("api/__init__.py", "from lamella.base import errors", "lamella.base is not"),
        ("alloc/a.py", "import_module('lamella.base')", "lamella.base is not"),
        ("alloc/a.py", "importlib.import_module('.base', __package__)", "lamella.base is not"),
        # inside functions
        ("alloc/a.py", "def f():\n    from ..base import log", ":2: our own import inside f()"),
        ("alloc/a.py", "async def f():\n    from . import b", "our own import inside f()"),
        (
            "alloc/a.py",
            "class A:\n  def g(self):\n    if x:\n      from ..base import log",
            ":4: our own import inside g()",
        ),
        ("alloc/a.py", "def f():\n    import lamella.base", "lamella.base is not"),
        # imports under conditions
        ("graph/a.py", "if TYPE_CHECKING:\n    from ..alloc import Buffer", "graph must not know"),
        ("graph/a.py", "try:\n    from ..alloc import b\nexcept ImportError:\n    b = 0", "graph"),
        # too many dots
        ("graph/a.py", "from ...alloc import Buffer", "climbs out of lamella"),
        ("api/a.py", "from ..base import log", "climbs out of lamella"),
    ],
)
def test_wrong_imports_are_found(path: str, source: str, complaint: str) -> None:
    found = wrong_imports(PurePosixPath(path), source)
    assert len(found) == 1, found
    assert complaint in found[0]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("graph/ops/data.py", "from ..op import Op\nfrom ...base.errors import GraphError"),
        ("graph/__init__.py", "from . import ops\nfrom .op import Op"),
        ("graph/x.py", "from .alloc import y"),  # a module of graph with that name
        ("kernels/sim/device.py", "from ...sched import Device\nfrom ..reference import f"),
        ("sched/x.py", "from .. import base, graph, alloc, sched"),
        ("server/x.py", "from ..model import Context"),
        ("api/__init__.py", "from .cli import main\nfrom .version import v\nfrom . import base"),
        ("kernels/cuda.py", "def f():\n    import cupy\n    from numpy import array"),
        ("api/__init__.py", "def __getattr__(name):\n    from . import text_model"),
        ("model/chat/a.py", "def f():\n    from .sandbox import render"),
        ("alloc/x.py", "import lamellar\nfrom lamellar.base import x\nimport_module(name)"),
        ("alloc/x.py", "if TYPE_CHECKING:\n    from ..graph import Tensor"),
    ],
)
def test_valid_imports_pass(path: str, source: str) -> None:
    assert wrong_imports(PurePosixPath(path), source) == []


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.environ['X']",
        "import os\ndef f():\n    return os.getenv('X')",
        "import os as o\no.environ.get('X')",
        "import os.path, os\nos.putenv('X', '1')",
        "from os import environ",
        "from os import path, getenv as g",
        "from os import *",
        "DEBUG = Switch('LAMELLA_X', 0, 'X.')",
        "DEBUG = settings.Switch('LAMELLA_X', 0, 'X.')",
    ],
)
def test_uses_of_the_environment_are_found(source: str) -> None:
    assert len(environment_uses(PurePosixPath("alloc/x.py"), source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.path.join('a', 'b')\nos.cpu_count()",
        "environ = {}\nenviron['X']\nself.environ",
        "from .os import environ",
        "from ..base.settings import DEBUG, Switch\nDEBUG()",
    ],
)
def test_other_things_are_no_use_of_the_environment(source: str) -> None:
    assert environment_uses(PurePosixPath("alloc/x.py"), source) == []
