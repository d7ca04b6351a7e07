"""Hermes Agent, unmodified: which of its methods are tapped, and what they tell.

Never changes what Hermes does: a tap hands over what it sees, on the caller's thread and
before Hermes goes on, and swallows its own faults. A method that a release has renamed
costs only what it would have told; `missing` names it.

Tapped is what has kept its name and its leading parameters since 0.13:

    AIAgent.run_conversation                   the turn, and the user's message
    AIAgent._fire_stream_delta, _fire_reasoning_delta, _reset_stream_delivery_tracking
                                               the reply as it is streamed
    AIAgent._execute_tool_calls, _invoke_tool  tool calls and their results
    AIAgent._persist_session, _flush_messages_to_session_db
                                               the list of messages as it grows
    AIAgent._compress_context                  rotation
    AIAgent.interrupt                          that a signal told it to leave
    SessionDB.append_message and the rest      what Hermes has stored, rewritten, ended
    PluginManager.invoke_hook                  the hooks it fired itself
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref

from .. import sdk
from . import hermes_fronts
from .hermes_messages import is_scaffolding, stored_content, stored_fields
from .taps import argument as _argument
from .taps import missing, replace, with_after, with_before
from .taps import quietly as _quietly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    Arguments = tuple[Any, ...]
    Named = dict[str, Any]

# How often the growing list of messages is looked at while several tools run one by one:
# releases before 0.18 tell nobody when one of them is done.
_LOOK_EVERY = 0.05
_HOOKS = ("on_session_end", "on_session_finalize")
# What the command line front ends interrupt their agent with on TERM and HUP. The interactive
# one then takes it for the next thing that the user said, and begins a turn with it.
_BY_SIGNAL = "received signal "
_BROKEN_OFF = "Operation interrupted"
_PHANTOM = "_hermes_supervise_phantom"

_sources: dict[str, str] = {}
_leaving: list[str] = []
_conversations: weakref.WeakValueDictionary[str, Conversation] = weakref.WeakValueDictionary()


class Conversation:
    """The session an AIAgent is in, as far as we have followed it."""

    def __init__(self, agent: Any) -> None:
        self.session = sdk.Session(agent.session_id, _about(agent))
        self._lock = threading.Lock()
        self._messages: list[Any] | None = None
        self._seen: dict[int, Any] = {}
        self._unsettled: list[tuple[str, str, Any]] = []
        self._fresh_turn = True
        self._restart = False
        self._turn_name: object = None
        self._turn_thread = 0
        self._turn_ended_early = False
        self.compressing: list[Any] | None = None
        self.closed = False
        _conversations[self.session.id] = self

    # -- the transcript ----------------------------------------------------------------------

    def begin_turn(self, message: object) -> None:
        with self._lock:
            self._messages, self._seen, self._fresh_turn = None, {}, True
            self._turn_thread, self._turn_ended_early = threading.get_ident(), False
            self.session.turn("start")
            self._say("user", {"content": message})

    def follow(self, messages: list[Any] | None = None) -> None:
        """Hand over what is new in Hermes' own list of messages."""
        with self._lock:
            if messages is not None and messages is not self._messages:
                self._start_from(messages)
            for message in self._messages or ():
                if isinstance(message, dict) and id(message) not in self._seen:
                    self._seen[id(message)] = message
                    if not is_scaffolding(message) and not message.get("_db_persisted"):
                        self._say(str(message.get("role")), message)

    def _start_from(self, messages: list[Any]) -> None:
        """Everything up to the turn's own user message, or to what we know, is not new."""
        known = -1
        for index, message in enumerate(messages):
            if not isinstance(message, dict):
                continue
            if self._fresh_turn:
                if message.get("role") == "user" and not is_scaffolding(message):
                    known = index
            elif id(message) in self._seen:
                known = index
        self._seen.update((id(message), message) for message in messages[: known + 1])
        self._messages, self._fresh_turn = messages, False

    def take_for_stored(self, messages: object) -> None:
        """Hermes replaced its list by one that is in the database already, or is its history."""
        with self._lock:
            self._messages = messages if isinstance(messages, list) else None
            self._seen = {id(message): message for message in self._messages or ()}
            self._fresh_turn = False

    def _say(self, role: str, message: Named) -> None:
        told = stored_fields(message)
        if role == "tool":
            told["tool_name"] = message.get("tool_name") or message.get("name")
        content = stored_content(message.get("content"))
        # Its own words for a turn that was broken off stand beside the reply, not for it.
        aside = role == "assistant" and str(content).startswith(_BROKEN_OFF)
        uid = self.session.message(role, content, aside=aside, **told)
        self._unsettled.append((uid, role, told.get("tool_call_id")))

    def stored(self, role: object, call: object, row: object) -> None:
        """Hermes wrote a row: the oldest message it can be is settled."""
        with self._lock:
            for index, (uid, its_role, its_call) in enumerate(self._unsettled):
                if its_role == role and (role != "tool" or its_call == call):
                    del self._unsettled[index]
                    self.session.settled([uid], [row] if isinstance(row, int) else [])
                    return

    def rewritten(self) -> None:
        with self._lock:
            self._unsettled.clear()
            self.session.rewritten()

    # -- the reply ---------------------------------------------------------------------------

    def piece(self, text: object, *, reasoning: bool) -> None:
        if isinstance(text, str) and text:
            restart, self._restart = self._restart, False
            self.session.delta(text, reasoning=reasoning, restart=restart)

    def expect_new_reply(self) -> None:
        self.follow()
        self._restart = True

    def end_turn(self, result: object) -> None:
        self.follow()
        self._turn_thread = 0
        if isinstance(result, dict) and not result.get("interrupted"):
            self.session.turn("end")
            return
        # A turn that was broken off did not end: if the process goes now, that is why.
        failed = result is None and sys.exc_info()[0] is not KeyboardInterrupt
        by = "signal" if _leaving else "fault" if failed else "user"
        self.session._say("turn", phase="broken off", by=by)

    def hook_fired(self, name: str) -> None:
        """An interrupted turn tells of its own end with the session's hook. It stands for the
        session's end, too, if that follows, and not if the user goes on."""
        of_the_turn = threading.get_ident() == self._turn_thread and not _leaving
        if name == "on_session_end" and of_the_turn:
            self._turn_ended_early = True
            return
        if name == "on_session_finalize" and self._turn_ended_early:
            self.session.hook("on_session_end")
        self.session.hook(name)

    def name_turn(self, agent: Any) -> None:
        """Releases that name a turn tell its name to the hooks."""
        turn = getattr(agent, "_current_turn_id", None)
        if turn and turn != self._turn_name:
            self._turn_name = turn
            task = getattr(agent, "_current_task_id", None)
            self.session._say("session", turn_id=turn, task_id=task)

    def rotate(self, new_id: str, messages: object) -> None:
        if new_id != self.session.id:
            self.session.rotate(new_id)
            _conversations[new_id] = self
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


