"""Frames: however the bytes are cut, they decode to the same, and no damage goes unseen."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hermes_supervise.ipc import frames
from hermes_supervise.ipc.frames import HEADER, LIMIT, MAGIC, Decoder, encode, salvage
from hypothesis import given, settings
from hypothesis import strategies as st

Frame = tuple[int, bytes]

# Among others payloads that hold what a frame begins with.
payloads = st.one_of(st.binary(max_size=40), st.just(MAGIC), st.just(encode(7, b"inner")[:-1]))
sequences = st.integers(0, 2**64 - 1)
runs = st.lists(st.tuples(sequences, payloads), min_size=1, max_size=6).map(
    lambda pairs: [(seq, encode(seq, payload)) for seq, payload in pairs]
)


def joined(run: list[Frame]) -> bytes:
    return b"".join(frame for _, frame in run)


def decoded(data: bytes, *cuts: int) -> tuple[list[Frame], Decoder]:
    decoder = Decoder()
    found: list[Frame] = []
    edges = [0, *sorted(cuts), len(data)]
    for start, stop in pairwise(edges):
        found += decoder.feed(data[start:stop])
    return found, decoder


def whole_before(run: list[Frame], offset: int) -> list[Frame]:
    """The frames that end before this byte."""
    end = 0
    found = []
    for seq, frame in run:
        end += len(frame)
        if end > offset:
            break
        found.append((seq, frame))
    return found


def test_a_frame_is_header_and_payload() -> None:
    frame = encode(5, b"hello")
    assert frame[: HEADER.size] + b"hello" == frame
    assert frames.payload_of(frame) == b"hello"
    assert decoded(frame)[0] == [(5, frame)]


@settings(max_examples=200, deadline=None)
@given(runs, st.data())
def test_any_split_of_the_bytes_decodes_the_same(run: list[Frame], data: st.DataObject) -> None:
    stream = joined(run)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    found, decoder = decoded(stream, *cuts)
    assert found == run
    assert decoder.damage is None
    assert decoder.pending == 0


@given(runs)
def test_byte_by_byte_decodes_the_same(run: list[Frame]) -> None:
    stream = joined(run)
    assert decoded(stream, *range(len(stream)))[0] == run


@settings(max_examples=400, deadline=None)
@given(runs, st.integers(1, 255), st.data())
def test_any_flipped_byte_is_seen_and_what_came_before_is_kept(
    run: list[Frame], xor: int, data: st.DataObject
) -> None:
    stream = bytearray(joined(run))
    where = data.draw(st.integers(0, len(stream) - 1))
    stream[where] ^= xor
    cut = data.draw(st.integers(0, len(stream)))
    found, decoder = decoded(bytes(stream), cut)
    assert found == whole_before(run, where)
    # A length that now says more than there is looks like a frame that is still to come.
    assert decoder.damage is not None or decoder.pending


def test_every_flip_of_every_bit_of_a_frame_is_seen() -> None:
    good = encode(1, b"before")
    frame = encode(2, b'{"kind":"turn"}')
    for where in range(len(frame)):
        for bit in range(8):
            bad = bytearray(frame)
            bad[where] ^= 1 << bit
            found, decoder = decoded(good + bytes(bad) + encode(3, b"behind"))
            assert found == [(1, good)]
            assert decoder.damage is not None or decoder.pending


@settings(max_examples=300, deadline=None)
@given(runs, st.data())
def test_any_missing_byte_is_seen_and_what_came_before_is_kept(
    run: list[Frame], data: st.DataObject
) -> None:
    stream = joined(run)
    where = data.draw(st.integers(0, len(stream) - 1))
    found, decoder = decoded(stream[:where] + stream[where + 1 :])
    before = whole_before(run, where)
    # A byte that equals its neighbour may be missing from the next frame just as well.
    assert found[: len(before)] == before
    assert len(found) <= len(before) + 1
    assert decoder.damage is not None or decoder.pending
    assert found == run[: len(found)]


@given(runs, st.data())
def test_a_torn_tail_is_pending_and_not_damage(run: list[Frame], data: st.DataObject) -> None:
    stream = joined(run)
    where = data.draw(st.integers(0, len(stream) - 1))
    found, decoder = decoded(stream[:where])
    assert found == whole_before(run, where)
    assert decoder.damage is None
    assert decoder.pending == where - len(joined(found))


@given(runs, st.binary(max_size=80))
def test_after_damage_the_decoder_ignores_everything(run: list[Frame], garbage: bytes) -> None:
    decoder = Decoder()
    kept = decoder.feed(encode(1, b"kept") + b"not a frame, and as long as a header is")
    assert [seq for seq, _ in kept] == [1]
    damage = decoder.damage
    assert damage is not None
    assert damage.offset == len(encode(1, b"kept"))
    assert decoder.feed(garbage + joined(run)) == []
    assert decoder.damage is damage
    assert decoder.pending == 0, "it keeps nothing of what it will never understand"


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_garbage_is_never_a_frame_and_never_raises(garbage: bytes, cuts: list[int]) -> None:
    found, _ = decoded(garbage, *(cut for cut in cuts if cut <= len(garbage)))
    assert found == []
    assert salvage(garbage).frames == []


# -- the limit -------------------------------------------------------------------------------


def test_a_payload_over_the_limit_is_refused_by_the_sender() -> None:
    with pytest.raises(frames.FrameTooLong, match="over the limit"):
        encode(1, bytes(LIMIT + 1))


def test_a_payload_of_exactly_the_limit_passes() -> None:
    frame = encode(1, bytes(LIMIT))
    assert decoded(frame, 3, 4096, LIMIT)[0] == [(1, frame)]


@pytest.mark.parametrize("length", [LIMIT + 1, 2**31, 2**32 - 1])
def test_a_header_with_an_absurd_length_is_refused_before_anything_is_collected(
    length: int,
) -> None:
    decoder = Decoder()
    good = encode(1, b"good")
    assert decoder.feed(good + HEADER.pack(MAGIC, length, 2, 0)) == [(1, good)]
    assert decoder.damage is not None
    assert "over the limit" in decoder.damage.reason
    assert decoder.damage.offset == len(good)
    assert decoder.pending == 0


# -- salvage ---------------------------------------------------------------------------------

FIRST, SECOND, THIRD = (encode(n, b"payload %d" % n) for n in (1, 2, 3))


def flipped(frame: bytes) -> bytes:
    return frame[:-2] + bytes([frame[-2] ^ 0x10]) + frame[-1:]


def magic_flipped(frame: bytes) -> bytes:
    return b"\x00" + frame[1:]


def grown(frame: bytes) -> bytes:
    """Its length says a little more than there is: it swallows the head of the next one."""
    return frame[:4] + bytes([frame[4] + 9]) + frame[5:]


def huge(frame: bytes) -> bytes:
    return frame[:4] + b"\xff\xff\xff\xff" + frame[8:]


def cut(frame: bytes) -> bytes:
    return frame[:-3]


def zeroed(frame: bytes) -> bytes:
    return bytes(len(frame))


def prefixed(frame: bytes) -> bytes:
    return b"garbage \xf5HS" + frame


DAMAGES = [flipped, magic_flipped, grown, huge, cut, zeroed]


@pytest.mark.parametrize("damage", DAMAGES)
def test_salvage_finds_what_follows_a_hole(damage: object) -> None:
    assert callable(damage)
    bad = damage(SECOND)
    assert decoded(FIRST + bad + THIRD)[0] == [(1, FIRST)], "the damage took"
    found = salvage(FIRST + bad + THIRD)
    assert found.frames == [(1, FIRST), (3, THIRD)]
    assert [hole.offset for hole in found.holes] == [len(FIRST)]
    assert f"{len(bad)} bytes long" in repr(found.holes[0])
    assert found.torn is None


def test_salvage_skips_garbage_between_two_frames() -> None:
    found = salvage(FIRST + prefixed(SECOND) + THIRD)
    assert found.frames == [(1, FIRST), (2, SECOND), (3, THIRD)]
    assert [hole.offset for hole in found.holes] == [len(FIRST)]
    assert found.torn is None


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_at_the_end_is_a_torn_tail(damage: object) -> None:
    assert callable(damage)
    found = salvage(FIRST + SECOND + damage(THIRD))
    assert found.frames == [(1, FIRST), (2, SECOND)]
    assert found.holes == []
    assert found.torn is not None
    assert found.torn.offset == len(FIRST + SECOND)


@pytest.mark.parametrize("tail", [b"", b"\xf5", MAGIC, THIRD[:19], THIRD[:-1], bytes(4096)])
def test_a_writer_that_died_leaves_no_hole(tail: bytes) -> None:
    found = salvage(FIRST + SECOND + tail)
    assert found.frames == [(1, FIRST), (2, SECOND)]
    assert found.holes == []
    assert (found.torn is None) == (tail == b"")


@settings(max_examples=300, deadline=None)
@given(runs, st.data())
def test_salvage_loses_only_the_frames_that_were_hit(run: list[Frame], data: st.DataObject) -> None:
    stream = joined(run)
    start = data.draw(st.integers(0, len(stream) - 1))
    stop = data.draw(st.integers(start + 1, min(len(stream), start + 30)))
    bad = stream[:start] + bytes(b ^ 0xFF for b in stream[start:stop]) + stream[stop:]
    found = salvage(bad)
    spared, end = [], 0
    for seq, frame in run:
        begin, end = end, end + len(frame)
        if end <= start or begin >= stop:
            spared.append((seq, frame))
    assert found.frames == spared
    assert (found.torn is not None) == (stop > len(stream) - len(run[-1][1]))
    assert found.holes or found.torn
