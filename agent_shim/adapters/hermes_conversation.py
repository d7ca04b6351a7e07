"""The conversation of an AIAgent of Hermes, as far as it was captured.

Never changes an object of Hermes; taps call it, and it sends the records.

Rows that Hermes stored are matched with the messages that we sent, by role and text. A message that
Hermes dropped before it stored it is `withdrawn`.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import weakref

from .. import sdk
from .floor import is_same, last_question
from .hermes_messages import is_scaffolding, stored_content, stored_fields
from .model_messages import call_ids

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .model_messages import Message
    from .taps import Named

_BROKEN_OFF = "Operation interrupted"
# The reason with which Hermes ends a session that continues under another id.
_COMPRESSED = "compression"
# What a turn ends with if the user breaks it off, in a thread or in an event loop.
_BY_THE_USER = ("KeyboardInterrupt", "CancelledError")


# What only the floor can capture: the adapter sets it, by capability.
lacks: list[Callable[[str], bool]] = []
# The front end that created a session, and the messages with which signals interrupt the agent.
sources: dict[str, str] = {}
leaving: list[str] = []

_known: weakref.WeakValueDictionary[str, Conversation] = weakref.WeakValueDictionary()


class _Sent:
    """A message that we sent and that, as far as we know, Hermes has not stored yet."""

    __slots__ = ("content", "fields", "role", "uid")

    def __init__(self, uid: str, role: str, content: Any, fields: Named) -> None:
        self.uid, self.role, self.content, self.fields = uid, role, content, fields

    def may_be(self, role: object, call: object) -> bool:
        return self.role == role and (role != "tool" or self.fields.get("tool_call_id") == call)


class Conversation:
    """The session of an AIAgent, as far as it was captured."""

    has_all_pieces = False  # the agent streams them to itself, after the model has

    def __init__(self, agent: Any, db: str | None) -> None:
        self.session = sdk.Session(agent.session_id, _about(agent, db))
        self._lock = threading.RLock()
        self._messages: list[Any] | None = None
        self._seen: dict[int, Any] = {}
        self._unsettled: list[_Sent] = []
        self._question: _Sent | None = None
        self._by_model: dict[object, _Sent] = {}
        self._settled_keys: set[object] = set()
        self._stored_unsent: dict[object, object] = {}
        """Ids of rows of this turn that Hermes wrote before we had sent their messages, by key."""
        self._begun = False
        self._fresh_turn = True
        self._restart = False
        self._turn_name: object = None
        self._turn_thread = 0
        self._turn_ended_early = False
        self.asked_to_stop = False
        """Somebody interrupts the turn, and not because of a signal."""
        self.compressing: list[Any] | None = None
        self.closed: str | None = None
        """Why Hermes ended the session that we take it to be in."""
        _known[self.session.id] = self

    # -- the transcript ----------------------------------------------------------------------

    def begin_turn(self, message: object, fields: Named) -> None:
        with self._lock:
            self._messages, self._seen, self._fresh_turn = None, {}, True
            self._turn_thread, self._turn_ended_early = threading.get_ident(), False
            self.asked_to_stop = False
            self._begun = True
            self._by_model, self._settled_keys, self._stored_unsent = {}, set(), {}
            self.session.turn("start")
            self._question = self._say("user", {"content": message, **fields})

    def follow(self, messages: list[Any] | None = None) -> None:
        """Hand over what is new in Hermes' own list of messages."""
        with self._lock:
            if messages is not None and messages is not self._messages:
                self._start_from(messages)
            for message in self._messages or ():
                if isinstance(message, dict) and id(message) not in self._seen:
                    self._seen[id(message)] = message
                    if is_scaffolding(message):
                        continue
                    if not message.get("_db_persisted"):
                        self._say(str(message.get("role")), message)
                    else:
                        self._say_stored(message)

    def _say_stored(self, message: Named) -> None:
        """Hermes stored it before we saw it, because the method that stores has another name. It is
        in the database, but its calls may still need a result."""
        role, content = str(message.get("role")), stored_content(message.get("content"))
        row = self._stored_unsent.pop(_key(role, content, message), None)
        if row is not None:
            self._say(role, message)
            self.stored([({**message, "content": content}, row)])

    def _start_from(self, messages: list[Any]) -> None:
        """Skip what is not new: everything up to the turn's own user message, or up to the last
        known message."""
        known = -1
        for index, message in enumerate(messages):
            if not isinstance(message, dict):
                continue
            if self._fresh_turn:
                if message.get("role") == "user" and not is_scaffolding(message):
                    # The beginning of this turn was not seen, so its question is new.
                    known = index if self._begun or message.get("_db_persisted") else index - 1
            elif id(message) in self._seen:
                known = index
        self._seen.update((id(message), message) for message in messages[: known + 1])
        self._messages, self._fresh_turn = messages, False

    def catch_up(self, messages: object) -> None:
        """Hermes is about to replace its list. If a method that tells what is new in it is gone,
        that is told now: no later request has it."""
        if isinstance(messages, list) and self.in_turn and _lacks("tool results"):
            self.follow(messages)

    def take_for_stored(self, messages: object) -> None:
        """Hermes replaced its list by one that is in the database already, or is its history."""
        with self._lock:
            self._messages = messages if isinstance(messages, list) else None
            self._seen = {id(message): message for message in self._messages or ()}
            self._fresh_turn = False
            said = [message for message in self._messages or () if isinstance(message, dict)]
            for message in said[_last_question_at(said) :]:  # the next request has these again
                content = stored_content(message.get("content"))
                self._settled_keys.add(_key(str(message.get("role")), content, message))

    def _say(self, role: str, message: Named) -> _Sent:
        fields = stored_fields(message)
        if role == "tool":
            fields["tool_name"] = message.get("tool_name") or message.get("name")
        content = stored_content(message.get("content"))
        # Its own text for a turn that was broken off is stored beside the reply, not instead of it.
        aside = role == "assistant" and str(content).startswith(_BROKEN_OFF)
        earlier = self._by_model.pop(_key(role, content, fields), None)
        if earlier is not None and (earlier.content, earlier.fields) == (content, fields):
            return earlier  # said again, a question would be taken for the next turn's
        uid = self.session.message(
            role, content, uid=earlier.uid if earlier else None, aside=aside, **fields
        )
        sent = _Sent(uid, role, content, fields)
        if earlier in self._unsettled:
            self._unsettled[self._unsettled.index(earlier)] = sent
        else:
            self._unsettled.append(sent)
        if role == "user" and not self._begun:
            self._question = sent
        return sent

    def _withdraw(self, sent: _Sent) -> None:
        """Hermes has dropped the message, and will not store it."""
        self._unsettled = [other for other in self._unsettled if other is not sent]
        message = {"role": sent.role, "content": sent.content}
        self.session._say("message", uid=sent.uid, message=message, withdrawn=True)

    def stored(self, rows: list[tuple[Named, object]]) -> None:
        """Hermes wrote rows: the oldest message that each can be is settled."""
        uids: list[str] = []
        ids: list[object] = []
        with self._lock:
            for row, id in rows:
                sent = self._oldest(row) if row.get("content") not in leaving else None
                if sent is not None:
                    self._unsettled.remove(sent)
                    self._settled_keys.add(_key(sent.role, sent.content, sent.fields))
                    uids.append(sent.uid)
                    ids.append(id if isinstance(id, int) else None)
                elif row.get("content") not in leaving and isinstance(id, int):
                    key = _key(str(row.get("role")), stored_content(row.get("content")), row)
                    self._stored_unsent[key] = id
            if uids:
                self.session.settled(uids, ids if any(ids) else [])  # type: ignore[arg-type]

    def _oldest(self, row: Named) -> _Sent | None:
        """The oldest message with this text, if there is one: others may write to the same
        session."""
        role, call = row.get("role"), row.get("tool_call_id")
        found = [sent for sent in self._unsettled if sent.may_be(role, call)]
        same = [sent for sent in found if sent.content == row.get("content")]
        return next(iter(same or found), None)

    def rewritten(self) -> None:
        with self._lock:
            self._unsettled.clear()
            self._stored_unsent.clear()
            self.session.rewritten()

    # -- the reply ---------------------------------------------------------------------------

    def piece(self, text: object, *, reasoning: bool) -> None:
        if isinstance(text, str) and text:
            restart, self._restart = self._restart, False
            self.session.delta(text, reasoning=reasoning, restart=restart)

    def expect_new_reply(self) -> None:
        self.follow()
        self._restart = True

    def end_turn(self, result: object, error: BaseException | None) -> None:
        self.follow()
        self._turn_thread = 0
        if self._never_began(result):
            with self._lock:
                if self._question is not None:
                    self._withdraw(self._question)
        self._question = None
        if isinstance(result, dict) and not result.get("interrupted"):
            self.session.turn("end")
            return
        self._broken_off(by_fault=result is None and type(error).__name__ not in _BY_THE_USER)

    def _broken_off(self, *, by_fault: bool = False) -> None:
        """A turn that was broken off did not end: if the process goes now, that is why."""
        by_signal = leaving or _is_hung_up()
        by = "signal" if by_signal else "fault" if by_fault else "user"
        self.session._say("turn", phase="broken off", by=by)

    def ended(self, session_id: object, reason: object) -> None:
        """Hermes has ended the row. Its front ends do so without waiting for the thread of a turn
        that they interrupted, which then may never come to tell that it was broken off."""
        of_this = session_id == self.session.id
        self.closed = str(reason) if of_this else None
        if of_this and self.in_turn and self.asked_to_stop and not self.is_rotating:
            self._broken_off()
        self.session._say("ended", session=session_id, reason=str(reason))

    def _never_began(self, result: object) -> bool:
        """Another process had the session, and Hermes asked the user to try again: it has sent no
        request, stored no question, and keeps none for the next turn."""
        return (
            isinstance(result, dict)
            and self._messages is None
            and not result.get("api_calls")
            and not result.get("completed")
            and self._question in self._unsettled
            and not self._is_carried_on(result.get("messages"))
        )

    def _is_carried_on(self, messages: object) -> bool:
        """The next turn is given the question as part of its history, and stores it."""
        last = messages[-1] if isinstance(messages, list) and messages else None
        return (
            isinstance(last, dict)
            and self._question is not None
            and last.get("role") == "user"
            and not last.get("_db_persisted")
            and stored_content(last.get("content")) == self._question.content
        )

    def hook_begins(self, name: str) -> None:
        if not self._is_of_the_turn(name):
            self.session._say("hook_begun", name=name)

    def hook_fired(self, name: str) -> None:
        """An interrupted turn fires the session's hook at its own end. That counts as the session's
        end if the session ends next, and not if the user continues."""
        if self._is_of_the_turn(name):
            self._turn_ended_early = True
            return
        if name == "on_session_finalize" and self._turn_ended_early:
            self.session.hook("on_session_end")
        self.session.hook(name)

    def _is_of_the_turn(self, hook: str) -> bool:
        in_its_thread = threading.get_ident() == self._turn_thread
        return hook == "on_session_end" and in_its_thread and not leaving

    def name_turn(self, agent: Any) -> None:
        """Releases that name a turn pass its name to the hooks."""
        turn = getattr(agent, "_current_turn_id", None)
        if turn and turn != self._turn_name:
            self._turn_name = turn
            task = getattr(agent, "_current_task_id", None)
            self.session._say("session", turn_id=turn, task_id=task)

    # -- requests and answers, where Hermes' own methods do not provide them --------------------

    def may_ask(self, messages: list[Message]) -> bool | None:
        """True if this is the question that it works on; None: that is not known."""
        if self._question is None:
            return None
        question = {"role": "user", "content": last_question(messages)}
        return is_same({"role": "user", "content": self._question.content}, question)

    def model_asked(self, messages: list[Message]) -> None:
        with self._lock:
            for message in messages[_last_question_at(messages) :]:
                role = message["role"]
                lacking = {"user": "user message", "tool": "tool results"}.get(role)
                if lacking is not None and _lacks(lacking):
                    self._say_by_model(message)
            if _lacks("deltas"):
                self._restart = True

    def model_piece(self, text: str, *, reasoning: bool) -> None:
        if _lacks("reasoning" if reasoning else "deltas"):
            self.piece(text, reasoning=reasoning)

    def model_answered(self, message: Message) -> None:
        with self._lock:
            if _lacks("assistant with calls"):
                self._say_by_model(message)

    def _say_by_model(self, message: Message) -> None:
        key = _key(message["role"], stored_content(message.get("content")), message)
        unsettled = [_key(sent.role, sent.content, sent.fields) for sent in self._unsettled]
        if key in unsettled or key in self._by_model or key in self._settled_keys:
            return
        self._by_model[key] = self._say(message["role"], message)

    # -- under another id --------------------------------------------------------------------

    def rotate(self, new_id: str, messages: object) -> None:
        if new_id != self.session.id:
            self._go_on_as(new_id)
            with self._lock:
                self._unsettled.clear()
        self.take_for_stored(messages)
        history = [
            {"role": message.get("role"), "content": stored_content(message.get("content"))}
            | stored_fields(message)
            for message in self._messages or ()
            if isinstance(message, dict) and message.get("role") != "system"
        ]
        self.session._say("history", messages=history)

    def moved(self, new_id: str) -> None:
        """In the middle of a turn Hermes continues in another session, most often one that another
        process made from this one. Messages that are not stored yet are stored there."""
        with self._lock:
            unsettled = list(self._unsettled)
            for sent in unsettled:
                self._withdraw(sent)
            self._go_on_as(new_id)
            for sent in unsettled:
                uid = self.session.message(sent.role, sent.content, **sent.fields)
                again = _Sent(uid, sent.role, sent.content, sent.fields)
                self._unsettled.append(again)
                if sent is self._question:
                    self._question = again

    @property
    def is_rotating(self) -> bool:
        """A session that is made as its child now is its continuation."""
        if self.compressing is None:
            return self.closed == _COMPRESSED and self.in_turn
        return self.closed is not None or _lacks("ends")

    @property
    def to_be_compressed(self) -> list[Any]:
        return list(self.compressing if self.compressing is not None else self._messages or ())

    @property
    def in_turn(self) -> bool:
        return self._turn_thread != 0

    def _go_on_as(self, new_id: str) -> None:
        self.session.rotate(new_id)
        _known[new_id] = self


