"""The properties to fuzz: one function for each reader of foreign bytes. It raises if one fails.

Each takes the fuzzer's bytes. Pure: no file, no socket, no process.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hermes_supervise.ipc import frames, records, ring
from hermes_supervise.supervisor.model.stream import Session
from hermes_supervise.supervisor.recovery.compact import essential
from hermes_supervise.supervisor.recovery.replay import replay
from hermes_supervise.supervisor.statedb.reconcile import Insert, Row, call_ids, plan

from .choices import Choices

KINDS = (
    "session", "history", "turn", "message", "delta", "tool", "settled", "rewritten", "rotated",
    "reset", "title", "ended", "hook", "bye", "hello", "peer", "death", "compacted", "no such kind",
)  # fmt: skip
_NAMES = ("chat", "other", "third")
_AT = 1_700_000_000.0


def decoder(data: bytes) -> None:
    """However the bytes are split, the decoder returns the same frames, and no others."""
    whole = frames.Decoder()
    at_once = whole.feed(data)
    pieces = frames.Decoder()
    choose = Choices(data)
    one_by_one, place = [], 0
    while place < len(data):
        step = 1 + choose.below(64)
        one_by_one += pieces.feed(data[place : place + step])
        place += step
    assert one_by_one == at_once
    assert (pieces.damage is None) == (whole.damage is None)
    for seq, frame in at_once:
        assert frames.encode(seq, frames.payload_of(frame)) == frame
    salvaged = frames.salvage(data)
    assert salvaged.frames[: len(at_once)] == at_once, "what is whole before the damage is kept"
    assert b"".join(frame for _, frame in at_once) == data[: sum(len(f) for _, f in at_once)]


def damaged(data: bytes) -> None:
    """One byte of a file is changed, or the file is cut: all other frames are still found."""
    choose = Choices(data)
    whole = [
        (n, frames.encode(n, choose.bytes(choose.below(60))))
        for n in range(1, 2 + choose.below(20))
    ]
    file = bytearray(b"".join(frame for _, frame in whole))
    place = choose.below(len(file))
    if choose.below(2):
        file[place] ^= 1 + choose.below(255)
    else:
        del file[place:]
    found = frames.salvage(bytes(file)).frames
    offset, hit = 0, len(whole)
    for index, (_, frame) in enumerate(whole):
        if offset <= place < offset + len(frame):
            hit = index
        offset += len(frame)
    assert found[:hit] == whole[:hit], "everything before the damage"
    assert all(pair in whole for pair in found if pair[1] in dict(whole).values())
    if len(file) == offset:
        assert found[hit:] == whole[hit + 1 :], "and everything behind it"


def record(data: bytes) -> None:
    """A payload is either refused or a record that survives packing and unpacking."""
    try:
        unpacked = records.unpack(data)
    except records.BadRecord:
        return
    assert isinstance(unpacked["kind"], str)
    if _is_finite(unpacked):
        assert records.unpack(records.pack(unpacked)) == unpacked
    limit = 200 + len(data) // 2
    assert len(records.fit(unpacked, limit)) <= max(limit, _smallest(unpacked))


def in_ring(data: bytes) -> None:
    """Whatever a ring file contains, only whole frames are read from it, once each and in order."""
    choose = Choices(data)
    after = choose.below(5)
    found = ring.frames_after(data, after)
    numbers = [seq for seq, _ in found]
    assert numbers == sorted(numbers)
    for seq, frame in found:
        assert seq > after and frames.encode(seq, frames.payload_of(frame)) == frame
    ring.hello_in(data)


def replayed(data: bytes) -> None:
    """Any records in any order replay to the same sessions every time, and replay to the same
    sessions after compaction."""
    stream = _stream(Choices(data))
    first = replay(stream)
    second = replay(stream)
    assert _outline(first.sessions) == _outline(second.sessions)
    kept = essential(stream)
    if kept is not stream:
        assert _outline(replay(kept).sessions) == _outline(first.sessions)


def reconciled(data: bytes) -> None:
    """Whatever rows are there, a plan inserts no message twice, and the next one is no longer."""
    choose = Choices(data)
    rows = [_row(choose, number) for number in range(1, 1 + choose.below(8))]
    for session in replay(_stream(choose)).sessions.values():
        first = plan(session, rows, _AT + 100)
        uids = [insert.uid for insert in first if insert.kind == "message"]
        assert len(uids) == len(set(uids)), "one message, one row"
        assert plan(session, rows, _AT + 100) == first, "the same rows, the same plan"
        after = rows + _rows_of(first, rows)
        second = [insert for insert in plan(session, after, _AT + 100) if not insert.late]
        assert len(second) <= len(first), "it gets no longer"


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (decoder, damaged, record, in_ring, replayed, reconciled)
}


def _stream(choose: Choices) -> list[tuple[int, bytes]]:
    """Records of known kinds; most fields have valid values, some have arbitrary ones."""
    stream: list[tuple[int, bytes]] = []
    seq = 0
    while choose.left > 0 and len(stream) < 60:
        seq += 1 + (choose.below(20) == 0)
        kind = choose.one_of(KINDS)
        made: dict[str, Any] = {"kind": kind, "session": choose.one_of(_NAMES), "at": _AT + seq}
        made |= _fields(choose, kind)
        if choose.below(6) == 0:
            made[choose.one_of(tuple(made))] = choose.value()
            made["kind"] = kind
        handshake = kind in ("hello", "peer", "death", "compacted")
        number = frames.HANDSHAKE if handshake else seq
        stream.append((number, frames.encode(number, records.pack(made))))
    return stream


def _fields(choose: Choices, kind: str) -> dict[str, Any]:
    calls = ("call-1", "call-2")
    if kind == "message":
        message = {
            "role": choose.one_of(("user", "assistant", "tool", "system")),
            "content": choose.text(),
        }
        if choose.below(3) == 0:
            function = {"name": "look", "arguments": "{}"}
            message["tool_calls"] = [{"id": choose.one_of(calls), "function": function}]
        if message["role"] == "tool":
            message["tool_call_id"] = choose.one_of(calls)
        return {"uid": f"u{choose.below(6)}", "message": message}
    if kind == "settled":
        return {"uids": [f"u{choose.below(6)}"], "rows": [choose.below(9)] * choose.below(2)}
    if kind == "delta":
        return {"text": choose.text(), "restart": not choose.below(4)}
    return {
        "tool": {
            "phase": choose.one_of(("start", "end")),
            "call": choose.one_of(calls),
            "name": "look",
        },
        "turn": {"phase": choose.one_of(("start", "end"))},
        "rotated": {"new": choose.one_of(_NAMES), "reason": "compression"},
        "reset": {"new": choose.one_of(_NAMES)},
        "title": {"title": choose.text()},
        "ended": {"reason": choose.text()},
        "hook": {"name": "on_session_end"},
        "history": {"messages": [{"role": "user", "content": choose.text()}]},
        "death": {"signal": choose.below(40)},
        "compacted": {
            "through": choose.below(10),
            "sessions": choose.value(),
            "key": choose.value(),
        },
    }.get(kind, {})


def _row(choose: Choices, id: int) -> Row:
    role = choose.one_of(("user", "assistant", "tool"))
    call = "call-1" if role == "tool" else None
    return Row(id, role, choose.text(), call, (), _AT + choose.below(60))


def _rows_of(inserts: list[Insert], rows: list[Row]) -> list[Row]:
    first = max([row.id for row in rows], default=0) + 1
    made = []
    for number, insert in enumerate(inserts, first):
        message = insert.message
        calls = call_ids(message.get("tool_calls"))
        content, call = message.get("content"), message.get("tool_call_id")
        made.append(Row(number, message["role"], content, call, calls, insert.at))
    return made


def _outline(sessions: dict[str, Session]) -> dict[str, object]:
    """For each session, what recovery would insert, and how the session ends."""
    return {
        id: (
            [(insert.message, insert.kind) for insert in plan(session, [], _AT + 100)],
            session.ended,
            session.title,
            session.in_flight,
        )
        for id, session in sessions.items()
    }


def _is_finite(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _smallest(record: dict[str, object]) -> int:
    """How small a record can get by shortening: its kind and its session stay whole."""
    return len(
        records.pack({"kind": record["kind"], "session": record.get("session"), "cut": True})
    )
