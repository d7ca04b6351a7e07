"""Records: what one end packs, the other unpacks; nothing that it can send does harm."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hermes_supervise.ipc import frames, records
from hermes_supervise.ipc.records import BadRecord, fit, fit_deltas, negotiate, pack, unpack
from hypothesis import given, settings
from hypothesis import strategies as st

# Every character, and lone surrogates: agents stream whatever a model generates.
texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=30)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(texts, st.dictionaries(texts, values, max_size=4))
def test_a_record_is_unpacked_as_it_was_packed(kind: str, fields: dict[str, Any]) -> None:
    record = {**fields, "kind": kind}
    payload = pack(record)
    assert unpack(payload) == record
    assert payload.isascii()


@settings(max_examples=200, deadline=None)
@given(texts, texts, st.booleans())
def test_a_compact_delta_means_the_same_as_one_in_json(
    session: str, text: str, reasoning: bool
) -> None:
    field = "reasoning" if reasoning else "text"
    payload = records.pack_delta(session, text, reasoning=reasoning)
    assert unpack(payload) == {"kind": "delta", "session": session, field: text}
    assert payload.endswith(text.encode("utf-8", "surrogatepass"))


def test_no_payload_can_hold_what_a_frame_begins_with() -> None:
    everything = "".join(map(chr, range(0x2000))) + "\udcf5\U0010ffff\xf5HS\x01"
    for payload in (pack({"kind": everything}), records.pack_delta("s", everything)):
        assert frames.MAGIC not in payload


def test_what_is_not_json_is_packed_as_its_repr() -> None:
    assert unpack(pack({"kind": "message", "at": {1}}))["at"] == "{1}"


def test_unknown_kinds_and_fields_are_kept() -> None:
    record = {"kind": "from the future", "mood": ["blue", {"deep": 1.5}], "session": "s"}
    assert unpack(pack(record)) == record


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"x",
        b"[]",
        b"null",
        b"{",
        b"{}",
        b'{"kind":null}',
        b'{"kind":7}',
        b'{"kind":"turn"',
        b'{"kind":"turn"} and more',
        b'{"kind":"\xff"}',
        b"{\x00",
        b'{"kind":"turn","n":' + b"9" * 5000 + b"}",
        b"t",
        b"t\xff\xff",
        b"t\x05\x00four",
        b"t\x01\x00\xff text",
        b"r\x01\x00s\xff",
    ],
)
def test_garbage_is_a_bad_record(payload: bytes) -> None:
    with pytest.raises(BadRecord):
        unpack(payload)


@pytest.mark.parametrize("head", [b"", b'{"kind":"turn","n":'])
@pytest.mark.parametrize("nest", [b"[", b'{"a":'])
def test_a_megabyte_of_nesting_is_a_bad_record(head: bytes, nest: bytes) -> None:
    with pytest.raises(BadRecord):
        unpack(head + nest * (1024 * 1024 // len(nest)))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_record_or_a_bad_one(payload: bytes) -> None:
    try:
        assert isinstance(unpack(payload)["kind"], str)
    except BadRecord:
        pass


# -- the limit -------------------------------------------------------------------------------


lengths = st.integers(0, 9000)


def message(content: object, **more: object) -> dict[str, object]:
    body = {"role": "user", "content": content}
    return {"kind": "message", "session": "s", "uid": "u", "message": body, **more}


def content_of(payload: bytes) -> Any:
    body = unpack(payload)["message"]
    assert isinstance(body, dict)
    return body["content"]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.sampled_from("aü\ud800🙂\n"), lengths), max_size=3), max_size=6),
    st.integers(5000, 20_000),
)
def test_a_record_is_cut_to_the_limit_with_a_marker(
    parts: list[list[tuple[str, int]]], limit: int
) -> None:
    texts = ["".join(character * count for character, count in part) for part in parts]
    whole = pack(message(texts))
    payload = fit(message(texts), limit)
    assert len(payload) <= limit
    if len(whole) <= limit:
        assert payload == whole
        return
    found = unpack(payload)
    assert (found["kind"], found["session"], found["uid"]) == ("message", "s", "u")
    for before, after in zip(texts, content_of(payload), strict=True):
        if before != after:
            kept, _, marker = after.rpartition("\n[")
            assert marker.endswith(" characters cut here: the record was over the frame limit]")
            assert before.startswith(kept)
            assert int(marker.split()[0]) == len(before) - len(kept)
            assert len(pack({"": before})) >= 1024, "short texts are left alone"


def test_a_cut_takes_only_what_it_must() -> None:
    payload = fit(message("x" * 100_000), 50_000)
    assert len(payload) > 49_000
    assert content_of(payload).startswith("x" * 49_000)


def test_a_history_of_very_many_long_messages_is_cut_in_a_few_steps() -> None:
    history = [{"role": "user", "content": "x" * 2000} for _ in range(5000)]
    packed = []
    real = records._as_json
    try:
        records._as_json = lambda record: packed.append(1) or real(record)  # type: ignore[func-returns-value]
        payload = fit({"kind": "history", "session": "s", "messages": history}, 5_000_000)
    finally:
        records._as_json = real
    assert len(payload) <= 5_000_000
    assert len(packed) < 5, "packing is what takes time, and the agent waits for it"


def test_unevenly_spread_escapes_do_not_keep_a_record_over_the_limit() -> None:
    whole = "ü" * 50_000 + "x" * 50_000
    for record in (message(whole), {"kind": "tool", "session": "s", "result": whole}):
        limit = len(pack(record)) - 1
        payload = fit(record, limit)
        assert limit - 2000 < len(payload) <= limit


def test_a_long_repr_is_cut_as_well() -> None:
    payload = fit(message(b"\x00" * 20_000), 10_000)
    assert len(payload) <= 10_000
    assert content_of(payload).startswith("b'\\x00\\x00")


def test_a_record_of_many_short_values_says_only_that_it_was_cut() -> None:
    payload = fit(message(["short"] * 5000), 10_000)
    assert unpack(payload) == {"kind": "message", "session": "s", "cut": True}


def test_the_default_limit_is_that_of_a_frame() -> None:
    payload = fit(message("ü" * (frames.LIMIT // 4)))
    assert frames.LIMIT // 2 < len(payload) <= frames.LIMIT
    frames.encode(1, payload)


@settings(max_examples=200, deadline=None)
@given(texts, texts, st.booleans(), st.integers(0, 200))
def test_pieces_of_a_delta_fit_and_join_to_the_text(
    session: str, text: str, reasoning: bool, room: int
) -> None:
    limit = 3 + 4 * len(session) + 4 + room
    pieces = fit_deltas(session, text, reasoning=reasoning, limit=limit)
    field = "reasoning" if reasoning else "text"
    unpacked = [unpack(piece) for piece in pieces]
    assert "".join(str(record[field]) for record in unpacked) == text
    assert all(len(piece) <= limit for piece in pieces)
    assert all(record["session"] == session for record in unpacked)
    assert pieces


# -- versions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs", "agreed"),
    [
        ((1, 1), (1, 1), 1),
        ((1, 1), (1, 9), 1),
        ((1, 3), (1, 1), 1),
        ((2, 5), (1, 4), 4),
        ((2, 5), (5, 9), 5),
        ((2, 5), (6, 9), None),
        ((2, 5), (1, 1), None),
        ((2, 5), (4, 3), None),
        ((1, 1), (0, 0), None),
        ((1, 1), (None, 1), None),
        ((1, 1), (1, "1"), None),
        ((1, 1), (1, None), None),
        ((1, 1), (1.0, 1), None),
    ],
)
def test_two_ends_speak_the_newest_version_both_know(
    monkeypatch: pytest.MonkeyPatch, ours: tuple[int, int], theirs: tuple[Any, Any], agreed: Any
) -> None:
    monkeypatch.setattr(records, "OLDEST", ours[0])
    monkeypatch.setattr(records, "VERSION", ours[1])
    assert negotiate(*theirs) == agreed


def test_pack_is_plain_json_that_any_language_reads() -> None:
    assert json.loads(pack({"kind": "turn", "phase": "start"})) == {
        "kind": "turn",
        "phase": "start",
    }


@given(text=st.text(min_size=900, max_size=1500), rest=st.dictionaries(st.text(), st.text()))
def test_a_long_text_follows_the_json_and_is_unpacked_whole(
    text: str, rest: dict[str, str]
) -> None:
    record = {**message(""), "at": 1.5, "message": {**rest, "content": text}}
    assert unpack(pack(record)) == record


@pytest.mark.parametrize("room", range(1000, 1020))
def test_a_long_text_is_cut_between_two_characters(room: int) -> None:
    whole = message("aßç\u20ac\U0001f600" * 400)
    payload = fit(whole, room)
    assert len(payload) <= room
    text = content_of(payload)
    kept, _, marker = text.partition("\n[")
    assert whole["message"]["content"].startswith(kept) and len(kept) > 300
    assert int(marker.split()[0]) == 2000 - len(kept)


@pytest.mark.parametrize(
    "payload",
    [
        b"m",
        b"m\xff\xff\xff\xff{}",
        b"m\x02\0\0\0{}",
        b'm\x11\0\0\0{"kind":"message"}text',
        b'm\x1f\0\0\0{"kind":"message","message":[]}text',
        b'm\x1f\0\0\0{"kind":"message","message":{}}\xff\xfe',
        b'm\x05\0\0\0m\0\0\0\0{"kind":"message","message":{}}',
    ],
)
def test_a_long_message_without_a_message_is_refused(payload: bytes) -> None:
    with pytest.raises(records.BadRecord):
        unpack(payload)


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["\ud83d", "\ude00"], "\U0001f600"),
        (["a\ud83d", "", "\ude00b"], "a\U0001f600b"),
        (["\ud83d\ude00\ud83d", "\ude01"], "\U0001f600\U0001f601"),
        (["\ud83d", "a", "\ude00"], "\ud83da\ude00"),
        (["\ude00", "\ud83d"], "\ude00\ud83d"),
        (["\u00e9", "\U0001f600"], "\u00e9\U0001f600"),
        ([], ""),
    ],
)
def test_halves_of_a_character_in_two_deltas_become_one_character(
    pieces: list[str], text: str
) -> None:
    payloads = [records.pack_delta("s", piece) for piece in pieces]
    unpacked = [str(records.unpack(payload)["text"]) for payload in payloads]
    assert unpacked == pieces, "the wire carries them as they are"
    assert records.join_pieces(unpacked) == text


@pytest.mark.parametrize("length", [1, 300])
def test_halves_in_one_message_become_one_character_whatever_its_length(length: int) -> None:
    content = "." * length + "\ud83d\ude00"
    record = {"kind": "message", "message": {"role": "user", "content": content}}
    message = records.unpack(records.pack(record))["message"]
    assert message == {"role": "user", "content": "." * length + "\U0001f600"}
