"""The stand-in for `json`: what it writes and reads is what `json` writes and reads."""

from __future__ import annotations

import json
import math

import pytest
from hermes_supervise.ipc.lightweight import json as lightweight
from hypothesis import given
from hypothesis import strategies as st

TEXTS = st.text(st.characters(), max_size=20)  # lone surrogates among them
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=20
)
NOT_QUITE = [
    "", " ", "{", "[1,]", "[1 2]", "{}{}", "{} x", "nul", "01", "1.", ".5", "+1", "--1", "'a'",
    '"a', '"\n"', '"\\x"', '"\\ud8"', "{1:2}", '{"a":}', '{"a" 1}', "\ufeff{}", "\x00", "[1]\x0c",
    "-", "Infinit", "\u00a0{}", "9" * 5000,
]  # fmt: skip


def same(one: object, other: object) -> bool:
    """Equal, also where a NaN is not equal to itself."""
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and one == other


def read(text: str) -> tuple[str, object]:
    try:
        return "a value", lightweight.loads(text)
    except lightweight.NotJson:
        return "nothing", None


def read_by_json(text: str) -> tuple[str, object]:
    try:
        return "a value", json.loads(text)
    except ValueError:
        return "nothing", None


@given(VALUES)
def test_a_value_is_written_and_read_as_by_json(value: object) -> None:
    assert lightweight.dumps(value) == json.dumps(value)
    assert lightweight.compact(value) == json.dumps(value, separators=(",", ":"))
    assert same(lightweight.loads(json.dumps(value, indent=1)), value)


@given(VALUES, st.integers(0, 200), st.text(max_size=3))
def test_a_text_that_was_tampered_with_is_read_or_refused_as_by_json(
    value: object, place: int, put: str
) -> None:
    text = json.dumps(value)
    text = text[:place] + put + text[place + 1 :]
    ours, theirs = read(text), read_by_json(text)
    assert ours[0] == theirs[0]
    assert same(ours[1], theirs[1])


@pytest.mark.parametrize("text", NOT_QUITE)
def test_what_is_not_quite_json_is_refused_as_by_json(text: str) -> None:
    assert read(text) == read_by_json(text) == ("nothing", None)


def test_a_value_without_a_form_in_json_is_refused_or_written_as_its_repr() -> None:
    with pytest.raises(TypeError, match="set"):
        lightweight.dumps({"a": set()})
    assert lightweight.compact({"a": set()}) == '{"a":"set()"}'


def test_an_exception_of_a_signal_handler_is_not_taken_for_malformed_json(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handler may be the agent's, and raise what the agent waits for."""

    def interrupted(text: str, start: int) -> tuple[object, int]:
        def handler(signum: int, frame: object) -> None:
            raise TimeoutError

        import inspect

        handler(14, inspect.currentframe())
        raise AssertionError

    monkeypatch.setattr(lightweight, "_scan", interrupted)
    with pytest.raises(TimeoutError):
        lightweight.loads("{}")
