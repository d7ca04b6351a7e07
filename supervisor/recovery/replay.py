"""Replay: folds a stream's frames into the sessions that they describe. Pure.

Never touches a file, a clock or a database: the same frames give the same sessions.

Frames come in the order of their numbers, each once. A missing number is a gap. What was lost there
is not known, so a reply that was being streamed ends at the gap: later pieces are not joined to it.
A malformed record is ignored, and the others are replayed.

Records of a conversation are folded by conversation.py.
"""

from __future__ import annotations

from ...ipc import frames, records
from ..model.checked import HELLO, PEER, SESSION, checked
from ..model.phases import Event, Phase
from ..model.stored import from_rows, mark
from ..model.stream import (
    ANNOUNCED,
    CARRIED,
    Call,
    Item,
    Message,
    Record,
    ReplayedStream,
    Reply,
    Reset,
    Session,
)
from ..process.cause import from_record
from . import conversation
from .conversation import named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..model.stream import Stored

__all__ = ["Call", "Item", "Message", "ReplayedStream", "Reply", "Session", "replay"]

# What a record that is JSON, but not what its kind needs, can raise below.
_MALFORMED = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
_OF_EVERY_RECORD = ("kind", "session", "at", "mono")
# Nanoseconds of a clock since some boot; JSON also has numbers that no clock shows.
_LATEST_PLACE = 2**63


def replay(numbered: Iterable[tuple[int, bytes]]) -> ReplayedStream:
    """Fold frames, ordered by number and each there once, into a stream."""
    stream = ReplayedStream()
    for seq, frame in numbered:
        if seq != frames.HANDSHAKE:
            expected = max(stream.last, stream.compacted) + 1
            if seq > expected:
                stream.gaps.append((expected, seq - 1))
                _break_replies(stream)
            stream.last = seq
            if seq > stream.compacted:
                _take_verdicts(stream)
        try:
            record = records.unpack(frames.payload_of(frame))
        except records.BadRecord:
            stream.bad_records += 1
            _break_replies(stream)  # it may have been a piece of a reply
            continue
        try:
            if seq == frames.HANDSHAKE:
                _handshake(stream, record)
            else:
                _fold(stream, record)
        except _MALFORMED:
            stream.bad_records += 1
    _take_verdicts(stream)
    stream.last = max(stream.last, stream.compacted)
    for session in stream.sessions.values():
        if session.stored:
            mark(session)
    return stream


def _handshake(stream: ReplayedStream, record: Record) -> None:
    if record["kind"] == "hello":
        stream.hello = checked(record, HELLO)
    elif record["kind"] == "peer":
        stream.peer = checked(record, PEER)
    elif record["kind"] == "death":
        stream.death = from_record(record)
    elif record["kind"] == "compacted":
        _compacted(stream, record)
    elif record["kind"] == "stored":
        id = named(record, "session")
        known = stream.sessions.get(id) or stream.dropped.setdefault(id, Session(id))
        known.stored |= from_rows(record["rows"])
        known.noted = checked(record.get("known"), {})


def _compacted(stream: ReplayedStream, record: Record) -> None:
    """The note of a compaction: facts that only the dropped records contained."""
    through = int(record["through"])
    if through < stream.compacted:
        return  # from an older segment that was about to be removed
    stream.compacted = through
    stream._default_session = stream._default_session or record.get("key")
    for seq, old, new, at in record.get("resets") or ():
        stream.resets[int(seq)] = Reset(str(old), str(new), float(at))
    stream.dropped |= stream.sessions
    stream.sessions = {}
    notes = record["sessions"]
    stream.judged = {
        id: bool(known["cut_off"]) for id, known in notes.items() if "cut_off" in known
    }
    for id, known in notes.items():
        _carried(stream.session(id), known)
    for id, known in (record.get("over") or {}).items():
        _carried(stream.dropped.setdefault(id, Session(id)), known)


def _take_verdicts(stream: ReplayedStream) -> None:
    """What was compacted is replayed. Whether an end in it cut off a turn, the note knows: the end
    of that turn may be among what was dropped."""
    for id, cut_off in stream.judged.items():
        if id in stream.sessions:
            stream.sessions[id].cut_off = cut_off
    stream.judged = {}


