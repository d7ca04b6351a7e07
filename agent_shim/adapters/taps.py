"""Taps: a method of someone else's class is replaced with a wrapper that looks at its arguments.

Never changes what the method does, and swallows every fault of the look. A missing method costs
only what its tap would have captured.

A method is found where Python finds it, in the class or anywhere above it, and is replaced in
the class itself. What is inherited is looked up again at each call, so that whoever replaces
it in the base class later is heard. A tap is of the same kind as what it replaces:

    function                  a function; if it returns a coroutine, a generator or a future
                              (a forwarder does), the look comes when that is done
    coroutine function        a coroutine function
    generator, async          a generator, an async generator; what is sent or thrown in
      generator function      reaches the original
    other descriptor          a descriptor that asks the original at each access
    `__getattr__`             of a class or module: watched for the names that it makes up
"""

from __future__ import annotations

import functools
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType

from ...ipc.handlers import is_the_agents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from types import ModuleType
    from typing import Any

    Arguments = tuple[Any, ...]
    Named = dict[str, Any]
    Leave = Callable[[object, BaseException | None], None]
    """Called once, with what the method returned, or None and what it raised."""

_OURS = "_hermes_supervise_tap"
# Flags of a generator's, a coroutine's and an async generator's code, as `inspect` has them,
# which would take long to import.
_RUNS_LATER = 0x20 | 0x80 | 0x200


def replace(owner: type, name: str, tap: Callable[[Callable[..., Any]], Any]) -> bool:
    """Tap a method; False where there is none."""
    original = _found(owner, name)
    if original is None:
        return _tap_made_up(owner, name, tap)
    if hasattr(original, _OURS):
        return True  # a class above it is tapped
    if isinstance(original, FunctionType):
        inherited = name not in vars(owner)
        made = tap(_inherited(owner, name, original) if inherited else original)
    elif callable(original) or hasattr(original, "__get__"):
        made = (_Property if hasattr(type(original), "__set__") else _Descriptor)(original, tap)
    else:
        return False
    try:
        setattr(made, _OURS, {})
        setattr(owner, name, made)
    except (AttributeError, TypeError):
        return False
    return True


def is_tapped(owner: object, name: str) -> bool:
    """True if Python finds a tap under this name, or if `__getattr__` is tapped for it."""
    for above in getattr(owner, "__mro__", ()):
        if name in vars(above):
            return hasattr(vars(above)[name], _OURS)
    return name in getattr(_found(owner, "__getattr__"), _OURS, {})


def _found(owner: object, name: str) -> Any:
    for above in getattr(owner, "__mro__", ()):
        if name in vars(above):
            return vars(above)[name]
    return None


