"""The parameters of an open model: one nested declaration, passed on unchanged.

The command line, the environment, `lamella.load` and the plan all read it. A new option needs a
field in one of the groups, and no other line. Knows no device and no file.
Tested by tests/runtime/test_params.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..base.options import Options, group, option
from ..model.params import INT32_MAX, ContextParams, PlacementParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParams(Options):
    """Which model to open, and what replaces values of its file."""

    title: ClassVar[str] = "model"

    path: str | Path = option("", help="the GGUF file; of a split model, the first one")
    alias: str | None = option(
        None,
        *("-a", "--alias"),
        metavar="NAME",
        help="the model's name for clients",
        default_text="the file's",
    )
    chat_template: str | None = option(
        None,
        "--chat-template",
        metavar="TEMPLATE",
        help="jinja source, or chatml",
        default_text="the file's",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParams(Options):
    """How the engine schedules generations."""

    title: ClassVar[str] = "engine"

    max_waiting: int = option(
        512, low=1, high=INT32_MAX, help="generations that may wait; further ones are refused"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenParams(Options):
    """Which model to open, and how. `OpenParams.make` takes the options of all groups by name."""

    model: ModelParams = group(ModelParams)
    placement: PlacementParams = group(PlacementParams)
    context: ContextParams = group(ContextParams)
    engine: EngineParams = group(EngineParams)
