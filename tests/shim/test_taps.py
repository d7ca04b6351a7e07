"""Taps on somebody else's classes: found wherever Python finds the method, and of its kind."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import Future
from types import ModuleType
from typing import Any

import pytest
from hermes_supervise.agent_shim.adapters import taps

Seen = list[tuple[Any, ...]]


@pytest.fixture
def seen() -> Seen:
    return []


def before(seen: Seen) -> Callable[..., Any]:
    return functools.partial(taps.with_before, lambda self, args, named: seen.append((args, named)))


def after(seen: Seen) -> Callable[..., Any]:
    return functools.partial(
        taps.with_after, lambda self, args, named, result: seen.append((args, result))
    )


def around(seen: Seen) -> Callable[..., Any]:
    def enter(self: Any, args: Any, named: Any) -> Callable[..., None]:
        seen.append(("enter", *args))
        return lambda result, error: seen.append(("leave", result, type(error).__name__))

    return functools.partial(taps.with_around, enter)


class Mixin:
    def speak(self, text: str, *, loud: bool = False) -> str:
        """Say it."""
        return text.upper() if loud else text


class Agent(Mixin):
    pass


def fresh(*bases: type, **attributes: Any) -> Any:
    return type("Agent", bases, attributes)


def test_an_inherited_method_is_tapped_in_the_class_itself(seen: Seen) -> None:
    made = fresh(Mixin)
    assert taps.replace(made, "speak", before(seen))
    assert made().speak("hi", loud=True) == "HI"
    assert seen == [(("hi",), {"loud": True})]
    assert Mixin().speak("not ours") == "not ours"
    assert len(seen) == 1, "the base class is not ours to change"
    assert taps.is_tapped(made, "speak")
    assert inspect.signature(made.speak) == inspect.signature(Mixin.speak)


def test_who_replaces_the_inherited_method_later_is_heard(seen: Seen) -> None:
    base = fresh(speak=lambda self, text: "old")
    made = fresh(base)
    taps.replace(made, "speak", after(seen))
    base.speak = lambda self, text: "new"
    assert made().speak("x") == "new"
    assert seen == [(("x",), "new")]


def test_a_class_below_finds_what_python_would_find(seen: Seen) -> None:
    made = fresh(Mixin)
    taps.replace(made, "speak", before(seen))
    quick = type("Quick", (Mixin,), {"speak": lambda self, text: "quick " + text})
    below = type("Below", (made, quick), {})
    assert below().speak("x") == "quick x"
    over = type(
        "Over", (made,), {"speak": lambda self, text: "over " + super(over, self).speak(text)}
    )
    assert over().speak("x") == "over x"
    assert len(seen) == 2


def test_a_method_called_with_an_object_of_another_class_works(seen: Seen) -> None:
    made = fresh(Mixin)
    taps.replace(made, "speak", before(seen))
    assert made.speak(object(), "x") == "x"


def test_what_is_tapped_above_is_not_tapped_twice(seen: Seen) -> None:
    above = fresh(Mixin)
    below = fresh(above)
    taps.replace(above, "speak", before(seen))
    assert taps.replace(below, "speak", before(seen))
    below().speak("once")
    assert len(seen) == 1


def test_a_method_that_is_nowhere_is_not_tapped(seen: Seen) -> None:
    assert not taps.replace(fresh(Mixin), "sing", before(seen))
    assert not taps.replace(fresh(Mixin, sing=3), "sing", before(seen))
    assert not hasattr(fresh(Mixin)(), "sing")


def forwarding(name: str) -> Any:
    return property(lambda self: getattr(self.behind, name))


class Forwarder:
    """An object that binds itself, as a lazy forwarder may."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(Mixin.speak, instance)


