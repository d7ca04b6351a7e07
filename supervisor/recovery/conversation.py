"""Replay of a conversation: folds the records of a session into its transcript. Pure.

Never touches a file, a clock or a database. There is one function for each kind of record in a
conversation: messages, pieces of a reply, tool calls and turns. What happens to a session as a
whole (it is stored, continues under another id, ends) is in replay.py.
"""

from __future__ import annotations

from ...ipc.records import joined
from ..model.phases import Event
from ..model.stream import Call, Item, Message, Record, ReplayedStream, Reply, Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Two messages that agree in these are the same message.
_SUBSTANCE = ("role", "content", "tool_calls", "tool_call_id")


def fold_history(stream: ReplayedStream, session: Session, record: Record, at: float) -> None:
    """The messages that the agent had before. After the first live message, a history adds
    nothing."""
    if session.spoke:
        return
    messages = [_checked(message) for message in record["messages"]]
    session.items, session._indexes = [], {}
    for index, message in enumerate(messages):
        uid = str(message.get("uid") or f"history-{index}")
        _put(stream, session, uid, message, at, live=False)


def fold_message(stream: ReplayedStream, session: Session, record: Record, at: float) -> None:
    message = _checked(record["message"])
    role = message["role"]
    given = record.get("uid")
    uid = f"#{stream.last}" if given is None or given == "" else str(given)
    calls = _calls_of(message)
    _note_cut(stream, session, uid, record.get("parts"))
    index = session._indexes.get(uid)
    known = session.stored.get(uid)
    if index is None and known is not None and stream.last > known.first:
        if role == "assistant":
            _complete_reply(session, message)
        earlier = session.repeated.setdefault(uid, Item(uid, message, at))
        earlier.message = message
        earlier.records.append(stream.last)
        return
    if record.get("withdrawn") is True:
        stream.lasting.append(stream.last)
        _withdraw(session, uid)
        return
    said_before = index is not None and session.items[index].live
    if said_before and index != len(session.items) - 1:
        # A correction of an older message. What has happened since stays as it is.
        _put(stream, session, uid, message, at)
        return
    if role == "user" or record.get("aside") is True:
        _set_aside(stream, session, at)
    reply = _complete_reply(session, message) if role == "assistant" else None
    item = _put(stream, session, uid, message, at, reply)
    if role == "user":
        _begin_turn(session)
        session.move(Event.USER_SPOKE, stream.last)
    elif role == "assistant":
        for id, name in calls:
            _open_call(session, id, name, item)
        if calls:
            session.move(Event.CALLS_MADE, stream.last)
        else:
            _complete_turn(stream, session, at)
            session.move(Event.REPLY_CAME, stream.last)
    elif role == "tool":
        answered = session.calls.pop(str(message.get("tool_call_id")), None)
        if answered is not None:
            answered.item.closed_by.append(item)
        session.move(Event.TOOL_ANSWERED if session.calls else Event.ALL_ANSWERED, stream.last)


def _note_cut(stream: ReplayedStream, session: Session, uid: str, parts: object) -> None:
    session.cut.pop(uid, None)
    if type(parts) is int and parts >= 0:
        session.cut[uid] = parts
        if not parts:
            stream.lasting.append(stream.last)  # no other record mentions it


def fold_piece(stream: ReplayedStream, session: Session, record: Record, at: float) -> None:
    """A piece of a message that was too long for a frame. With the last piece, the message replaces
    its shortened form."""
    uid, part, parts = named(record, "uid"), int(record["part"]), int(record["parts"])
    text = record["message"]["content"]
    if not 0 <= part < parts or not isinstance(text, str):
        raise ValueError("a piece that is none")
    pieces = session.pieces.setdefault(uid, {})
    pieces[part] = stream.last, text
    if len(pieces) < parts:
        return
    del session.pieces[uid]
    whole = joined([pieces[number][1] for number in range(parts)])
    fold_message(stream, session, {**whole, "uid": uid}, at)
    index = session._indexes.get(uid)
    item = session.items[index] if index is not None else session.repeated.get(uid)
    if item is not None:
        item.records += [seq for seq, _ in pieces.values()]


def _withdraw(session: Session, uid: str) -> None:
    """The agent dropped a message before it stored it: it must not be stored."""
    index = session._indexes.get(uid)
    if index is None or session.items[index].settled:
        return
    gone = session.items.pop(index)
    session._indexes = {item.uid: index for index, item in enumerate(session.items)}
    session.calls = {id: call for id, call in session.calls.items() if call.item is not gone}


def _checked(message: Any) -> Message:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ValueError("a message without a role")
    return dict(message)