def _carried(session: Session, known: Record) -> None:
    for name in CARRIED:
        value = known.get(name, 0)
        if isinstance(value, int | float):
            setattr(session, name, max(getattr(session, name), value))
    if known.get("ended") is not None:
        session.ended, session.ended_at = str(known["ended"]), float(known["ended_at"])
        session.phase = Phase.ENDED
    if known.get("db") is not None:
        session.about["db"] = known["db"]


def outlast(stream: ReplayedStream) -> list[Session]:
    """The sessions of which messages are stored while all their records are lost: only a supervisor
    had them, in its memory, and it is dead. A session that compaction dropped is none of them."""
    return [session for session in stream.dropped.values() if _is_cut_short(stream, session)]


def bring_back(stream: ReplayedStream) -> None:
    """Add such sessions, as they were when they were stored. Only for all files of a stream: the
    records that one segment lacks may be in the next."""
    for session in stream.sessions.values():
        session.cut_short = _is_cut_short(stream, session)
    for stored in outlast(stream):
        del stream.dropped[stored.id]
        session = stream.sessions[stored.id] = Session(stored.id, stored=stored.stored)
        session.cut_short = True
        session.heard = max(known.last for known in stored.stored.values())
        try:
            about = checked(stored.noted.get("about"), SESSION)
            session.about.update({name: about[name] for name in ANNOUNCED if name in about})
            _carried(session, stored.noted)
        except _MALFORMED:
            stream.bad_records += 1
        mark(session)


def _is_cut_short(stream: ReplayedStream, session: Session) -> bool:
    return ends_after(stream, session.stored)


def ends_after(stream: ReplayedStream, stored: dict[str, Stored]) -> bool:
    """True if a stored message comes from a record behind the last one that is left."""
    return any(known.last > stream.last for known in stored.values())


def _break_replies(stream: ReplayedStream) -> None:
    for session in stream.sessions.values():
        if session.reply is not None:
            session.reply.broken = True


def _fold(stream: ReplayedStream, record: Record) -> None:
    kind = record["kind"]
    if kind == "bye":
        stream.said_bye = True
        return
    stream.said_bye = False
    fold = _FOLDS.get(kind)
    if fold is None:
        stream.lasting.append(stream.last)
        return
    at = _time(record)
    mono = record.get("mono")
    if isinstance(mono, int) and stream.place < mono < _LATEST_PLACE:
        stream.place = mono
    session = _session(stream, record, at)
    before = session.phase
    session.heard = stream.last
    session.heard_at = max(session.heard_at, at)
    session.first_place = session.first_place or stream.place
    session.last_place = stream.place
    fold(stream, session, record, at)
    if session.phase is not before:
        session.phase_at = at


def _session(stream: ReplayedStream, record: Record, at: float) -> Session:
    """The session that a record is about: by its live id, or the first one if it names none."""
    name = record.get("session") or stream._default_session
    if not isinstance(name, str):
        raise ValueError("a record without a session, before any session")
    if stream._default_session is None:
        stream._default_session = name
    session = stream.session(stream.live_id(name))
    session.began = session.began or at
    return session


# -- what happens to a session: one function for each kind of record --------------------------


def _announced(stream: ReplayedStream, session: Session, record: Record, at: float) -> None:
    about = checked(record, SESSION)
    about = {name: value for name, value in about.items() if name not in _OF_EVERY_RECORD}
    if not session.announced_by or not about.items() <= session.about.items():
        older = ((seq, names - about.keys()) for seq, names in session.announced_by.items())
        session.announced_by = {seq: names for seq, names in older if names}
        session.announced_by[stream.last] = set(about)
    session.about.update(about)
    session.move(Event.SESSION_OPENED, stream.last)


def _settled(stream: ReplayedStream, session: Session, record: Record, at: float) -> None:
    session.settles = True
    uids = [str(uid) for uid in record["uids"]]
    rows = [row if isinstance(row, int) else None for row in record.get("rows") or []]
    rows += [None] * (len(uids) - len(rows))
    for uid, row in zip(uids, rows, strict=False):
        index = session._indexes.get(uid)
        if index is not None:
            item = session.items[index]
            item.settled, item.row = True, row if row is not None else item.row
            item.settled_by.append(stream.last)
            session.watermark = max(session.watermark, row or 0)


