"""Replay: folds a stream's frames into the sessions they tell of. Pure.

Never touches a file, a clock or a database; the same frames give the same sessions.

Frames come in the order of their numbers, each once. A number that is missing is a gap:
what was lost there is not known, so a reply that was being streamed across it ends at the
gap instead of being glued together.
"""

from __future__ import annotations

from ...ipc import frames, records
from ..cause import from_record
from .phases import Event, Phase
from .stored import from_rows, mark
from .told import CARRIED, Call, Item, Message, Record, Reply, Reset, Session, Told

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = ["Call", "Item", "Message", "Reply", "Session", "Told", "replay"]

# What a record that is JSON, but not what its kind asks for, can raise below.
_MALFORMED = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
# What makes a message the one it is.
_SUBSTANCE = ("role", "content", "tool_calls", "tool_call_id")


def replay(stream: Iterable[tuple[int, bytes]]) -> Told:
    """Fold frames, ordered by sequence number and each there once, into what they tell."""
    told = Told()
    for seq, frame in stream:
        if seq != frames.HANDSHAKE:
            expected = max(told.last, told.compacted) + 1
            if seq > expected:
                told.gaps.append((expected, seq - 1))
                _break_replies(told)
            told.last = seq
        try:
            record = records.unpack(frames.payload_of(frame))
        except records.BadRecord:
            told.bad_records += 1
            _break_replies(told)  # it may have been a piece of one
            continue
        try:
            if seq == frames.HANDSHAKE:
                _handshake(told, record)
            else:
                _fold(told, record)
        except _MALFORMED:
            told.bad_records += 1
    told.last = max(told.last, told.compacted)
    for session in told.sessions.values():
        if session.stored:
            mark(session)
    return told


def _handshake(told: Told, record: Record) -> None:
    if record["kind"] == "hello":
        told.hello = record
    elif record["kind"] == "peer":
        told.peer = record
    elif record["kind"] == "death":
        told.death = from_record(record)
    elif record["kind"] == "compacted":
        _compacted(told, record)
    elif record["kind"] == "stored":
        id = _named(record, "session")
        known = told.sessions.get(id) or told.over.setdefault(id, Session(id))
        known.stored |= from_rows(record["rows"])


def _compacted(told: Told, record: Record) -> None:
    """What the records that compaction dropped had told, and no other record tells."""
    through = int(record["through"])
    if through < told.compacted:
        return  # from an older segment, whose removal was cut off
    told.compacted = through
    told._key = told._key or record.get("key")
    for seq, old, new, at in record.get("resets") or ():
        told.resets[int(seq)] = Reset(str(old), str(new), float(at))
    told.over |= told.sessions
    told.sessions = {}
    for id, known in record["sessions"].items():
        _carried(told.session(id), known)
    for id, known in (record.get("over") or {}).items():
        _carried(told.over.setdefault(id, Session(id)), known)


def _carried(session: Session, known: Record) -> None:
    for name in CARRIED:
        setattr(session, name, max(getattr(session, name), known.get(name, 0)))
    if known.get("ended") is not None:
        session.ended, session.ended_at = str(known["ended"]), float(known["ended_at"])
        session.phase = Phase.ENDED
    if known.get("db") is not None:
        session.about["db"] = known["db"]


def _break_replies(told: Told) -> None:
    for session in told.sessions.values():
        if session.reply is not None:
            session.reply.broken = True


def _fold(told: Told, record: Record) -> None:
    kind = record["kind"]
    if kind == "bye":
        told.said_bye = True
        return
    told.said_bye = False
    fold = _FOLDS.get(kind)
    if fold is None:
        told.lasting.append(told.last)
        return
    at = _time(record)
    session = _session(told, record, at)
    before = session.phase
    session.heard = told.last
    session.heard_at = max(session.heard_at, at)
    fold(told, session, record, at)
    if session.phase is not before:
        session.phase_at = at


def _session(told: Told, record: Record, at: float) -> Session:
    """The session a record speaks of: by its live id, or the first one if it names none."""
    name = record.get("session") or told._key
    if not isinstance(name, str):
        raise ValueError("a record without a session, before any session")
    if told._key is None:
        told._key = name
    session = told.session(told.live_id(name))
    session.began = session.began or at
    return session


# -- one function a kind of record ---------------------------------------------------------


def _session_told(told: Told, session: Session, record: Record, at: float) -> None:
    about = {k: v for k, v in record.items() if k not in ("kind", "session", "at")}
    if not session.announced or not about.items() <= session.about.items():
        older = ((seq, names - about.keys()) for seq, names in session.announced.items())
        session.announced = {seq: names for seq, names in older if names}
        session.announced[told.last] = set(about)
    session.about.update(about)
    session.move(Event.SESSION_OPENED, told.last)


def _history(told: Told, session: Session, record: Record, at: float) -> None:
    """What the agent held before. Once it speaks live, an older picture tells nothing new."""
    if session.spoke:
        return
    messages = [_checked(message) for message in record["messages"]]
    session.items, session._places = [], {}
    for index, message in enumerate(messages):
        uid = str(message.get("uid") or f"history-{index}")
        _place(session, uid, message, at, told.last, live=False)