def _last_question_at(messages: list[Message]) -> int:
    places = [at for at, message in enumerate(messages) if message.get("role") == "user"]
    return places[-1] if places else 0


def _key(role: str, content: Any, fields: Named) -> object:
    """What identifies a message, whoever reports it."""
    calls = call_ids(fields)
    if role == "tool":
        return role, str(fields.get("tool_call_id"))
    return role, calls or str(content or "").strip()


def _is_hung_up() -> bool:
    """The terminal is gone. An agent may read the end of its input before it is sent the signal."""
    for fd in (0, 1, 2):
        try:
            os.get_terminal_size(fd)
        except OSError as error:
            if error.errno == errno.EIO:  # any other file has no terminal size
                return True
    return False


def _lacks(capability: str) -> bool:
    return any(ask(capability) for ask in lacks)


def _about(agent: Any, db: str | None) -> dict[str, object]:
    about: dict[str, object] = {
        "source": sources.get(agent.session_id) or getattr(agent, "platform", None) or "cli",
        "platform": getattr(agent, "platform", None),
        "model": getattr(agent, "model", None),
        "parent": getattr(agent, "_parent_session_id", None),
    }
    if db is not None:
        about["db"] = db
    if getattr(agent, "_delegate_depth", 0):
        about["subagent"] = True
    shell = sys.modules.get("agent.shell_hooks")
    if getattr(shell, "_registered", None):
        about["shell_hooks"] = True
    if getattr(sys.modules.get("agent.outbound_webhooks"), "_registered", None):
        about["webhooks"] = True
    return about


def known(session_id: object) -> Conversation | None:
    """The conversation that has, or had, this id."""
    return _known.get(session_id) if isinstance(session_id, str) else None


def alive() -> list[Conversation]:
    """Every conversation whose agent is alive."""
    return list({id(conversation): conversation for conversation in _known.values()}.values())
