"""Writes the rules of tool calls, by the patterns of their syntaxes.

Knows where arguments stand, not their notation. Tests: tests/model/test_guide_chat.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ...chat.formats.format import CallSyntax
from ...chat.message import Tool
from .arguments import ArgumentsWriter
from .grammars import Grammars
from .marks import Mark, MarkReader, loose, written
from .spec import AnswerSpec
from .syntax import Parts, Variable, is_json, literal, parts

_INDEX: Final = "/[0-9]{1,4}/"
_TYPE: Final = '"type": "function", '
_OF_ALL_TOOLS: Final = frozenset(("id", "index", "any"))  # variables that name no single tool

Tools = Sequence[tuple[int, Tool]]


class CallWriter:
    """The rules of the calls of an answer."""

    def __init__(self, spec: AnswerSpec, marks: MarkReader, grammars: Grammars) -> None:
        self._spec = spec
        self._marks = marks
        self._grammars = grammars
        self._arguments = ArgumentsWriter(marks, grammars)
        self._next_calls: set[str] = set()

    def whole(self) -> str:
        """The rule of calls from their begin on."""
        [syntax, *_] = self._spec.syntaxes
        return self._rule("calls", syntax, parts(syntax.begin + syntax.call))

    @property
    def is_begun(self) -> bool:
        """True if the prompt ends with the mark of a call, so that nothing else can follow."""
        [syntax, *_] = self._spec.syntaxes
        mark, begun = self._spec.trigger(syntax), self._spec.begun
        return bool(mark) and begun.startswith(mark)

    def begun(self) -> str:
        """The rule of calls behind the begin of the first one in the prompt."""
        [syntax, *_] = self._spec.syntaxes
        return self._rule("calls", syntax, self._behind(self._spec.begun, syntax))

    def continued(self) -> Iterator[tuple[str, Mark | str, str]]:
        """As `triggered`, for a mark whose begin is in the prompt."""
        [syntax, *_] = self._spec.syntaxes
        mark, begun = self._spec.trigger(syntax), self._spec.begun
        if mark:
            rule = self._rule("calls_begun", syntax, self._behind(mark, syntax))
            yield "begin_begun", self._marks.read(mark.removeprefix(begun)), rule
        else:
            yield from self._named("begun", syntax, begun)

    def triggered(self) -> Iterator[tuple[str, Mark | str, str]]:
        """The marks that begin calls in a free text: a name, the mark, the rule behind it.

        A mark is a regular expression if a call begins with JSON; the name of a tool belongs to it
        if any JSON may begin so.
        """
        seen: list[str] = []
        for i, syntax in enumerate(self._spec.syntaxes):
            mark = self._spec.trigger(syntax)
            if not mark:
                yield from self._named(i, syntax)
            elif not any(self._hides(earlier, mark) for earlier in seen):
                seen.append(mark)
                rule = self._rule(f"calls_{i}", syntax, self._behind(mark, syntax))
                found = self._marks.read(mark)
                is_loose = found == [mark] and (is_json(mark) or " " in mark or "\n" in mark)
                yield f"begin_{i}", loose(mark) if is_loose else found, rule

    def _hides(self, earlier: str, mark: str) -> bool:
        """True if a mark cannot stand beside an earlier one: the first to end would be taken."""
        return earlier == mark or (mark in earlier and self._marks.read(earlier) == [earlier])

    def _named(
        self, key: object, syntax: CallSyntax, begun: str = ""
    ) -> Iterator[tuple[str, Mark | str, str]]:
        text = literal(syntax)
        _, after, *rest = parts((syntax.begin + syntax.call).removeprefix(text))
        assert isinstance(after, str), syntax
        end, found, behind = after.partition('"')
        for n, tool in self._spec.tools:
            mark = f"{text}{tool.name}{end}{found}".removeprefix(begun)
            is_text = self._marks.read(mark) == [mark]
            rule = self._rule(f"calls_{key}_{n}", syntax, [behind, *rest], [(n, tool)])
            yield f"begin_{key}_{n}", _spellings(mark) if is_text else self._marks.read(mark), rule

    @staticmethod
    def _behind(mark: str, syntax: CallSyntax) -> Parts:
        """The parts of the first call behind its mark."""
        pattern = syntax.begin + syntax.call
        return parts(pattern[pattern.index(mark) + len(mark) :])

    def _rule(self, name: str, syntax: CallSyntax, first: Parts, tools: Tools = ()) -> str:
        """The rule of calls, the first of which has the parts `first`."""
        texts = [self._call(f"{name}_first", syntax, first, tools or self._spec.tools)]
        if self._spec.parallel and syntax.many:
            texts.append(f"{self._next_call(syntax)}*")
        texts.append(self._marks.expression(syntax.end))
        return self._grammars.rule(name, " ".join(filter(None, texts)))

    def _next_call(self, syntax: CallSyntax) -> str:
        name = f"next_call_{self._spec.syntaxes.index(syntax)}"
        if name not in self._next_calls:
            self._next_calls.add(name)
            found = parts(syntax.between + syntax.call)
            self._call(name, syntax, found, self._spec.tools)
        return name

    def _call(self, name: str, syntax: CallSyntax, found: Parts, tools: Tools) -> str:
        """The rule of one call: what all tools have in common, then one option for each tool."""
        n_common = next(i for i, part in enumerate(found) if _is_of_one_tool(part))
        common = self._sequence(found[:n_common], syntax)
        options = (self._sequence(found[n_common:], syntax, n, tool) for n, tool in tools)
        return self._grammars.rule(name, f"{common} ({' | '.join(options)})")

    def _sequence(
        self, found: Parts, syntax: CallSyntax, number: int = 0, tool: Tool | None = None
    ) -> str:
        """The expression of parts of a pattern."""
        texts, literal = [], ""
        for part in found:
            if isinstance(part, str):
                literal += part
            elif part.name == "name" and tool is not None:
                literal += tool.name
            else:
                texts.append(self._marks.expression(literal))
                texts.append(self._variable(part, syntax, number, tool))
                literal = ""
        texts.append(self._marks.expression(literal))
        return " ".join(filter(None, texts))

    def _variable(
        self, variable: Variable, syntax: CallSyntax, number: int, tool: Tool | None
    ) -> str:
        match variable.name:
            case "id":
                return f"/{syntax.new_id}/"
            case "index":
                return self._grammars.rule("INDEX", _INDEX)
            case "any" if tool is None:
                return self._grammars.rule("WORD", "/[a-z]+/")
            case "any":
                return self._any(syntax)
        assert tool is not None, variable
        return self._arguments.write(variable.name, syntax, number, tool)

    def _any(self, syntax: CallSyntax) -> str:
        """Short texts, and control tokens of calls but the one that follows."""
        tokens = {token for each in self._spec.syntaxes for token in self._tokens(each.call)}
        tokens -= self._tokens(syntax.call.partition("$any")[2])
        options = [self._grammars.rule("ANY", r"/[^\n{}<]{1,40}/")]
        options += [written([token]) for token in sorted(tokens)]
        return f"({' | '.join(options)}){{0,4}}"

    def _tokens(self, text: str) -> set[int]:
        return {part for part in self._marks.read(text) if isinstance(part, int)}


def _spellings(mark: str) -> str:
    """The regular expression of a mark with a tool's name. The type of OpenAI's calls may stand
    before the name, as Llama often writes it."""
    found = [mark]
    if is_json(mark):
        typed = mark.replace("{", f"{{{_TYPE}", 1)
        found += [typed, typed.replace('"name":', '"function":', 1)]
    return f"({' | '.join(map(loose, found))})"


def _is_of_one_tool(part: str | Variable) -> bool:
    return isinstance(part, Variable) and part.name not in _OF_ALL_TOOLS
