"""Taps on Hermes' AIAgent: the turn, the reply as it is streamed, tools, compression, signals.

Never changes what a method does. Each function here is called before or around the method that
`hermes.py` names for it.
"""

from __future__ import annotations

import threading

from . import hermes_conversation as conversations
from . import hermes_fronts, hermes_lookup
from .hermes_lookup import of as conversation_of
from .taps import argument, quietly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .hermes_conversation import Conversation
    from .taps import Arguments, Leave, Named

# How often the growing list of messages is checked while several tools run one by one: releases
# before 0.18 do not report when one of them is done.
_LOOK_EVERY = 0.05
# The message with which the command line front ends interrupt their agent on TERM and HUP. The
# interactive one then takes it for the user's next message, and begins a turn with it.
_BY_SIGNAL = "received signal "
# Arguments of `run_conversation` about the user's message, and the column for each.
_PERSISTED = {
    "persist_user_display_kind": "display_kind",
    "persist_user_display_metadata": "display_metadata",
    "persist_user_platform_id": "platform_message_id",
    "persist_user_platform_message_id": "platform_message_id",
}


def turn(agent: Any, args: Arguments, named: Named) -> Leave | None:
    stored = argument(args, named, 5, "persist_user_message")
    said = argument(args, named, 0, "user_message") if stored is None else stored
    agent.__dict__[hermes_lookup.PHANTOM] = said in conversations.leaving
    conversation = conversation_of(agent)
    if conversation is None:
        return None
    fields = {column: named[name] for name, column in _PERSISTED.items() if named.get(name)}
    conversation.begin_turn(said, fields)
    title = hermes_fronts.pending_title(agent)
    if title is not None:
        conversation.session.title(title)
    # The conversation may go on under another id, but it stays this object.
    return conversation.end_turn


def interrupted(agent: Any, args: Arguments, named: Named) -> None:
    """Runs in a signal handler: it must not wait for a lock, and tells nobody."""
    why = argument(args, named, 0, "message")
    if isinstance(why, str) and why.startswith(_BY_SIGNAL):
        if why not in conversations.leaving:
            conversations.leaving.append(why)
    elif (conversation := agent.__dict__.get("_hermes_supervise")) is not None:
        conversation.asked_to_stop = True


def tools_run(agent: Any, args: Arguments, named: Named) -> Leave | None:
    conversation = conversation_of(agent)
    messages = argument(args, named, 1, "messages")
    if conversation is None or not isinstance(messages, list):
        return None
    conversation.follow(messages)
    calls = getattr(argument(args, named, 0, "assistant_message"), "tool_calls", None) or ()
    done = threading.Event()
    if len(calls) > 1:
        _look_now_and_then(conversation, done)

    def leave(result: object, error: BaseException | None) -> None:
        done.set()
        conversation.follow()

    return leave


def _look_now_and_then(conversation: Conversation, done: threading.Event) -> None:
    def look() -> None:
        while not done.wait(_LOOK_EVERY):
            quietly(conversation.follow)

    threading.Thread(target=look, name="hermes-supervise", daemon=True).start()


def tool_answered(agent: Any, args: Arguments, named: Named, result: object) -> None:
    conversation = conversation_of(agent)
    call = argument(args, named, 3, "tool_call_id")
    if conversation is not None and call and isinstance(result, str):
        name = argument(args, named, 0, "function_name")
        conversation.session._say("tool", phase="end", call=call, name=name, result=result)


def text_comes(agent: Any, args: Arguments, named: Named) -> None:
    _piece_comes(agent, args, named, reasoning=False)


def reasoning_comes(agent: Any, args: Arguments, named: Named) -> None:
    _piece_comes(agent, args, named, reasoning=True)


def _piece_comes(agent: Any, args: Arguments, named: Named, *, reasoning: bool) -> None:
    conversation = conversation_of(agent)
    if conversation is None:
        return
    superseded = getattr(agent, "_stream_writer_superseded", None)
    if not (quietly(superseded) if callable(superseded) else superseded):
        conversation.piece(argument(args, named, 0, "text"), reasoning=reasoning)


def reply_begins(agent: Any, args: Arguments, named: Named) -> None:
    conversation = conversation_of(agent)
    if conversation is not None:
        conversation.expect_new_reply()
        conversation.name_turn(agent)


def about_to_ask(agent: Any, args: Arguments, named: Named) -> None:
    hermes_lookup.sends(agent)


def about_to_persist(agent: Any, args: Arguments, named: Named) -> None:
    conversation = conversation_of(agent)
    messages = argument(args, named, 0, "messages")
    if conversation is not None and isinstance(messages, list):
        conversation.follow(messages)


def compressing(agent: Any, args: Arguments, named: Named) -> Leave | None:
    conversation = conversation_of(agent)
    if conversation is None:
        return None
    before, given = agent.session_id, argument(args, named, 0, "messages")
    held = list(given or ())
    conversation.catch_up(given)
    conversation.compressing, conversation.closed = held, None

    def leave(result: object, error: BaseException | None) -> None:
        conversation.compressing = None
        if error is not None:
            return
        messages = result[0] if isinstance(result, tuple) and result else None
        if agent.session_id != before:
            conversation.rotate(agent.session_id, messages)
        elif messages is not given or not _are_the_same(held, messages):
            conversation.take_for_stored(messages)
        # Otherwise nothing was compressed.

    return leave


def _are_the_same(held: list[Any], messages: Any) -> bool:
    return len(held) == len(messages) and all(map(lambda a, b: a is b, held, messages))
