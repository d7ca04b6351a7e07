"""Taps: a method of someone else's class, replaced by itself and a look at what it is given.

Never changes what the method does, and swallows every fault of the look. A method that is
not there costs only what it would have told; `missing` names it.
"""

from __future__ import annotations

import functools

from ...ipc.handlers import is_the_agents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Arguments = tuple[Any, ...]
    Named = dict[str, Any]

missing: list[str] = []


def replace(owner: type, name: str, tap: Callable[[Callable[..., Any]], Any]) -> None:
    original = owner.__dict__.get(name)
    if callable(original):
        setattr(owner, name, tap(original))
    else:
        missing.append(f"{owner.__name__}.{name}")


def with_before(before: Callable[..., None], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def tapped(self: Any, *args: Any, **named: Any) -> Any:
        quietly(before, self, args, named)
        return original(self, *args, **named)

    return tapped


def with_after(after: Callable[..., None], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def tapped(self: Any, *args: Any, **named: Any) -> Any:
        result = original(self, *args, **named)
        quietly(after, self, args, named, result)
        return result

    return tapped


def quietly(what: Callable[..., Any], *args: Any) -> Any:
    try:
        return what(*args)
    except Exception as error:
        if is_the_agents(error):
            raise
        return None


def argument(args: Arguments, named: Named, place: int, name: str) -> Any:
    return named[name] if name in named else args[place] if len(args) > place else None
