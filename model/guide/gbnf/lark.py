"""Writes a grammar of lexemes in llguidance's dialect of Lark.

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md. Names are numbered: rules r0,
lexemes L0, regular rules within lexemes T0. The text is ASCII.
Tested by tests/model/test_guide_gbnf.py.
"""

from __future__ import annotations

from typing import Final

from .nodes import ANY, Alt, Chars, Node, Ref, Repeat, Rules, Seq, Text, Token
from .skeleton import Lexeme

_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")
_GROUPED_DEPTH_MAX: Final = 8  # llguidance's parser of Lark allows 30


def written(plan: Rules, rules: Rules, root: str) -> str:
    """Return the text of a grammar.

    Args:
        plan: rules with lexemes as their leaves.
        rules: the regular rules to which the lexemes refer.
        root: the rule that the whole text matches.
    """
    return _Writer(plan, rules).text(root)


class _Writer:
    def __init__(self, plan: Rules, rules: Rules) -> None:
        self._plan = plan
        self._rules = rules
        self._lines: list[str] = []
        self._names: dict[tuple[str, object], str] = {}  # of rules, lexemes and regular rules
        self._todo: list[tuple[str, Node]] = []  # rules without a line
        self._regular_todo: list[tuple[str, Node]] = []  # the same within lexemes

    def text(self, root: str) -> str:
        self._lines.append(f"start: {self._rule_name(root)}")
        while self._todo:
            name, body = self._todo.pop()
            self._lines.append(f"{name}: {self._rule(body, 0)}")
        while self._regular_todo:
            name, body = self._regular_todo.pop()
            self._lines.append(f"{name}: {self._regular(body)}")
        return "\n".join(self._lines) + "\n"

    def _name(self, kind: str, key: object) -> tuple[str, bool]:
        """Return the name of a thing, and whether it is new."""
        name = self._names.get((kind, key))
        if name is not None:
            return name, False
        name = self._names[kind, key] = f"{kind}{len(self._names)}"
        return name, True

    def _rule_name(self, rule: str) -> str:
        name, is_new = self._name("r", rule)
        if is_new:
            self._todo.append((name, self._plan[rule]))
        return name

    def _rule(self, node: Node, depth: int) -> str:
        """The right side of a rule."""
        if depth >= _GROUPED_DEPTH_MAX:
            name, is_new = self._name("g", node)
            if is_new:
                self._todo.append((name, node))
            return name
        match node:
            case Lexeme(inner):
                return self._lexeme_name(inner)
            case Token():
                return _token(node)
            case Ref(rule):
                return self._rule_name(rule)
            case Seq(items):
                return " ".join(self._rule(item, depth + 1) for item in items) or '""'
            case Alt(items):
                return f"({' | '.join(self._rule(item, depth + 1) for item in items)})"
            case Repeat(item, least, most):
                return f"({self._rule(item, depth + 1)}){_count(least, most)}"
            case _:
                raise AssertionError(node)

    def _lexeme_name(self, node: Node) -> str:
        name, is_new = self._name("L", node)
        if is_new:
            self._regular_todo.append((name, node))
        return name

    def _regular(self, node: Node) -> str:
        """The right side of a lexeme: one regular expression, unless there are rules in it."""
        if not _has_refs(node):
            return f"/{regex(node)}/"
        match node:
            case Ref(rule):
                return self._regular_name(rule)
            case Seq(items):
                return " ".join(self._regular(item) for item in items)
            case Alt(items):
                return f"({' | '.join(self._regular(item) for item in items)})"
            case Repeat(item, least, most):
                return f"({self._regular(item)}){_count(least, most)}"
            case _:
                raise AssertionError(node)

    def _regular_name(self, rule: str) -> str:
        name, is_new = self._name("T", rule)
        if is_new:
            self._regular_todo.append((name, self._rules[rule]))
        return name


def regex(node: Node) -> str:
    """Return an expression without references in the syntax of Rust's regex crate."""
    match node:
        case Text(text):
            return "".join(map(_character, map(ord, text)))
        case Chars(ranges):
            if ranges == ANY:
                return "(?s:.)"
            return f"[{''.join(_range(first, last) for first, last in ranges)}]"
        case Seq(items):
            return "".join(map(_grouped, items)) or "(?:)"
        case Alt(items):
            return "|".join(map(_grouped, items))
        case Repeat(item, least, most):
            grouped = regex(item) if isinstance(item, Chars) else f"(?:{regex(item)})"
            return grouped + _count(least, most)
        case _:
            raise AssertionError(node)


def _grouped(node: Node) -> str:
    return f"(?:{regex(node)})" if isinstance(node, Alt) else regex(node)


def _range(first: int, last: int) -> str:
    return _character(first) + (f"-{_character(last)}" if first != last else "")


def _character(code_point: int) -> str:
    return chr(code_point) if code_point in _PLAIN else f"\\x{{{code_point:X}}}"


def _count(least: int, most: int | None) -> str:
    match least, most:
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case 0, 1:
            return "?"
        case _ if least == most:
            return f"{{{least}}}"
        case _:
            return f"{{{least},{'' if most is None else most}}}"


def _token(node: Token) -> str:
    ids = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in node.ids)
    return f"<[{ids}]>"


def _has_refs(node: Node) -> bool:
    return isinstance(node, Ref) or any(map(_has_refs, node.children))