def _inherited(owner: type, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """What Python would find above `owner`, at each call, for whatever class is below it."""

    def inherited(self: Any, /, *args: Any, **named: Any) -> Any:
        if isinstance(self, owner):
            return getattr(super(owner, self), name)(*args, **named)
        return original(self, *args, **named)

    functools.update_wrapper(inherited, original)
    inherited._original = original  # type: ignore[attr-defined]
    return inherited


class _Descriptor:
    """A tap on what is not a function: static methods, partials, forwarders that are objects."""

    def __init__(self, original: Any, tap: Callable[..., Any]) -> None:
        self._original, self._tap = original, tap
        self.__doc__ = getattr(original, "__doc__", None)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        get = getattr(type(self._original), "__get__", None)
        found = get(self._original, instance, owner) if get else self._original
        if instance is None or not callable(found):
            return found
        tapped = quietly(_bound, self._tap, instance, found)
        return found if tapped is None else tapped


class _Property(_Descriptor):
    """The same for a descriptor that also has `__set__`."""

    def __set__(self, instance: Any, value: Any) -> None:
        type(self._original).__set__(self._original, instance, value)

    def __delete__(self, instance: Any) -> None:
        type(self._original).__delete__(self._original, instance)


def _bound(tap: Callable[..., Any], instance: Any, found: Callable[..., Any]) -> Callable[..., Any]:
    def unbound(self: Any, /, *args: Any, **named: Any) -> Any:
        return found(*args, **named)

    functools.update_wrapper(unbound, found)
    unbound._original = found  # type: ignore[attr-defined]
    return tap(unbound).__get__(instance)  # type: ignore[no-any-return]


def _tap_made_up(owner: type, name: str, tap: Callable[..., Any]) -> bool:
    """The class has a `__getattr__`, which may know the name: a forwarder of all it does not."""
    found = _found(owner, "__getattr__")
    if not isinstance(found, FunctionType):
        return False
    if not hasattr(found, _OURS):
        original = (
            found if "__getattr__" in vars(owner) else _inherited(owner, "__getattr__", found)
        )
        found = _watched(original)
        owner.__getattr__ = found  # type: ignore[attr-defined]
    getattr(found, _OURS)[name] = tap
    return True


def _watched(original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def __getattr__(self: Any, name: str) -> Any:
        made = original(self, name)
        tap = taps.get(name)
        if tap is None or not callable(made):
            return made
        tapped = quietly(_bound, tap, self, made)
        return made if tapped is None else tapped

    taps: dict[str, Callable[..., Any]] = {}
    setattr(__getattr__, _OURS, taps)
    return __getattr__


def when_asked_for(module: ModuleType, name: str, tell: Callable[[Any], None]) -> None:
    """Report what a module's own `__getattr__` finds under a name, when it is asked for it."""
    original = module.__dict__.get("__getattr__")
    if not callable(original):
        return

    @functools.wraps(original)
    def __getattr__(asked: str) -> Any:
        found = original(asked)
        if asked == name:
            quietly(tell, found)
        return found

    module.__dict__["__getattr__"] = __getattr__


# -- the kinds of tap --------------------------------------------------------------------------


def with_before(before: Callable[..., None], original: Callable[..., Any]) -> Callable[..., Any]:
    if _flags(original) & _RUNS_LATER:

        def enter(self: Any, args: Arguments, named: Named) -> None:
            before(self, args, named)

        return with_around(enter, original)

    @functools.wraps(original)
    def tapped(self: Any, /, *args: Any, **named: Any) -> Any:
        quietly(before, self, args, named)
        return original(self, *args, **named)

    return tapped


def with_after(after: Callable[..., None], original: Callable[..., Any]) -> Callable[..., Any]:
    """`after` sees what was returned, and is not called if the method raised."""

    def enter(self: Any, args: Arguments, named: Named) -> Leave:
        def leave(result: object, error: BaseException | None) -> None:
            if error is None:
                after(self, args, named, result)

        return leave

    return with_around(enter, original)


def with_around(
    enter: Callable[..., Leave | None], original: Callable[..., Any]
) -> Callable[..., Any]:
    """`enter` is called before, and what it returns, if anything, once the method is done."""
    flags = _flags(original)
    for flag, follow in _FOLLOWED_BY.values():
        if flags & flag:

            def begin(self: Any, /, *args: Any, **named: Any) -> tuple[Any, Leave | None]:
                leave = quietly(enter, self, args, named)
                return original(self, *args, **named), leave

            return functools.wraps(original)(follow(begin))

    @functools.wraps(original)
    def tapped(self: Any, /, *args: Any, **named: Any) -> Any:
        leave = quietly(enter, self, args, named)
        if leave is None:
            return original(self, *args, **named)
        try:
            result = original(self, *args, **named)
        except BaseException as error:
            quietly(leave, None, error)
            raise
        return _when_done(result, leave)

    return tapped


def _when_done(result: Any, leave: Leave) -> Any:
    """The result of a call, or, if that is still to come, something that waits for it."""
    known = _FOLLOWED_BY.get(type(result))
    if known is not None:
        made = known[1](lambda: (result, leave))()
        made.__name__, made.__qualname__ = result.__name__, result.__qualname__
        return made
    if hasattr(type(result), "add_done_callback"):
        quietly(result.add_done_callback, functools.partial(_done, leave))
    else:
        quietly(leave, result, None)
    return result


def _done(leave: Leave, future: Any) -> None:
    try:
        result = future.result()
    except BaseException as error:
        quietly(leave, None, error)
    else:
        quietly(leave, result, None)


def _coroutine(begin: Callable[..., tuple[Any, Leave | None]]) -> Callable[..., Any]:
    async def coroutine(*args: Any, **named: Any) -> Any:
        source, leave = begin(*args, **named)
        try:
            result = await source
        except BaseException as error:
            quietly(leave, None, error)
            raise
        quietly(leave, result, None)
        return result

    return coroutine


def _generator(begin: Callable[..., tuple[Any, Leave | None]]) -> Callable[..., Any]:
    def generator(*args: Any, **named: Any) -> Generator[Any, Any, Any]:
        source, leave = begin(*args, **named)
        try:
            result = yield from source
        except BaseException as error:
            quietly(leave, None, error)
            raise
        quietly(leave, result, None)
        return result

    return generator


def _async_generator(begin: Callable[..., tuple[Any, Leave | None]]) -> Callable[..., Any]:
    async def async_generator(*args: Any, **named: Any) -> AsyncGenerator[Any, Any]:
        source, leave = begin(*args, **named)
        try:
            item = await source.__anext__()
            while True:
                try:
                    sent = yield item
                except GeneratorExit:
                    await source.aclose()
                    raise
                except BaseException as error:
                    item = await source.athrow(error)
                else:
                    item = await source.asend(sent)
        except StopAsyncIteration:
            quietly(leave, None, None)
        except BaseException as error:
            quietly(leave, None, error)
            raise

    return async_generator


# By the type of what a call of such a function returns: its code's flag, and what relays it.
_FOLLOWED_BY: dict[type, tuple[int, Callable[..., Callable[..., Any]]]] = {
    CoroutineType: (0x80, _coroutine),
    GeneratorType: (0x20, _generator),
    AsyncGeneratorType: (0x200, _async_generator),
}


def _flags(function: Any) -> int:
    """The flags of its code, or of the code that it stands for."""
    function = getattr(function, "_original", function)
    function = getattr(function, "__func__", function)
    while isinstance(function, functools.partial):
        function = function.func
    flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
    return flags if isinstance(flags, int) else 0


def quietly(what: Callable[..., Any] | None, *args: Any) -> Any:
    try:
        return None if what is None else what(*args)
    except Exception as error:
        if is_the_agents(error):
            raise
        return None


def argument(args: Arguments, named: Named, place: int, name: str) -> Any:
    return named[name] if name in named else args[place] if len(args) > place else None