def _put(
    stream: ReplayedStream,
    session: Session,
    uid: str,
    message: Message,
    at: float,
    reply: Reply | None = None,
    *,
    live: bool = True,
) -> Item:
    """Put a message into the transcript, in the place of the reply that it completes. Said again,
    it replaces its earlier form; said live, it replaces history."""
    session.spoke |= live
    index = session._indexes.get(uid)
    if index is None:
        session._indexes[uid] = len(session.items)
        item = Item(uid, message, at, live=live, place=stream.place, records=[stream.last])
        session.items.append(item)
    else:
        item = session.items[index]
        # A settled message that has changed is no longer in the database.
        same = all(item.message.get(name) == message.get(name) for name in _SUBSTANCE)
        item.settled = item.settled and same
        item.message, item.at, item.live = message, at, live
        item.records.append(stream.last)
    if reply is not None:
        item.place = min(item.place, reply.place)
        item.records += reply.records
    return item


def _open_call(session: Session, id: str, name: str, item: Item) -> Call:
    known = session.calls.get(id)
    if known is not None:
        if known.item is item:
            return known
        known.item.closed_by.append(item)  # ids are reused: the older call is dropped
        del session.calls[id]
    session.calls[id] = Call(id, name, item, began=item.at)
    return session.calls[id]


def _complete_reply(session: Session, message: Message) -> Reply | None:
    """The complete message replaces what was streamed of it.

    A message without content takes over the streamed text, which was shown after all. Returns the
    reply, reduced to the records that the message needs: those of the text that it took over, and
    the first one, whose place it has.
    """
    reply, session.reply = session.reply, None
    if reply is None:
        return None
    took = False
    for name, streamed in (("content", reply.text), ("reasoning", reply.reasoning)):
        if streamed and message.get(name) is None and not reply.broken:
            message[name] = streamed
            took = True
    kept = reply.records[:1] if reply.place else []
    return reply if took else Reply(place=reply.place, records=kept)


def _set_aside(stream: ReplayedStream, session: Session, at: float) -> None:
    """The reply being streamed was broken off and something else follows. It was shown, so it
    becomes a message of its own."""
    reply, session.reply = session.reply, None
    message = reply.as_message() if reply is not None else None
    if reply is not None and message is not None:
        item = _put(stream, session, f"broken-off-{stream.last}", message, at, reply)
        item.partial = True


def fold_delta(stream: ReplayedStream, session: Session, record: Record, at: float) -> None:
    reply = session.reply
    if reply is None or record.get("restart") is True:
        reply = session.reply = Reply(began=at, place=stream.place)
    if not reply.broken:
        reply.text_pieces.append(str(record.get("text", "")))
        reply.reasoning_pieces.append(str(record.get("reasoning", "")))
    reply.records.append(stream.last)
    session.move(Event.PIECE_CAME, stream.last)


def fold_tool(stream: ReplayedStream, session: Session, record: Record, at: float) -> None:
    id = named(record, "call")
    starting = record.get("phase") == "start"
    call = session.calls.get(id)
    if call is None:
        if not starting:
            return  # its answer is in the transcript already
        # A call that no message announced happened all the same: make the message that it lacks.
        name = str(record.get("name") or "tool")
        function = {"name": name, "arguments": "{}"}
        calls = [{"id": id, "type": "function", "function": function}]
        message: Message = {"role": "assistant", "content": None, "tool_calls": calls}
        reply = _complete_reply(session, message)
        item = _put(stream, session, f"call-{stream.last}", message, at, reply)
        call = _open_call(session, id, name, item)
    call.item.tool_records.append(stream.last)
    if starting:
        call.started = session.announces_tools = True
        call.began = at
        session.move(Event.TOOL_STARTED, stream.last)
    else:
        result = record.get("result")
        call.result = result if isinstance(result, str) else None
        session.move(Event.TOOL_ANSWERED, stream.last)


def fold_turn(stream: ReplayedStream, session: Session, record: Record, at: float) -> None:
    if record.get("phase") == "start":
        _begin_turn(session)
        session.move(Event.TURN_STARTED, stream.last)
    elif record.get("phase") == "broken off":
        session.stopped = record.get("by") == "user"
        session.sources["broken off"] = stream.last
        session.move(Event.TURN_BROKEN_OFF, stream.last)
    else:
        _complete_turn(stream, session, at)
        session.move(Event.TURN_ENDED, stream.last)


def _begin_turn(session: Session) -> None:
    session.takes_turns = True
    session.hooks_fired.clear()
    session.hooks_begun.clear()
    session.stopped = False
    session.sources.pop("broken off", None)


def _complete_turn(stream: ReplayedStream, session: Session, at: float) -> None:
    session.completed_at = max(session.completed_at, at)
    session.completed_place = max(session.completed_place, stream.place)


def _calls_of(message: Message) -> list[tuple[str, str]]:
    """Id and name of the tool calls that a message makes. What is no call is passed over."""
    calls = message.get("tool_calls")
    found = []
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict) and call.get("id"):
            function = call.get("function")
            name = function.get("name") if isinstance(function, dict) else call.get("name")
            found.append((str(call["id"]), str(name or "tool")))
    return found


def named(record: Record, name: str) -> str:
    """A field that records of this kind must have."""
    value = record[name]
    if not isinstance(value, str) or not value:
        raise ValueError(f"a {record['kind']} without its {name}")
    return value
