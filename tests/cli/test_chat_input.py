"""What a user enters in a chat: lines, blocks, interrupts."""

from __future__ import annotations

import pytest

from lamella.cli.chat_input import Entry, entries


def entered(*lines: str | type[BaseException]) -> tuple[list[Entry], list[str], int]:
    """The entries of these lines, the prompts, and the number of interrupts."""
    left, prompts, interrupts = list(lines), list[str](), list[None]()

    def read(prompt: str) -> str:
        prompts.append(prompt)
        if not left:
            raise EOFError
        line = left.pop(0)
        if isinstance(line, str):
            return line
        raise line

    found = list(entries(read, lambda: interrupts.append(None)))
    return found, prompts, len(interrupts)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["a", " b "], [Entry("a"), Entry("b")]),
        (['"""a', "", "  b", '"""', "c"], [Entry("a\n\n  b", True), Entry("c")]),
        (['"""', "a", 'b """ '], [Entry("a\nb", True)]),
        (['"""/bye"""'], [Entry("/bye", True)]),
        (['""""""'], [Entry("", True)]),
        (['"""', '"""'], [Entry("", True)]),
        (['"""one\ntwo"""'], [Entry("one\ntwo", True)]),  # a paste
        (["one\n\ntwo"], [Entry("one\n\ntwo")]),
        (['"""a', "b"], [Entry("a\nb", True)]),  # the end of the input
        (['say """x"""'], [Entry('say """x"""')]),
    ],
)
def test_entries(lines: list[str], expected: list[Entry]) -> None:
    assert entered(*lines)[0] == expected


def test_an_interrupt_drops_what_was_typed() -> None:
    found, prompts, n_interrupts = entered(KeyboardInterrupt, '"""a', KeyboardInterrupt, "b")
    assert found == [Entry("b")]
    assert prompts == ["> ", "> ", ". ", "> ", "> "]
    assert n_interrupts == 2