def _message(told: Told, session: Session, record: Record, at: float) -> None:
    message = _checked(record["message"])
    role = message["role"]
    given = record.get("uid")
    uid = f"#{told.last}" if given is None or given == "" else str(given)
    made = _calls_of(message)
    place = session._places.get(uid)
    known = session.stored.get(uid)
    if place is None and known is not None and told.last > known.first:
        older = session.again.setdefault(uid, Item(uid, message, at))
        older.message = message
        older.made_of.append(told.last)
        return
    said_before = place is not None and session.items[place].live
    if said_before and place != len(session.items) - 1:
        # An older message, put right. What has happened since stays as it is.
        _place(session, uid, message, at, told.last)
        return
    if role == "user" or record.get("aside") is True:
        _set_aside(told, session, at)
    absorbed = _complete_reply(session, message) if role == "assistant" else []
    item = _place(session, uid, message, at, told.last)
    item.made_of += absorbed
    if role == "user":
        _begin_turn(session)
        session.move(Event.USER_SPOKE, told.last)
    elif role == "assistant":
        for id, name in made:
            _open_call(session, id, name, item)
        session.move(Event.CALLS_MADE if made else Event.REPLY_CAME, told.last)
    elif role == "tool":
        answered = session.calls.pop(str(message.get("tool_call_id")), None)
        if answered is not None:
            answered.item.closers.append(item)
        session.move(Event.TOOL_ANSWERED if session.calls else Event.ALL_ANSWERED, told.last)


def _checked(message: Any) -> Message:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ValueError("a message without a role")
    return dict(message)


def _place(
    session: Session, uid: str, message: Message, at: float, seq: int, *, live: bool = True
) -> Item:
    """A message said again replaces its earlier self; said live, it replaces history."""
    session.spoke |= live
    place = session._places.get(uid)
    if place is None:
        session._places[uid] = len(session.items)
        session.items.append(Item(uid, message, at, live=live, made_of=[seq]))
        return session.items[-1]
    item = session.items[place]
    # A settled message that is now another one is in the database no longer.
    item.settled = item.settled and all(item.message.get(k) == message.get(k) for k in _SUBSTANCE)
    item.message, item.at, item.live = message, at, live
    item.made_of.append(seq)
    return item


def _open_call(session: Session, id: str, name: str, item: Item) -> Call:
    known = session.calls.get(id)
    if known is not None:
        if known.item is item:
            return known
        known.item.closers.append(item)  # ids come round again: the older call is given up
        del session.calls[id]
    session.calls[id] = Call(id, name, item, began=item.at)
    return session.calls[id]


def _complete_reply(session: Session, message: Message) -> list[int]:
    """The whole message is here: what was streamed of it is no longer needed.

    A message that names no content takes over what was streamed: it was shown, after all.
    Returns the records it took that from.
    """
    reply, session.reply = session.reply, None
    if reply is None or reply.broken:
        return []
    took = False
    for name, streamed in (("content", reply.text), ("reasoning", reply.reasoning)):
        if streamed and message.get(name) is None:
            message[name] = streamed
            took = True
    return reply.made_of if took else []


def _set_aside(told: Told, session: Session, at: float) -> None:
    """The reply being streamed was broken off and something else follows: it was shown, so it
    stands in its place as a message of its own."""
    reply, session.reply = session.reply, None
    message = reply.as_message() if reply is not None else None
    if reply is None or message is None:
        return
    item = _place(session, f"broken-off-{told.last}", message, at, told.last)
    item.partial = True
    item.made_of += reply.made_of


def _delta(told: Told, session: Session, record: Record, at: float) -> None:
    reply = session.reply
    if reply is None or record.get("restart") is True:
        reply = session.reply = Reply(began=at)
    if not reply.broken:
        reply.text_pieces.append(str(record.get("text", "")))
        reply.reasoning_pieces.append(str(record.get("reasoning", "")))
    reply.made_of.append(told.last)
    session.move(Event.PIECE_CAME, told.last)


def _tool(told: Told, session: Session, record: Record, at: float) -> None:
    id = _named(record, "call")
    starting = record.get("phase") == "start"
    call = session.calls.get(id)
    if call is None:
        if not starting:
            return  # its answer is in the transcript already
        # A call that no message announced still happened: give it the message it lacks.
        name = str(record.get("name") or "tool")
        function = {"name": name, "arguments": "{}"}
        made = [{"id": id, "type": "function", "function": function}]
        message: Message = {"role": "assistant", "content": None, "tool_calls": made}
        absorbed = _complete_reply(session, message)
        item = _place(session, f"call-{told.last}", message, at, told.last)
        item.made_of += absorbed
        call = _open_call(session, id, name, item)
    call.item.tools.append(told.last)
    if starting:
        call.started = session.announces_tools = True
        call.began = at
        session.move(Event.TOOL_STARTED, told.last)
    else:
        result = record.get("result")
        call.result = result if isinstance(result, str) else None
        session.move(Event.TOOL_ANSWERED, told.last)


