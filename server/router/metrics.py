"""The metrics of a router: its own, and those of its loaded models with a label `model`.

Tested by tests/server/test_router_metrics.py.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final

import aiohttp

from ...base.errors import UnavailableError
from ..metrics import Metric, router_metrics
from ..state import ServerState
from .child import N_REPLY_SECONDS, ORIGIN, Child
from .fleet import Fleet
from .member import Member, State

Part = tuple[Mapping[str, str], str]  # labels, and a text with metrics

_SAMPLE: Final = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (.*)")
_COMMENT: Final = re.compile(r"# (?:HELP|TYPE) ([\w:]+) ")


async def render(state: ServerState, fleet: Fleet) -> bytes:
    """The text of all metrics. A model that does not answer in time is left out."""
    loaded = [member for member in fleet if member.state is State.LOADED]
    texts = await asyncio.gather(*(_text_of(member) for member in loaded))
    own = router_metrics(state, _own(fleet)).decode()
    names = [{"model": member.name} for member in loaded]
    parts: list[Part] = [({}, own), *zip(names, texts, strict=True)]
    return "".join(merged(parts)).encode()


def _own(fleet: Fleet) -> Iterator[Metric]:
    states = [((member.name, state.value), float(member.state is state)) for member in fleet
              for state in State]  # fmt: skip
    yield Metric("lamella_model_state", "1 for the state of a model", "gauge",
                 ("model", "state"), states)  # fmt: skip
    for name, text, values in (
        ("requests", "Requests that use or wait for a model", "n_running"),
        ("failures", "Failures of a model's process in a row", "n_failures"),
    ):
        samples = [((member.name,), float(getattr(member, values))) for member in fleet]
        yield Metric(f"lamella_model_{name}", text, "gauge", ("model",), samples)


async def _text_of(member: Member) -> str:
    child: Child | None = member.child
    with suppress(aiohttp.ClientError, OSError, TimeoutError, UnavailableError):
        async with asyncio.timeout(N_REPLY_SECONDS):
            if child is not None:
                async with child.session.get(f"{ORIGIN}/metrics") as reply:
                    return await reply.text() if reply.status == 200 else ""
    return ""


def merged(parts: Iterable[Part]) -> Iterator[str]:
    """The lines of texts with metrics, each family once. Samples of a text get its labels."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for labels, text in parts:
        family = ""
        for line in text.splitlines(keepends=True):
            comment = _COMMENT.match(line)
            if comment is not None:
                family = comment[1]
                head = heads.setdefault(family, [])
                if line not in head:
                    head.append(line)
            else:
                samples.setdefault(family, []).append(_labeled(line, labels))
    for family, lines in samples.items():
        yield from heads.get(family, [])
        yield from lines


def _labeled(line: str, labels: Mapping[str, str]) -> str:
    sample = _SAMPLE.match(line)
    if not labels or sample is None:
        return line
    name, own, value = sample.groups()
    texts = [f'{label}="{_escaped(text)}"' for label, text in labels.items()]
    return f"{name}{{{','.join([*texts, *([own] if own else [])])}}} {value}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
