"""Hermes Agent, unmodified: which of its methods are tapped, and what each tap provides.

Never changes what Hermes does: a tap hands over what it sees, on the caller's thread and before
Hermes goes on, and swallows its own faults. A method that a release has renamed costs only what no
other method provides; the hello record lists the capabilities that are `missing`.

    AIAgent.run_conversation                   the turn, and the user's message
    AIAgent._fire_stream_delta, _fire_reasoning_delta, _reset_stream_delivery_tracking
                                               the reply as it is streamed
    AIAgent._create_request_openai_client      whose request to the model comes next in this thread
    AIAgent._execute_tool_calls, _invoke_tool  tool calls and their results
    AIAgent._persist_session, _flush_messages_to_session_db
                                               the list of messages as it grows
    AIAgent._compress_context                  rotation
    AIAgent.interrupt, hard_interrupt          that a signal asked it to exit
    SessionDB.append_message, append_messages_batch and the rest
                                               what Hermes has stored, rewritten, ended
    PluginManager.invoke_hook                  the hooks it fired itself
"""

from __future__ import annotations

import functools
import sys
import weakref

from .. import children, sdk
from . import floor, hermes_fronts, hermes_lookup
from . import hermes_agent as agent
from . import hermes_conversation as conversations
from . import hermes_store as store
from .capabilities import Capabilities, find_class
from .taps import replace, when_asked_for, with_after, with_around, with_before

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

# The classes, each with methods that identify it if it has another name.
KINDS = {
    "AIAgent": ("run_conversation", "_execute_tool_calls", "_persist_session"),
    "SessionDB": ("append_messages_batch", "append_message", "create_session"),
    "PluginManager": ("invoke_hook",),
}
CAPABILITIES = Capabilities({
    "user message": [
        ("AIAgent.run_conversation",), ("AIAgent._persist_session",),
        ("AIAgent._flush_messages_to_session_db",),
    ],
    "deltas": [("AIAgent._fire_stream_delta",)],
    "reasoning": [("AIAgent._fire_reasoning_delta",)],
    "assistant with calls": [
        ("AIAgent._execute_tool_calls",), ("AIAgent._persist_session",),
        ("AIAgent._flush_messages_to_session_db",),
    ],
    "tool results": [
        ("AIAgent._execute_tool_calls",), ("AIAgent._invoke_tool",),
        ("AIAgent._persist_session",), ("AIAgent._flush_messages_to_session_db",),
    ],
    "settled": [("SessionDB.append_messages_batch",), ("SessionDB.append_message",)],
    "rotation": [
        ("AIAgent._compress_context",), ("SessionDB.publish_compression_child",),
        ("SessionDB.end_session", "SessionDB.create_session"),
    ],
    "rewrite": [("SessionDB.replace_messages",), ("SessionDB.archive_and_compact",)],
    "ends": [("SessionDB.end_session",)],
    "hooks fired": [("PluginManager.invoke_hook",)],
    "told to leave": [("AIAgent.hard_interrupt",), ("AIAgent.interrupt",)],
})  # fmt: skip

# The modules that these classes come from.
_HOMES = {
    "AIAgent": "run_agent", "SessionDB": "hermes_state", "PluginManager": "hermes_cli.plugins",
}  # fmt: skip

TAPS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "AIAgent.run_conversation": (with_around, agent.turn),
    "AIAgent._execute_tool_calls": (with_around, agent.tools_run),
    "AIAgent._compress_context": (with_around, agent.compressing),
    "AIAgent._fire_stream_delta": (with_before, agent.text_comes),
    "AIAgent._fire_reasoning_delta": (with_before, agent.reasoning_comes),
    "AIAgent._reset_stream_delivery_tracking": (with_before, agent.reply_begins),
    "AIAgent._create_request_openai_client": (with_before, agent.about_to_ask),
    "AIAgent._persist_session": (with_before, agent.about_to_persist),
    "AIAgent._flush_messages_to_session_db": (with_before, agent.about_to_persist),
    "AIAgent.interrupt": (with_before, agent.interrupted),
    "AIAgent.hard_interrupt": (with_before, agent.interrupted),
    "AIAgent._invoke_tool": (with_after, agent.tool_answered),
    "SessionDB.append_message": (with_after, store.row_appended),
    "SessionDB.append_messages_batch": (with_around, store.rows_appended),
    "SessionDB._insert_message_rows": (with_after, store.rows_inserted),
    "SessionDB.create_session": (with_after, store.session_created),
    "SessionDB.publish_compression_child": (with_around, store.child_published),
    "SessionDB.replace_messages": (with_after, store.rows_rewritten),
    "SessionDB.clear_messages": (with_after, store.rows_rewritten),
    "SessionDB.archive_and_compact": (with_after, store.rows_rewritten),
    "SessionDB.rewind_to_message": (with_after, store.rows_rewritten),
    "SessionDB.restore_rewound": (with_after, store.rows_rewritten),
    "SessionDB.end_session": (with_after, store.session_ended),
    "SessionDB.reopen_session": (with_after, store.session_reopened),
    "PluginManager.invoke_hook": (with_around, store.hook_fires),
}