def _rewritten(stream: ReplayedStream, session: Session, record: Record, at: float) -> None:
    session.settles = True
    for item in session.items:
        item.settled = item.rewritten = True
        item.settled_by.append(stream.last)
    for call in session.calls.values():
        call.item.settled_by.append(stream.last)
    session.rewritten_at = max(session.rewritten_at, at)
    session.reply = None
    session.calls.clear()
    session.move(Event.REWRITTEN, stream.last)


def _rotated(stream: ReplayedStream, session: Session, record: Record, at: float) -> None:
    reason = str(record.get("reason") or "compression")
    go_on_as(stream, session, named(record, "new"), reason, at)


def go_on_as(
    stream: ReplayedStream, session: Session, new: str, reason: str = "compression", at: float = 0.0
) -> None:
    """The conversation continues under another id; the old session is closed."""
    new_id = stream.live_id(new)
    if new_id == session.id:
        raise ValueError("a session cannot go on as itself")
    stream._continuations[session.id] = new_id
    stream.lasting.append(stream.last)
    successor = stream.session(new_id)
    successor.began = successor.began or at
    successor.about = {**session.about, **successor.about, "parent": session.id}
    successor.about.pop("started", None)
    successor.phase, successor.phase_records = session.phase, session.phase_records
    successor.phase_at, successor.stopped = session.phase_at, session.stopped
    if session.phase is Phase.ENDED:
        # The agent closed the old id first. What is still open shows what it was doing.
        calling = Phase.CALLING if session.calls else Phase.IDLE
        successor.phase = Phase.REPLYING if session.reply else calling
        successor.phase_records = [stream.last]
    successor.ended, successor.ended_at, successor.cut_off = None, 0.0, False
    successor.sources.pop("ended", None)
    successor.reply, successor.calls = session.reply, session.calls
    successor.announces_tools |= session.announces_tools
    successor.takes_turns |= session.takes_turns
    successor.ancestors = [session.id, *session.ancestors]
    session.reply, session.calls = None, {}
    session.rotated = True
    _end(session, reason, at, stream.last)


def _reset(stream: ReplayedStream, session: Session, record: Record, at: float) -> None:
    """This conversation is over. Another one replaces it, and announces itself."""
    new = named(record, "new")
    if new == session.id:
        raise ValueError("a session cannot take its own place")
    stream.resets[stream.last] = Reset(session.id, new, at)
    _end(session, str(record.get("reason") or "new_session"), at, stream.last)


def _title(stream: ReplayedStream, session: Session, record: Record, at: float) -> None:
    session.title = named(record, "title")
    session.sources["title"] = stream.last


def _ended(stream: ReplayedStream, session: Session, record: Record, at: float) -> None:
    session.cut_off |= session.in_flight and not session.stopped
    _end(session, str(record.get("reason") or "completed"), at, stream.last)


def _end(session: Session, reason: str, at: float, seq: int) -> None:
    """The first reason stays."""
    if session.ended is None:
        session.ended, session.ended_at = reason, at
        session.sources["ended"] = seq
    session.move(Event.SESSION_ENDED, seq)


def _hook(stream: ReplayedStream, session: Session, record: Record, at: float) -> None:
    name = named(record, "name")
    session.hooks_fired.add(name)
    session.sources[f"hook {name}"] = stream.last


def _hook_begun(stream: ReplayedStream, session: Session, record: Record, at: float) -> None:
    name = named(record, "name")
    session.hooks_begun.add(name)
    session.sources[f"begun {name}"] = stream.last


def _trouble(stream: ReplayedStream, session: Session, record: Record, at: float) -> None:
    session.problems.append(named(record, "text"))
    stream.lasting.append(stream.last)


_FOLDS = {
    "session": _announced,
    "history": conversation.fold_history,
    "message": conversation.fold_message,
    "piece": conversation.fold_piece,
    "delta": conversation.fold_delta,
    "tool": conversation.fold_tool,
    "turn": conversation.fold_turn,
    "settled": _settled,
    "rewritten": _rewritten,
    "rotated": _rotated,
    "reset": _reset,
    "title": _title,
    "ended": _ended,
    "hook": _hook,
    "hook_begun": _hook_begun,
    "trouble": _trouble,
}


def _time(record: Record) -> float:
    at = record.get("at")
    # Not what JSON also lets through: infinite, not a number, longer than a float.
    return float(at) if isinstance(at, int | float) and 0 <= at < 1e12 else 0.0