def _turn(told: Told, session: Session, record: Record, at: float) -> None:
    if record.get("phase") == "start":
        _begin_turn(session)
        session.move(Event.TURN_STARTED, told.last)
    elif record.get("phase") == "broken off":
        session.stopped = record.get("by") == "user"
        session.made_of["broken off"] = told.last
        session.move(Event.TURN_BROKEN_OFF, told.last)
    else:
        session.move(Event.TURN_ENDED, told.last)


def _begin_turn(session: Session) -> None:
    session.hooks_fired.clear()
    session.stopped = False
    session.made_of.pop("broken off", None)


def _settled(told: Told, session: Session, record: Record, at: float) -> None:
    session.settles = True
    uids = [str(uid) for uid in record["uids"]]
    rows = [row if isinstance(row, int) else None for row in record.get("rows") or []]
    rows += [None] * (len(uids) - len(rows))
    for uid, row in zip(uids, rows, strict=False):
        place = session._places.get(uid)
        if place is not None:
            item = session.items[place]
            item.settled, item.row = True, row if row is not None else item.row
            item.marks.append(told.last)
            session.watermark = max(session.watermark, row or 0)


def _rewritten(told: Told, session: Session, record: Record, at: float) -> None:
    session.settles = True
    for item in session.items:
        item.settled = item.rewritten = True
        item.marks.append(told.last)
    for call in session.calls.values():
        call.item.marks.append(told.last)
    session.rewritten_at = max(session.rewritten_at, at)
    session.reply = None
    session.calls.clear()
    session.move(Event.REWRITTEN, told.last)


def _rotated(told: Told, session: Session, record: Record, at: float) -> None:
    new_id = told.live_id(_named(record, "new"))
    if new_id == session.id:
        raise ValueError("a session cannot go on as itself")
    told._went_on_as[session.id] = new_id
    told.lasting.append(told.last)
    successor = told.session(new_id)
    successor.began = successor.began or at
    successor.about = {**session.about, **successor.about, "parent": session.id}
    successor.about.pop("started", None)
    successor.phase, successor.phase_from = session.phase, session.phase_from
    successor.phase_at, successor.stopped = session.phase_at, session.stopped
    if session.phase is Phase.ENDED:
        # The agent closed the old id first. What it was doing can be seen from what is open.
        calling = Phase.CALLING if session.calls else Phase.IDLE
        successor.phase = Phase.REPLYING if session.reply else calling
        successor.phase_from = [told.last]
    successor.ended, successor.ended_at = None, 0.0
    successor.made_of.pop("ended", None)
    successor.reply, successor.calls = session.reply, session.calls
    successor.announces_tools |= session.announces_tools
    session.reply, session.calls = None, {}
    session.rotated = True
    _end(session, str(record.get("reason") or "compression"), at, told.last)


def _reset(told: Told, session: Session, record: Record, at: float) -> None:
    """This conversation is over; the one in its place is announced by itself."""
    new = _named(record, "new")
    if new == session.id:
        raise ValueError("a session cannot take its own place")
    told.resets[told.last] = Reset(session.id, new, at)
    _end(session, str(record.get("reason") or "new_session"), at, told.last)


def _title(told: Told, session: Session, record: Record, at: float) -> None:
    session.title = _named(record, "title")
    session.made_of["title"] = told.last


def _ended(told: Told, session: Session, record: Record, at: float) -> None:
    _end(session, str(record.get("reason") or "completed"), at, told.last)


def _end(session: Session, reason: str, at: float, seq: int) -> None:
    """The first reason stays."""
    if session.ended is None:
        session.ended, session.ended_at = reason, at
        session.made_of["ended"] = seq
    session.move(Event.SESSION_ENDED, seq)


def _hook(told: Told, session: Session, record: Record, at: float) -> None:
    name = _named(record, "name")
    session.hooks_fired.add(name)
    session.made_of[f"hook {name}"] = told.last


def _trouble(told: Told, session: Session, record: Record, at: float) -> None:
    session.troubles.append(_named(record, "text"))
    told.lasting.append(told.last)


_FOLDS = {
    "session": _session_told,
    "history": _history,
    "message": _message,
    "delta": _delta,
    "tool": _tool,
    "turn": _turn,
    "settled": _settled,
    "rewritten": _rewritten,
    "rotated": _rotated,
    "reset": _reset,
    "title": _title,
    "ended": _ended,
    "hook": _hook,
    "trouble": _trouble,
}


def _calls_of(message: Message) -> list[tuple[str, str]]:
    """Id and name of the tool calls a message makes."""
    found = []
    for made in message.get("tool_calls") or []:
        if isinstance(made, dict) and made.get("id"):
            function = made.get("function")
            name = function.get("name") if isinstance(function, dict) else made.get("name")
            found.append((str(made["id"]), str(name or "tool")))
    return found


def _named(record: Record, name: str) -> str:
    value = record[name]
    if not isinstance(value, str) or not value:
        raise ValueError(f"a {record['kind']} without its {name}")
    return value


def _time(record: Record) -> float:
    at = record.get("at")
    # Not what JSON also lets through: infinite, not a number, longer than a float.
    return float(at) if isinstance(at, int | float) and 0 <= at < 1e12 else 0.0
