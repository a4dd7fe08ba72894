"""How deep JSON values from outside may nest. Code that walks them calls itself for each level.

Tested by tests/base/test_json_depth.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from .errors import RequestError

N_DEPTH_MAX: Final = 100  # arrays and objects inside each other, in arguments and in schemas
_N_PATH_CHARS: Final = 200  # of the path in an error
_CONTAINERS: Final = (dict, list, tuple)

# the link of the container around a value, and the value's key in it; () for the whole value
Link = tuple[Any, object] | tuple[()]


def check_depth(name: str, value: object, n_max: int = N_DEPTH_MAX) -> None:
    """Check how many arrays and objects of `value` are inside each other.

    Raises:
        RequestError: more than `n_max`; names the path, which begins with `name`.
    """
    level: list[tuple[object, Link]] = [(value, ())] if isinstance(value, _CONTAINERS) else []
    for _ in range(n_max):
        level = [
            (child, (link, key))
            for container, link in level
            for key, child in _items(container)
            if isinstance(child, _CONTAINERS)
        ]
    if level:
        raise _too_deep(_path(name, level[0][1]), n_max)


def check_text_depth(name: str, text: str) -> None:
    """`check_depth` of the value of a JSON text. Other texts have no depth."""
    if text.count("[") + text.count("{") <= N_DEPTH_MAX:
        return
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_deep(name, N_DEPTH_MAX) from None
    except ValueError:
        return
    check_depth(name, value)


def _items(container: Any) -> Iterable[tuple[object, object]]:
    return container.items() if isinstance(container, dict) else enumerate(container)


def _path(name: str, link: Link) -> str:
    keys: list[object] = []
    while link:
        link, key = link
        keys.append(key)
    steps = (f"[{key}]" if isinstance(key, int) else f".{key!s:.80}" for key in reversed(keys))
    path = name + "".join(steps)
    return path if len(path) <= _N_PATH_CHARS else f"{path[: _N_PATH_CHARS - 3]}..."


def _too_deep(path: str, n_max: int) -> RequestError:
    return RequestError(
        f'"{path}" is nested too deeply: at most {n_max} arrays and objects inside each other are '
        "allowed"
    )