@pytest.mark.parametrize(
    "attribute",
    [
        staticmethod(lambda text: text),
        classmethod(lambda cls, text: text),
        functools.partialmethod(Mixin.speak, loud=False),
        forwarding("speak"),
        Forwarder(),
    ],
    ids=["static", "class", "partial", "property", "descriptor"],
)
def test_what_is_no_function_is_tapped(seen: Seen, attribute: Any) -> None:
    made = fresh(Agent, speak=attribute, behind=Mixin())
    assert taps.replace(made, "speak", after(seen))
    assert made().speak("hi") == "hi"
    assert seen == [(("hi",), "hi")]
    assert taps.is_tapped(made, "speak")


def test_an_object_that_has_a_method_of_its_own_keeps_it(seen: Seen) -> None:
    made = fresh(Agent, speak=staticmethod(lambda text: text))
    taps.replace(made, "speak", after(seen))
    agent = made()
    agent.speak = lambda text: "mine"
    assert agent.speak("x") == "mine"


def test_a_property_that_can_be_set_can_still_be_set(seen: Seen) -> None:
    def put(self: Any, value: Any) -> None:
        self.kept = value

    made = fresh(Agent, speak=property(lambda self: self.kept, put))
    taps.replace(made, "speak", after(seen))
    agent = made()
    agent.speak = lambda text: "kept " + text
    assert agent.speak("x") == "kept x"
    assert seen == [(("x",), "kept x")]


def test_names_that_getattr_makes_up_are_watched(seen: Seen) -> None:
    def made_up(self: Any, name: str) -> Any:
        if name in ("speak", "number"):
            return getattr(self.behind, name)
        raise AttributeError(name)

    behind = Mixin()
    behind.number = 7  # type: ignore[attr-defined]
    made = fresh(behind=behind, __getattr__=made_up)
    assert taps.replace(made, "speak", after(seen))
    assert taps.replace(made, "number", after(seen))
    assert made().speak("hi") == "hi"
    assert made().number == 7
    assert not hasattr(made(), "sing")
    assert seen == [(("hi",), "hi")]
    assert taps.is_tapped(made, "speak")
    assert not taps.is_tapped(made, "sing")


def test_a_class_that_its_module_makes_on_access_is_reported_then() -> None:
    module = ModuleType("lazy")
    made = {"Agent": Agent, "other": 1}
    module.__dict__["__getattr__"] = made.__getitem__
    sent: list[Any] = []
    taps.when_asked_for(module, "Agent", sent.append)
    assert module.other == 1
    assert sent == []
    assert module.Agent is Agent
    assert sent == [Agent]


# -- kinds -------------------------------------------------------------------------------------


class Async:
    async def speak(self, text: str) -> str:
        await asyncio.sleep(0)
        if text == "fail":
            raise ValueError(text)
        return text

    async def stream(self, text: str) -> AsyncGenerator[str, str]:
        for word in text.split():
            try:
                got = yield word
            except LookupError:
                got = "thrown"
            if got:
                yield f"got {got}"

    def pieces(self, text: str) -> Generator[str, str, int]:
        for word in text.split():
            got = yield word
            if got:
                yield f"got {got}"
        return 3

    def forward(self, text: str) -> Any:
        return self.speak(text)

    def forward_stream(self, text: str) -> Any:
        return self.stream(text)

    def future(self, text: str) -> Future[str]:
        made: Future[str] = Future()
        made.set_result(text)
        return made


def test_around_a_coroutine_function_is_a_coroutine_function(seen: Seen) -> None:
    made = fresh(Async)
    taps.replace(made, "speak", around(seen))
    assert inspect.iscoroutinefunction(made.speak)
    waiting = made().speak("hi")
    assert seen == [], "a coroutine does nothing until it is awaited"
    assert asyncio.run(waiting) == "hi"
    with pytest.raises(ValueError, match="fail"):
        asyncio.run(made().speak("fail"))
    assert seen == [
        ("enter", "hi"), ("leave", "hi", "NoneType"),
        ("enter", "fail"), ("leave", None, "ValueError"),
    ]  # fmt: skip


