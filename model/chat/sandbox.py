"""Rendering of untrusted Jinja templates, with limits on access, time and memory.

Jinja's sandbox blocks access to Python internals. It does not stop `'a' * 10 ** 9` or deeply nested
loops. So each render has a `Budget` of processor time and of text. Time is checked at each loop
iteration, call, filter and operator. Text is charged for every string that the template makes. An
operation that can make a large result from small inputs is charged in advance or not available.

Knows no messages and no roles. Tests: tests/model/test_chat_hostile.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from traceback import walk_tb
from typing import Any, Final

from jinja2 import Template, TemplateSyntaxError, nodes, pass_context
from jinja2.exceptions import SecurityError, UndefinedError
from jinja2.ext import ExprStmtExtension, Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from ...base.errors import RequestError
from .budget import ELEMENT, budget, start_budget
from .clock import strftime_now
from .filters import FILTERS_METERED, STR_METHODS, percent, str_format

SOURCE_MAX: Final = 1 << 20  # characters of a template; long real ones have 20 thousand
SECONDS_MAX: Final = 4.0  # processor time; long conversations take tenths in some templates
TEXT_MAX: Final = 32 << 20  # characters that a render makes, with all intermediate strings
INTEGER_BITS_MAX: Final = 4096
_METHODS_REFUSED: Final = frozenset(("encode", "format_map", "to_bytes", "translate"))
_MUTATIONS: Final = frozenset(("append", "clear", "extend", "insert", "pop", "reverse", "update"))
_SCOPES: Final = ("_loop_vars", "_block_vars")  # arguments that Jinja adds to calls
_PLAIN: Final = (str, int, float, bool, list, tuple, dict, type(None))
N_SAFE_MAX: Final = 4096  # attributes whose check is remembered


def compile_template(source: str) -> Template:
    """Return a compiled template.

    Raises:
        RequestError: the template is invalid; names the line.
        MemoryError: the memory of this process does not suffice.
    """
    if len(source) > SOURCE_MAX:
        raise RequestError(
            f"the chat template has {len(source)} characters, at most {SOURCE_MAX} are allowed"
        )
    try:
        tree = _Meter().visit(_sandbox.parse(source))
        tree.set_environment(_sandbox)
        return _sandbox.from_string(tree)
    except TemplateSyntaxError as e:
        raise RequestError(f"the chat template is invalid in line {e.lineno}: {e.message}") from e
    except MemoryError:  # of a process with limits
        raise
    except Exception as e:  # limits of Python's compiler, such as nesting depth
        raise RequestError(f"the chat template is invalid: {_described(e)}") from e


def render(
    template: Template, variables: Mapping[str, object], *, seconds: float | None = None
) -> str:
    """Return the rendered text.

    Args:
        template: made by `compile_template`.
        variables: the template's variables, besides the environment's globals.
        seconds: the processor time that it may take; None: SECONDS_MAX.

    Raises:
        RequestError: rendering failed; has the text of `raise_exception`, or names the line.
    """
    start_budget(SECONDS_MAX if seconds is None else seconds, TEXT_MAX)
    try:
        return template.render(variables)
    except RequestError:
        raise
    except Exception as e:  # a template can raise any Python exception
        raise RequestError(f"the chat template fails{_line(e)}: {_described(e)}") from e


def _described(e: Exception) -> str:
    return f"{type(e).__name__}: {e}"[:500]


def _line(e: Exception) -> str:
    lines = [n for frame, n in walk_tb(e.__traceback__) if frame.f_code.co_filename == "<template>"]
    return f" in line {lines[-1]}" if lines else ""


class _Meter(NodeTransformer):
    """Inserts filters of `_HOOKS` where the sandbox has no hook."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802  # Jinja's names
        n_chars = sum(len(constant.data) for constant in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        call = _hooked("a loop", nodes.Const(n_chars), node.lineno)
        node.body.insert(0, nodes.ExprStmt(call, lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [_hooked("a value", part, node.lineno) for part in node.nodes]
        return node

    def visit_List(self, node: nodes.Expr) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _hooked("a new value", node, node.lineno)

    visit_Dict = visit_List  # noqa: N815

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return node if node.ctx == "store" else _hooked("a value", node, node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        is_copy = isinstance(node.arg, nodes.Slice)
        return _hooked("a slice", node, node.lineno) if is_copy else node


def _hooked(hook: str, argument: nodes.Expr, lineno: int) -> nodes.Expr:
    # faster than a call, which the sandbox checks
    return nodes.Filter(argument, hook, [], [], None, None, lineno=lineno)


# they take the context, or Jinja would call them at compile time for constants


@pass_context
def _loop(_: Context, n_chars: int) -> None:
    current = budget()
    current.tick()
    current.charge(n_chars + 1)


@pass_context
def _value(_: Context, value: object) -> object:
    budget().weigh(value)
    return value


@pass_context
def _new_value(_: Context, value: object) -> object:
    current = budget()
    current.weigh(value)
    current.may_grow(value)
    return value


@pass_context
def _slice(_: Context, value: object) -> object:
    # a part of a value that has been charged for
    if isinstance(value, str | list | tuple):
        budget().charge(len(value) * (1 if isinstance(value, str) else ELEMENT))
    return value


_HOOKS: Final = {  # no template can write these names
    "a loop": _loop,
    "a value": _value,
    "a new value": _new_value,
    "a slice": _slice,
}


class _GenerationBlock(Extension):
    """`{% generation %}`: marks text that a model is trained on. It does not change the result."""

    tags = {"generation"}  # noqa: RUF012  # the base class has a plain set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _QuietNamespace(Namespace):
    # a namespace can contain itself and more text than was charged, so it prints no contents
    def __repr__(self) -> str:
        return "<namespace>"


class _Undefined(Undefined):
    """An absent key of a dict has absent keys: a schema of a tool needs few of them."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if self._is_key() and not name.startswith("_"):
            return self
        return super().__getattr__(name)

    def __getitem__(self, _: object) -> Any:
        return self if self._is_key() else self._fail_with_undefined_error()

    def _is_key(self) -> bool:
        is_refused = self._undefined_exception is not UndefinedError  # by the sandbox
        return isinstance(self._undefined_obj, dict) and not is_refused


class _Sandbox(ImmutableSandboxedEnvironment):
    """Hugging Face's environment for chat templates, with a budget."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_value,
            undefined=_Undefined,
            extensions=[LoopControlExtension, ExprStmtExtension, _GenerationBlock],
        )
        del self.globals["lipsum"]
        self.globals["namespace"] = _QuietNamespace
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = strftime_now
        self.globals["tojson"] = FILTERS_METERED["tojson"]  # llama.cpp's
        self.filters = {**FILTERS_METERED, **_HOOKS}
        self._safe: dict[tuple[type, str], bool] = {}

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Refuse methods that can make a large result from small inputs. `call` checks others."""
        if type(obj) not in _PLAIN:
            return self._is_safe_attribute(obj, attr, value)
        safe = self._safe.get((type(obj), attr))
        if safe is None:
            safe = self._is_safe_attribute(obj, attr, value)
            if len(self._safe) < N_SAFE_MAX:
                self._safe[type(obj), attr] = safe
        return safe

    def _is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str | int) and attr in _METHODS_REFUSED:
            return False
        if isinstance(obj, list | dict) and attr in _MUTATIONS:
            return True
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return the charged version of a string method. Jinja's only hook for such methods."""
        owner, name = getattr(value, "__self__", None), getattr(value, "__name__", "")
        if not isinstance(owner, str):
            return None
        formatted = super().wrap_str_format(value)
        if formatted is not None:
            return functools.partial(str_format, formatted, owner)
        method = STR_METHODS.get(name)
        return None if method is None else functools.partial(method, owner)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Perform a call of the template, with its time and result charged."""
        current = budget()
        current.tick()
        owner = getattr(function, "__self__", None)
        if isinstance(owner, list | dict) and function.__name__ in _MUTATIONS:
            given = [value for name, value in kwargs.items() if name not in _SCOPES]
            _check_mutation(owner, function.__name__, [*args, *given])
        result = super().call(context, function, *args, **kwargs)
        current.weigh(result)
        if function is dict:
            current.may_grow(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Perform `+`, `*`, `**` or `%`, with the result's size checked in advance."""
        current = budget()
        current.tick()
        if operator == "%" and isinstance(left, str):
            return percent(left, right)
        if operator == "+" and isinstance(left, str) and isinstance(right, Undefined):
            return left  # as in llama.cpp: an absent variable adds no text
        if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            _check_bits(operator, left, right)
        elif operator == "*" and isinstance(left, int):
            current.weigh(right, max(left, 1))
        elif operator == "*" and isinstance(right, int):
            current.weigh(left, max(right, 1))
        result = super().call_binop(context, operator, left, right)
        current.weigh(result)
        return result


def _check_mutation(owner: object, method: str, arguments: list[Any]) -> None:
    """Charge for what a list or dict gets.

    Raises:
        SecurityError: the template has not just made `owner`, or the argument is an iterator.
    """
    budget().weigh(arguments)  # first: no list may become a part of itself
    is_iterator = not all(isinstance(argument, _PLAIN) for argument in arguments)
    if not budget().grows(owner) or (method in ("extend", "update") and is_iterator):
        raise SecurityError(f"the chat template must not call {method!r} of this value")


def _check_bits(operator: str, left: int, right: int) -> None:
    n_left, n_right = left.bit_length(), right.bit_length()
    if (n_left * right if operator == "**" else n_left + n_right) > INTEGER_BITS_MAX:
        raise RequestError(
            f"the chat template makes an integer of more than {INTEGER_BITS_MAX} bits"
        )


def _raise_exception(message: object) -> None:
    budget().weigh(message)
    raise RequestError(f"the chat template refuses the messages: {message}")


_sandbox = _Sandbox()