def _about(agent: Any) -> dict[str, object]:
    about: dict[str, object] = {
        "source": _sources.get(agent.session_id) or getattr(agent, "platform", None) or "cli",
        "platform": getattr(agent, "platform", None),
        "model": getattr(agent, "model", None),
        "parent": getattr(agent, "_parent_session_id", None),
        "db": str(agent._session_db.db_path),
    }
    if getattr(agent, "_delegate_depth", 0):
        about["subagent"] = True
    shell = sys.modules.get("agent.shell_hooks")
    if getattr(shell, "_registered", None):
        about["shell_hooks"] = True
    return about


def _conversation(agent: Any) -> Conversation | None:
    """The conversation an agent is in now, if it is one to follow."""
    if not _is_followed(agent):
        return None
    found = agent.__dict__.get("_hermes_supervise")
    if found is None or found.session.id != agent.session_id:
        found = agent.__dict__["_hermes_supervise"] = Conversation(agent)
    return found if isinstance(found, Conversation) else None


def _is_followed(agent: Any) -> bool:
    """Not what is never stored, not a review fork, which shares its parent's session id, and
    not a turn that nobody asked for."""
    return (
        getattr(agent, "_session_db", None) is not None
        and isinstance(getattr(agent, "session_id", None), str)
        and not getattr(agent, "_persist_disabled", False)
        and getattr(agent, "_memory_write_origin", None) != "background_review"
        and not agent.__dict__.get(_PHANTOM)
    )


# -- the taps ----------------------------------------------------------------------------------


