"""Our own dataclasses against the real ones, for the first object and the hundredth."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hermes_supervise.supervisor import plain


def made(of: Any) -> Any:
    class Made:
        first: int
        second: str = "two"
        third: list[int] = of.field(default_factory=list)

    return of.dataclass(Made)


@pytest.mark.parametrize("before", [0, 100])
def test_objects_are_made_as_by_dataclasses(before: int) -> None:
    ours, theirs = made(plain), made(dataclasses)
    for _ in range(before):
        ours(0)
    for given, named in [
        ((1,), {}), ((1, "b"), {}), ((1, "b", [3]), {}), ((), {"first": 1}),
        ((1,), {"third": [4]}), ((), {"third": [4], "first": 2, "second": "c"}),
    ]:  # fmt: skip
        one = ours(*given, **named)
        assert vars(one) == vars(theirs(*given, **named))
        assert list(vars(one)) == ["first", "second", "third"]
        assert plain.asdict(one) == dataclasses.asdict(theirs(*given, **named))
        assert one == ours(*given, **named) and one != ours(9)
        assert repr(one) == repr(theirs(*given, **named))
        assert plain.replace(one, first=7) == ours(7, one.second, one.third)
    assert ours(1).third is not ours(1).third


@pytest.mark.parametrize("before", [0, 100])
def test_what_is_refused_is_refused_in_the_same_words(before: int) -> None:
    ours, theirs = made(plain), made(dataclasses)
    for _ in range(before):
        ours(0)
    for given, named in [
        ((), {}), ((1, "b", [], 4), {}), ((1,), {"first": 2}), ((1,), {"more": 2}),
        ((), {"second": "b"}),
    ]:  # fmt: skip
        with pytest.raises(TypeError) as expected:
            theirs(*given, **named)
        with pytest.raises(TypeError) as refused:
            ours(*given, **named)
        assert str(refused.value) == str(expected.value)
