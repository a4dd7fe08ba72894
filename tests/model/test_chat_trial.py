"""Long templates compile in another process first, which has limits."""

from __future__ import annotations

import resource
import sys

import pytest

from lamella.base.errors import RequestError
from lamella.model.chat import template as chat_template
from lamella.model.chat import trial
from lamella.model.chat.template import ChatTemplate
from lamella.model.chat.trial import LENGTH_TRUSTED, check_compiles

LONG = "{{ a }}" + "x" * LENGTH_TRUSTED
only_linux = pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")


def refused(source: str) -> str:
    with pytest.raises(RequestError) as error:
        ChatTemplate(source)
    return str(error.value)


@only_linux
def test_a_megabyte_of_variables_is_refused() -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    source = "{{a}}" * ((1 << 20) // 5)
    message = refused(source)
    assert message.startswith(f"the chat template has {len(source)} characters and takes more than")
    assert f"templates of up to {LENGTH_TRUSTED} characters" in message
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 64 << 10  # KiB


@only_linux
@pytest.mark.parametrize(
    ("limit", "value", "text"),
    [("CPU_SECONDS", 0.01, "more than 0.01 s to"), ("N_BYTES", 0, "more than 0 MiB of memory")],
)
def test_the_limit_is_named(
    limit: str, value: float, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "{{a}}" * 6000
    check_compiles(source)
    monkeypatch.setattr(trial, limit, value)
    assert text in refused(source)


def test_a_long_template_renders() -> None:
    assert ChatTemplate(LONG).render([], a="é") == "é" + LONG[7:]


def test_the_error_of_a_long_template_is_that_of_a_short_one() -> None:
    assert refused("{% if %}" + LONG) == refused("{% if %}")


def test_a_short_template_needs_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    sources: list[str] = []
    monkeypatch.setattr(chat_template, "check_compiles", sources.append)
    ChatTemplate(LONG[:LENGTH_TRUSTED])
    assert sources == []
    ChatTemplate(LONG[: LENGTH_TRUSTED + 1])
    assert len(sources) == 1
