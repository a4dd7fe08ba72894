"""The switchboard: sources of values, errors, `with`, and the table in the docs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lamella.base.errors import SettingError
from lamella.base.settings import DEBUG, ISA, SWITCHES, Switch, TextSwitch

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Switch]:
    """A switch that is on by default. It is removed afterwards."""
    monkeypatch.delenv("LAMELLA_TEST", raising=False)
    yield Switch("LAMELLA_TEST", 2, "A switch.")
    del SWITCHES["LAMELLA_TEST"]


def test_default_when_unset_or_empty(switch: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    assert switch() == 2
    monkeypatch.setenv(switch.name, "")
    assert switch() == 2


def test_the_environment_is_read_each_time(switch: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("7", "-1", " 5 "):
        monkeypatch.setenv(switch.name, value)
        assert switch() == int(value)
    monkeypatch.delenv(switch.name)
    assert switch() == 2


@pytest.mark.parametrize("value", ["yes", "1.5", "0x10", "3 4"])
def test_an_invalid_value_is_named(
    value: str, switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(switch.name, value)
    with pytest.raises(SettingError) as error:
        switch()
    assert switch.name in str(error.value)
    assert repr(value) in str(error.value)
    assert "number" in str(error.value)
    assert error.value.__cause__ is None


def test_an_invalid_value_does_not_matter_if_overridden(
    switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(switch.name, "yes")
    with switch.set(1):
        assert switch() == 1


def test_zero_means_off(switch: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a switch that is on by default, and inside a `with`."""
    monkeypatch.setenv(switch.name, "0")
    assert not switch()
    monkeypatch.setenv(switch.name, "3")
    with switch.set(0):
        assert not switch()
    assert switch() == 3


def test_set_for_a_block(switch: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(switch.name, "3")
    with switch.set(5):
        assert switch() == 5
    assert switch() == 3


def test_set_nested(switch: Switch) -> None:
    with switch.set(3):
        with switch.set(0):
            assert switch() == 0
            with switch.set(4):
                assert switch() == 4
            assert switch() == 0
        assert switch() == 3
    assert switch() == 2


def fail() -> None:
    raise KeyError("inside")


def test_restored_after_an_exception(switch: Switch) -> None:
    with switch.set(3):
        with pytest.raises(KeyError), switch.set(4):
            fail()
        assert switch() == 3
    assert switch() == 2


def test_debug_is_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAMELLA_DEBUG", raising=False)
    assert DEBUG() == 0
    with DEBUG.set(3):
        assert DEBUG() >= 3
    assert DEBUG() == 0


def test_a_switch_is_declared_once() -> None:
    with pytest.raises(AssertionError, match="LAMELLA_DEBUG is declared twice"):
        Switch("LAMELLA_DEBUG", 0, "Again.")
    assert SWITCHES["LAMELLA_DEBUG"] is DEBUG


def test_a_text_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAMELLA_ISA", raising=False)
    assert ISA() == ISA.default == ""
    monkeypatch.setenv("LAMELLA_ISA", " avx2 ")
    assert ISA() == "avx2"
    with pytest.raises(AssertionError, match="LAMELLA_ISA is declared twice"):
        TextSwitch("LAMELLA_ISA", "Again.")


def test_declarations_have_one_form() -> None:
    for name, switch in SWITCHES.items():
        assert name == switch.name
        assert name.startswith("LAMELLA_")
        assert name == name.upper()
        assert switch.sentence.endswith(".")
        assert "\n" not in switch.sentence


def cells(line: str) -> list[str]:
    return [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]


def table(page: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table whose first column is `switch`."""
    lines = page.splitlines()
    (start,) = (i for i, line in enumerate(lines) if cells(line)[0] == "switch")
    body = []
    for line in lines[start + 2 :]:  # after the rule below the header
        if not line.startswith("|"):
            break
        body.append(cells(line))
    return cells(lines[start]), body


def test_the_docs_list_every_switch() -> None:
    head, body = table(PAGE.read_text(encoding="utf-8"))
    assert head == ["switch", "type", "default", "what it does"]
    assert body == [
        [s.name, type(s.default).__name__, str(s.default), s.sentence] for s in SWITCHES.values()
    ]


def test_the_table_is_read_to_its_end() -> None:
    page = "# X\n\n| switch | type |\n|---|---|\n| `A` | int |\n| B | int |\n\n| C | D |\n"
    assert table(page) == (["switch", "type"], [["A", "int"], ["B", "int"]])
