"""The options of a server with several models.

Knows no model. Tested by tests/cli/test_serve_models.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from ...base.errors import RequestError
from ...base.options import Options, option
from ..config import INT32_MAX

N_MODELS_MAX: Final = 4096


def _file(name: str, value: object) -> str:
    """The path of a file, or "". Raises RequestError if there is none."""
    path = str(value)
    if path and not Path(path).is_file():
        raise RequestError(f"{name}: there is no file {path}")
    return path


def _folder(name: str, value: object) -> str:
    """The path of a folder, or "". Raises RequestError if there is none."""
    path = str(value)
    if path and not Path(path).is_dir():
        raise RequestError(f"{name}: {path} is not a folder")
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig(Options):
    """Which models a server has, and when they are in memory."""

    title: ClassVar[str] = "several models"
    description: ClassVar[str | None] = "Each model runs in a process of its own."

    models_dir: str = option(
        "",
        "--models-dir",
        metavar="DIR",
        check=_folder,
        help="serve the GGUF files of a folder; requests name the model",
        default_text="",
    )
    models_preset: str = option(
        "",
        "--models-preset",
        metavar="FILE",
        check=_file,
        help="serve the models of an INI file: sections are models, keys are flags",
        default_text="",
    )
    models_max: int = option(
        4,
        "--models-max",
        low=0,
        high=N_MODELS_MAX,
        help="most models in memory; 0: no limit",
    )
    models_autoload: bool = option(
        True,
        "--models-autoload",
        off=("--no-models-autoload",),
        help="load a model when a request names it",
    )
    sleep_idle_seconds: int = option(
        -1,
        "--sleep-idle-seconds",
        metavar="SECONDS",
        low=-1,
        high=INT32_MAX,
        help="take a model out of memory after so long without requests; -1: never",
    )
    router_socket: str = option(
        "",
        "--router-socket",
        metavar="FILE",
        help="for processes of models: serve on this unix socket until stdin ends",
        default_text="",
    )

    @property
    def has_several(self) -> bool:
        """True if the server has several models, or one that sleeps."""
        many = bool(self.models_dir or self.models_preset) or self.sleep_idle_seconds >= 0
        return many and not self.router_socket
