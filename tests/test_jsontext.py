"""JSON without the package around its core: the same as with it."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
from hermes_supervise.ipc import jsontext
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
        return "a value", jsontext.loads(text)
    except ValueError:
        return "nothing", None


def read_by_json(text: str) -> tuple[str, object]:
    try:
        return "a value", json.loads(text)
    except ValueError:
        return "nothing", None


@given(VALUES)
def test_a_value_is_written_and_read_as_by_json(value: object) -> None:
    assert jsontext.dumps(value) == json.dumps(value)
    assert jsontext.compact(value) == json.dumps(value, separators=(",", ":"))
    assert same(jsontext.loads(json.dumps(value, indent=1)), value)


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


def test_what_has_no_form_is_refused_or_shown() -> None:
    with pytest.raises(TypeError, match="set"):
        jsontext.dumps({"a": set()})
    assert jsontext.compact({"a": set()}) == '{"a":"set()"}'


def test_a_python_without_the_core_does_the_same() -> None:
    program = """
import sys
sys.modules["_json"] = None
from hermes_supervise.ipc import jsontext
value = {"a": [1, 2.5, None, "\\ud800\\u00e9"], "b": {}}
assert jsontext.loads(" " + jsontext.dumps(value) + "\\n") == value
print(jsontext.compact([value, 1j]), jsontext.quoted("\\u00e9"))
for wrong in ("", "[", "{} x"):
    try:
        jsontext.loads(wrong)
    except ValueError:
        continue
    sys.exit(f"{wrong!r} was taken for JSON")
"""
    without = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    said = json.dumps([{"a": [1, 2.5, None, "\ud800\u00e9"], "b": {}}, "1j"], separators=(",", ":"))
    assert without.stdout == f'{said} "\\u00e9"\n'