@pytest.mark.parametrize("tap", [before, after, around])
def test_a_look_before_and_after_a_coroutine_function_keeps_its_kind(
    seen: Seen, tap: Callable[[Seen], Any]
) -> None:
    made = fresh(Async)
    taps.replace(made, "speak", tap(seen))
    assert inspect.iscoroutinefunction(made.speak)
    assert asyncio.run(made().speak("hi")) == "hi"
    assert "hi" in str(seen)


def test_a_cancelled_coroutine_is_cancelled(seen: Seen) -> None:
    made = fresh(Async)
    taps.replace(made, "speak", around(seen))

    async def cancel() -> None:
        task = asyncio.ensure_future(made().speak("hi"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert seen[-1] == ("leave", None, "CancelledError")


@pytest.mark.parametrize("name", ["stream", "forward_stream"])
def test_around_an_async_generator_all_that_is_sent_and_thrown_gets_through(
    seen: Seen, name: str
) -> None:
    made = fresh(Async)
    taps.replace(made, name, around(seen))
    assert inspect.isasyncgenfunction(made.stream)
    assert inspect.isasyncgenfunction(getattr(made, name)) == (name == "stream")

    async def talk() -> list[str]:
        source = getattr(made(), name)("one two three")
        found = [await source.__anext__(), await source.asend("x"), await source.__anext__()]
        found.append(await source.athrow(LookupError()))
        async for word in source:
            found.append(word)
        return found

    assert asyncio.run(talk()) == ["one", "got x", "two", "got thrown", "three"]
    assert seen == [("enter", "one two three"), ("leave", None, "NoneType")]


def test_an_async_generator_that_is_closed_early_is_closed(seen: Seen) -> None:
    made = fresh(Async)
    taps.replace(made, "stream", around(seen))

    async def stop() -> None:
        source = made().stream("one two")
        await source.__anext__()
        await source.aclose()

    asyncio.run(stop())
    assert seen == [("enter", "one two"), ("leave", None, "GeneratorExit")]


def test_around_a_generator_sends_and_returns(seen: Seen) -> None:
    made = fresh(Async)
    taps.replace(made, "pieces", around(seen))
    assert inspect.isgeneratorfunction(made.pieces)
    source = made().pieces("one two")
    assert [next(source), source.send("x"), next(source)] == ["one", "got x", "two"]
    with pytest.raises(StopIteration) as ended:
        next(source)
    assert ended.value.value == 3
    assert seen == [("enter", "one two"), ("leave", 3, "NoneType")]


def test_a_forwarder_to_a_coroutine_is_left_when_that_is_done(seen: Seen) -> None:
    made = fresh(Async)
    taps.replace(made, "forward", around(seen))
    waiting = made().forward("hi")
    assert inspect.iscoroutine(waiting)
    assert waiting.__name__ == "speak"
    assert seen == [("enter", "hi")]
    assert asyncio.run(waiting) == "hi"
    assert seen[1:] == [("leave", "hi", "NoneType")]


def test_a_future_is_returned_as_it_is_and_waited_for(seen: Seen) -> None:
    made = fresh(Async)
    taps.replace(made, "future", around(seen))
    future = made().future("hi")
    assert type(future) is Future
    assert future.result() == "hi"
    assert seen == [("enter", "hi"), ("leave", "hi", "NoneType")]


@pytest.mark.parametrize("name", ["speak", "stream", "pieces", "forward"])
def test_a_look_that_fails_is_not_felt(name: str) -> None:
    def fail(*given: Any) -> Any:
        raise RuntimeError("ours")

    made = fresh(Async)
    taps.replace(made, name, functools.partial(taps.with_around, fail))

    async def use() -> list[str]:
        result = getattr(made(), name)("hi")
        if inspect.isawaitable(result):
            return [await result]
        if inspect.isasyncgen(result):
            return [word async for word in result]
        return list(result)

    assert asyncio.run(use()) == ["hi"]