# What the floor captures where Hermes' own methods do not provide it.
_FLOOR = ("user message", "deltas", "reasoning", "assistant with calls", "tool results")

_tapped: weakref.WeakSet[type] = weakref.WeakSet()


def loaded(module: ModuleType) -> None:
    """A module of Hermes has been imported: tap the classes in it, wherever they were defined."""
    for kind, marks in KINDS.items():
        found = find_class(module, kind, marks)
        if found is None:
            when_asked_for(module, kind, functools.partial(_tap, kind))
        else:
            _tap(kind, found)
    _introduce(module.__name__ == "run_agent")


def found(module: ModuleType, kind: str, owner: type) -> None:
    """A module of another name defines one of the classes: a release has moved it."""
    _HOMES[kind] = module.__name__
    _tap(kind, owner)
    _introduce(kind == "AIAgent")


def _introduce(runs_agents: bool) -> None:
    """Tell the supervisor who we are, as soon as that is known. `runs_agents`: the module that
    defines agents has been imported."""
    link = sdk.connection()
    if link is not None and (runs_agents or _runs_agents()):
        if "env" not in link._about:
            link._about["env"] = hermes_fronts.hermes_variables()
        link._about.update(
            agent="hermes", missing=_lost(), capabilities=CAPABILITIES.held(),
            agent_version=getattr(sys.modules.get("hermes_cli"), "__version__", None),
        )  # fmt: skip
    if runs_agents:
        children.hide()


def _lost() -> list[str]:
    """What is not captured, as far as this process does it at all: a process that has never
    imported the plugins fires no hooks."""
    return [
        name
        for name in CAPABILITIES.missing()
        for way in CAPABILITIES.ways[name][:1]
        if any(_HOMES[tap.partition(".")[0]] in sys.modules for tap in way)
    ]


def _runs_agents() -> bool:
    """True if this process runs agents: not every process that opens the database does."""
    return any(CAPABILITIES.is_tapped(name) for name in TAPS if name.startswith("AIAgent."))


def _tap(kind: str, owner: object) -> None:
    """Tap the class of this name, once."""
    if not isinstance(owner, type) or owner in _tapped:
        return
    _tapped.add(owner)
    if kind == "SessionDB":
        hermes_lookup.stores.add(owner)
    for name, (wrapped, look) in TAPS.items():
        of, _, method = name.partition(".")
        if of == kind and replace(owner, method, functools.partial(wrapped, look)):
            CAPABILITIES.tapped(name)


def _lacks(capability: str) -> bool:
    return not CAPABILITIES.at_its_best(capability)


def _captures_all() -> bool:
    return not any(map(_lacks, _FLOOR))


def _belongs_to(messages: list[Any], lasting: bool) -> floor.Listener | None:
    if not _runs_agents():
        return None
    if not lasting:
        return hermes_lookup.Unfollowed()  # a title, a summary
    tapped = CAPABILITIES.is_tapped("AIAgent.run_conversation")
    return hermes_lookup.asked(messages, turns_are_tapped=tapped)


def _by_the_models_stream() -> str | None:
    """The package below the model SDKs through which the floor captures, if it is there."""
    names = ("httpx", "httpx2")
    if not any(name in sys.modules for name in names):
        try:
            from importlib.util import find_spec  # only where something is missing

            if not any(map(find_spec, names)):
                return None
        except (ImportError, ValueError):
            return None
    return "the model's own stream (httpx)"


for _name in _FLOOR:
    CAPABILITIES.otherwise(_name, _by_the_models_stream)
conversations.lacks.append(_lacks)
floor.steps_aside.append(_captures_all)
floor.belongs_to.append(_belongs_to)
