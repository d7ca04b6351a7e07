"""The fuzzer's targets hold for what it begins with, and for bytes near it; `make fuzz` goes on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2]))
from fuzz.seeds import seeds
from fuzz.targets import TARGETS

SEEDS = seeds()
CHANGES = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=60, deadline=None)
@given(seed=st.sampled_from(SEEDS), changes=CHANGES, cut=st.integers(0, 50))
def test_it_holds_near_what_is_really_written(
    name: str, seed: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(seed[: len(seed) - cut])
    for place, value in changes:
        if data:
            data[place % len(data)] = value
    TARGETS[name](bytes(data))


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=600))
def test_it_holds_for_any_bytes(name: str, data: bytes) -> None:
    TARGETS[name](data)