def _turn(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run_conversation(self: Any, *args: Any, **named: Any) -> Any:
        begun = _quietly(_begin_turn, self, args, named)
        result = None
        try:
            result = original(self, *args, **named)
            return result
        finally:
            if begun is not None:
                _quietly(begun.end_turn, result)

    return run_conversation


def _begin_turn(agent: Any, args: Arguments, named: Named) -> Conversation | None:
    stored = _argument(args, named, 5, "persist_user_message")
    said = _argument(args, named, 0, "user_message") if stored is None else stored
    agent.__dict__[_PHANTOM] = said in _leaving
    conversation = _conversation(agent)
    if conversation is not None:
        conversation.begin_turn(said)
        title = hermes_fronts.pending_title(agent)
        if title is not None:
            conversation.session.title(title)
    return conversation


def _interrupted(agent: Any, args: Arguments, named: Named) -> None:
    """Runs in a signal handler: it must not wait for a lock."""
    why = _argument(args, named, 0, "message")
    if isinstance(why, str) and why.startswith(_BY_SIGNAL):
        _leaving.append(why)


def _tools(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _execute_tool_calls(self: Any, *args: Any, **named: Any) -> Any:
        conversation = _quietly(_conversation, self)
        messages = _argument(args, named, 1, "messages")
        if conversation is None or not isinstance(messages, list):
            return original(self, *args, **named)
        _quietly(conversation.follow, messages)
        calls = getattr(_argument(args, named, 0, "assistant_message"), "tool_calls", None) or ()
        done = threading.Event()
        if len(calls) > 1:
            _quietly(_look_now_and_then, conversation, done)
        try:
            return original(self, *args, **named)
        finally:
            done.set()
            _quietly(conversation.follow)

    return _execute_tool_calls


def _look_now_and_then(conversation: Conversation, done: threading.Event) -> None:
    def look() -> None:
        while not done.wait(_LOOK_EVERY):
            _quietly(conversation.follow)

    threading.Thread(target=look, name="hermes-supervise", daemon=True).start()


def _tool_answered(agent: Any, args: Arguments, named: Named, result: object) -> None:
    conversation = _conversation(agent)
    call = _argument(args, named, 3, "tool_call_id")
    if conversation is not None and call and isinstance(result, str):
        name = _argument(args, named, 0, "function_name")
        conversation.session._say("tool", phase="end", call=call, name=name, result=result)


def _text_comes(agent: Any, args: Arguments, named: Named) -> None:
    _piece_comes(agent, args, named, reasoning=False)


def _reasoning_comes(agent: Any, args: Arguments, named: Named) -> None:
    _piece_comes(agent, args, named, reasoning=True)


def _piece_comes(agent: Any, args: Arguments, named: Named, *, reasoning: bool) -> None:
    conversation = _conversation(agent)
    if conversation is None:
        return
    superseded = getattr(agent, "_stream_writer_superseded", None)
    if superseded is None or not superseded():
        conversation.piece(_argument(args, named, 0, "text"), reasoning=reasoning)


def _reply_begins(agent: Any, args: Arguments, named: Named) -> None:
    conversation = _conversation(agent)
    if conversation is not None:
        conversation.expect_new_reply()
        conversation.name_turn(agent)


def _about_to_persist(agent: Any, args: Arguments, named: Named) -> None:
    conversation = _conversation(agent)
    messages = _argument(args, named, 0, "messages")
    if conversation is not None and isinstance(messages, list):
        conversation.follow(messages)


def _compressing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _compress_context(self: Any, *args: Any, **named: Any) -> Any:
        conversation = _quietly(_conversation, self)
        if conversation is None:
            return original(self, *args, **named)
        before, given = self.session_id, _argument(args, named, 0, "messages")
        conversation.compressing, conversation.closed = given or [], False
        try:
            result = original(self, *args, **named)
        finally:
            conversation.compressing = None
        messages = result[0] if isinstance(result, tuple) and result else None
        if self.session_id != before:
            _quietly(conversation.rotate, self.session_id, messages)
        else:
            _quietly(conversation.take_for_stored, messages)
        return result

    return _compress_context


def _row_written(db: Any, args: Arguments, named: Named, row: object) -> None:
    conversation = _conversations.get(_argument(args, named, 0, "session_id") or "")
    if conversation is not None and _argument(args, named, 2, "content") not in _leaving:
        role = _argument(args, named, 1, "role")
        conversation.stored(role, _argument(args, named, 5, "tool_call_id"), row)


def _session_created(db: Any, args: Arguments, named: Named, result: object) -> None:
    name, source = _argument(args, named, 0, "session_id"), _argument(args, named, 1, "source")
    if isinstance(name, str) and isinstance(source, str):
        older = _conversations.get(named.get("parent_session_id") or "")
        if older is not None and older.compressing is not None and older.closed:
            # Until the shorter list is stored, what it was made from is all there is.
            older.rotate(name, list(older.compressing))
            older.closed = False
        conversation = _conversations.get(name)
        if conversation is None:
            _sources[name] = source
        else:
            conversation.session._say("session", source=source, cwd=named.get("cwd"))


def _rows_rewritten(db: Any, args: Arguments, named: Named, result: object) -> None:
    conversation = _conversations.get(_argument(args, named, 0, "session_id") or "")
    if conversation is not None:
        conversation.rewritten()


def _session_ended(db: Any, args: Arguments, named: Named, result: object) -> None:
    conversation = _conversations.get(_argument(args, named, 0, "session_id") or "")
    if conversation is not None:
        reason = _argument(args, named, 1, "end_reason")
        ended = _argument(args, named, 0, "session_id")
        conversation.closed = ended == conversation.session.id
        conversation.session._say("ended", session=ended, reason=str(reason))


def _session_reopened(db: Any, args: Arguments, named: Named, result: object) -> None:
    conversation = _conversations.get(_argument(args, named, 0, "session_id") or "")
    if conversation is not None:
        conversation.session._announce()


def _hook_fired(manager: Any, args: Arguments, named: Named, result: object) -> None:
    name = _argument(args, named, 0, "hook_name")
    conversation = _conversations.get(str(named.get("session_id")))
    # on_session_end also closes every ordinary turn; that one is not the session's end.
    ends_it = name != "on_session_end" or named.get("interrupted")
    if conversation is not None and name in _HOOKS and ends_it:
        conversation.hook_fired(name)


_AROUND: dict[str, dict[str, Callable[..., Any]]] = {
    "AIAgent": {
        "run_conversation": _turn,
        "_execute_tool_calls": _tools,
        "_compress_context": _compressing,
    }
}
_BEFORE: dict[str, dict[str, Callable[..., None]]] = {
    "AIAgent": {
        "_fire_stream_delta": _text_comes,
        "_fire_reasoning_delta": _reasoning_comes,
        "_reset_stream_delivery_tracking": _reply_begins,
        "_persist_session": _about_to_persist,
        "_flush_messages_to_session_db": _about_to_persist,
        "interrupt": _interrupted,
    }
}
_AFTER: dict[str, dict[str, Callable[..., None]]] = {
    "AIAgent": {"_invoke_tool": _tool_answered},
    "SessionDB": {
        "append_message": _row_written,
        "create_session": _session_created,
        "replace_messages": _rows_rewritten,
        "clear_messages": _rows_rewritten,
        "end_session": _session_ended,
        "reopen_session": _session_reopened,
    },
    "PluginManager": {"invoke_hook": _hook_fired},
}
# Not in every release: their absence is no loss.
_AFTER_WHERE_THERE = {
    "SessionDB": {
        "archive_and_compact": _rows_rewritten,
        "rewind_to_message": _rows_rewritten,
        "restore_rewound": _rows_rewritten,
    },
}


def loaded(module: ModuleType) -> None:
    """A module of Hermes has been imported: tap the class it defines."""
    for kind in ("AIAgent", "SessionDB", "PluginManager"):
        found = module.__dict__.get(kind)
        if isinstance(found, type) and found.__module__ == module.__name__:
            _tap(found, kind)
    if module.__name__ == "run_agent":
        link = sdk.connection()
        if link is not None:
            link._about.update(
                agent="hermes", missing=missing, env=hermes_fronts.hermes_variables(),
                agent_version=getattr(sys.modules.get("hermes_cli"), "__version__", None),
            )  # fmt: skip
        hermes_fronts.hide_from_tools()
    elif module.__name__ == "tui_gateway.host_supervisor":
        hermes_fronts.loaded(module)


def _tap(owner: type, kind: str) -> None:
    for name, around in _AROUND.get(kind, {}).items():
        replace(owner, name, around)
    for name, before in _BEFORE.get(kind, {}).items():
        replace(owner, name, functools.partial(with_before, before))
    for name, after in _AFTER.get(kind, {}).items():
        replace(owner, name, functools.partial(with_after, after))
    for name, after in _AFTER_WHERE_THERE.get(kind, {}).items():
        if name in owner.__dict__:
            replace(owner, name, functools.partial(with_after, after))
