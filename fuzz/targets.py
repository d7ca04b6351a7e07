"""What must hold for any bytes: one function a reader, which raises where it does not.

Each takes the fuzzer's bytes. Pure: no file, no socket, no process.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hermes_supervise.ipc import frames, records, ring
from hermes_supervise.supervisor.recovery.compact import essential
from hermes_supervise.supervisor.recovery.reconcile import Insert, Row, call_ids, plan
from hermes_supervise.supervisor.recovery.replay import replay
from hermes_supervise.supervisor.recovery.told import Session

from .dice import Dice

KINDS = (
    "session", "history", "turn", "message", "delta", "tool", "settled", "rewritten", "rotated",
    "reset", "title", "ended", "hook", "bye", "hello", "peer", "death", "compacted", "no such kind",
)  # fmt: skip
_NAMES = ("chat", "other", "third")
_AT = 1_700_000_000.0


def decoder(data: bytes) -> None:
    """However the bytes are cut, the same frames come out, and none that is not in them."""
    whole = frames.Decoder()
    at_once = whole.feed(data)
    pieces = frames.Decoder()
    dice = Dice(data)
    one_by_one, place = [], 0
    while place < len(data):
        step = 1 + dice.below(64)
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
    """A file of frames with one byte changed, or cut: all the others are still found."""
    dice = Dice(data)
    said = [(n, frames.encode(n, dice.bytes(dice.below(60)))) for n in range(1, 2 + dice.below(20))]
    file = bytearray(b"".join(frame for _, frame in said))
    place = dice.below(len(file))
    if dice.below(2):
        file[place] ^= 1 + dice.below(255)
    else:
        del file[place:]
    found = frames.salvage(bytes(file)).frames
    offset, hit = 0, len(said)
    for index, (_, frame) in enumerate(said):
        if offset <= place < offset + len(frame):
            hit = index
        offset += len(frame)
    assert found[:hit] == said[:hit], "everything before the damage"
    assert all(one in said for one in found if one[1] in dict(said).values())
    if len(file) == offset:
        assert found[hit:] == said[hit + 1 :], "and everything behind it"


def record(data: bytes) -> None:
    """A payload is a record that can be said again, or refused; nothing else happens."""
    try:
        told = records.unpack(data)
    except records.BadRecord:
        return
    assert isinstance(told["kind"], str)
    if _is_finite(told):
        assert records.unpack(records.pack(told)) == told
    limit = 200 + len(data) // 2
    assert len(records.fit(told, limit)) <= max(limit, _smallest(told))


def in_ring(data: bytes) -> None:
    """Whatever a ring's file holds, only whole frames are taken from it, each once, in order."""
    dice = Dice(data)
    after = dice.below(5)
    found = ring.frames_after(data, after)
    numbers = [seq for seq, _ in found]
    assert numbers == sorted(numbers)
    for seq, frame in found:
        assert seq > after and frames.encode(seq, frames.payload_of(frame)) == frame
    ring.hello_in(data)


def replayed(data: bytes) -> None:
    """Any records in any order fold into sessions, the same ones each time; and what compaction
    keeps of them says the same."""
    stream = _stream(Dice(data))
    told = replay(stream)
    again = replay(stream)
    assert _outline(told.sessions) == _outline(again.sessions)
    kept = essential(stream)
    if kept is not stream:
        assert _outline(replay(kept).sessions) == _outline(told.sessions)


def reconciled(data: bytes) -> None:
    """A plan made for any rows puts nothing in twice: applied, it leaves nothing to do."""
    dice = Dice(data)
    rows = [_row(dice, number) for number in range(1, 1 + dice.below(8))]
    for session in replay(_stream(dice)).sessions.values():
        first = plan(session, rows, _AT + 100)
        uids = [one.uid for one in first if one.kind == "told"]
        assert len(uids) == len(set(uids)), "one message, one row"
        assert plan(session, rows, _AT + 100) == first, "the same rows, the same plan"
        after = rows + _rows_of(first, rows)
        second = [one for one in plan(session, after, _AT + 100) if not one.late]
        assert len(second) <= len(first), "it gets no longer"


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (decoder, damaged, record, in_ring, replayed, reconciled)
}


def _stream(dice: Dice) -> list[tuple[int, bytes]]:
    """Records of known kinds, with the fields they have, holding what they should or anything."""
    said: list[tuple[int, bytes]] = []
    seq = 0
    while dice.left > 0 and len(said) < 60:
        seq += 1 + (dice.below(20) == 0)
        kind = dice.one_of(KINDS)
        told: dict[str, Any] = {"kind": kind, "session": dice.one_of(_NAMES), "at": _AT + seq}
        told |= _fields(dice, kind)
        if dice.below(6) == 0:
            told[dice.one_of(tuple(told))] = dice.value()
            told["kind"] = kind
        handshake = kind in ("hello", "peer", "death", "compacted")
        number = frames.HANDSHAKE if handshake else seq
        said.append((number, frames.encode(number, records.pack(told))))
    return said


def _fields(dice: Dice, kind: str) -> dict[str, Any]:
    calls = ("call-1", "call-2")
    if kind == "message":
        message = {
            "role": dice.one_of(("user", "assistant", "tool", "system")),
            "content": dice.text(),
        }
        if dice.below(3) == 0:
            function = {"name": "look", "arguments": "{}"}
            message["tool_calls"] = [{"id": dice.one_of(calls), "function": function}]
        if message["role"] == "tool":
            message["tool_call_id"] = dice.one_of(calls)
        return {"uid": f"u{dice.below(6)}", "message": message}
    if kind == "settled":
        return {"uids": [f"u{dice.below(6)}"], "rows": [dice.below(9)] * dice.below(2)}
    if kind == "delta":
        return {"text": dice.text(), "restart": not dice.below(4)}
    return {
        "tool": {
            "phase": dice.one_of(("start", "end")),
            "call": dice.one_of(calls),
            "name": "look",
        },
        "turn": {"phase": dice.one_of(("start", "end"))},
        "rotated": {"new": dice.one_of(_NAMES), "reason": "compression"},
        "reset": {"new": dice.one_of(_NAMES)},
        "title": {"title": dice.text()},
        "ended": {"reason": dice.text()},
        "hook": {"name": "on_session_end"},
        "history": {"messages": [{"role": "user", "content": dice.text()}]},
        "death": {"signal": dice.below(40)},
        "compacted": {"through": dice.below(10), "sessions": dice.value(), "key": dice.value()},
    }.get(kind, {})


def _row(dice: Dice, id: int) -> Row:
    role = dice.one_of(("user", "assistant", "tool"))
    call = "call-1" if role == "tool" else None
    return Row(id, role, dice.text(), call, (), _AT + dice.below(60))


def _rows_of(inserts: list[Insert], rows: list[Row]) -> list[Row]:
    first = max([row.id for row in rows], default=0) + 1
    made = []
    for number, one in enumerate(inserts, first):
        told = one.message
        calls = call_ids(told.get("tool_calls"))
        content, call = told.get("content"), told.get("tool_call_id")
        made.append(Row(number, told["role"], content, call, calls, one.at))
    return made


def _outline(sessions: dict[str, Session]) -> dict[str, object]:
    """What recovery would make of each session: what it inserts, and how the session ends."""
    return {
        id: (
            [(one.message, one.kind) for one in plan(session, [], _AT + 100)],
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


def _smallest(told: dict[str, object]) -> int:
    """What is left when everything that may be cut is: kind and session stay whole."""
    return len(records.pack({"kind": told["kind"], "session": told.get("session"), "cut": True}))
