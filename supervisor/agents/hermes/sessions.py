"""What recovery has to know about Hermes: how it stores text, whose sessions are whose, its hooks.

Never imports Hermes: its plugins run in its own interpreter, by the shim's `hermes_hooks`.
"""

from __future__ import annotations

import os

from ...model.options import END, FINALIZE
from ...model.stream import ReplayedStream, Session
from ...process.package import SHIM_FOLDER
from ..protocol import OwnHooks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Every other platform of Hermes is a chat that it serves. It continues such a chat's session only
# if nobody has ended it.
_NOT_A_CHAT = frozenset(
    ("", "acp", "api_server", "cli", "cron", "curator", "desktop", "kanban", "local",
     "msgraph_webhook", "oneshot", "subagent", "test", "tool", "tui", "unknown", "webhook", "webui")
)  # fmt: skip
# Why its front ends end a session when they shut down.
_CLOSING = frozenset(("cli_close", "tui_close", "tui_shutdown"))
_BY_SIGNAL = "received signal "
# Sessions that Hermes began by itself.
_NOBODY_WAITS = frozenset(("cron", "curator", "kanban", "subagent"))
# A program sends one request at a time: between two requests nobody is in the session.
_REQUESTS = frozenset(("api_server", "msgraph_webhook", "webhook"))
# Reasoning that some models put between tags in their text; Hermes shows and stores none of it.
_TAGS = "think|thinking|thought|reasoning|reasoning_scratchpad"
_BEGUN = "|".join(tag[:size] for tag in _TAGS.split("|") for size in range(len(tag), 0, -1))
_HIDDEN = (
    rf"(?is)<({_TAGS})\b[^>]*>.*?</\1\s*>",
    rf"(?i)</(?:{_TAGS})\s*>\s*",
    rf"(?is)(?:^|\n)\s*<(?:{_TAGS})\b[^>]*>.*\Z",
    # Only where a tag may be: elsewhere it is part of the answer, which must not be lost.
    rf"(?i)(?:^|\n)[ \t]*<(?:{_BEGUN})?\Z",
)

_RUNNER = os.path.join(SHIM_FOLDER, "adapters", "hermes_hooks.py")


def may_be_ended(session: Session) -> bool:
    """False for a chat of the gateway: an ended chat would lose its history at the next message."""
    return str(session.about.get("source") or "") in _NOT_A_CHAT


def shown(text: str) -> str:
    """The part of a streamed text that the user saw and Hermes would have stored."""
    if "<" not in text:
        return text
    import re  # compiling these takes longer than the rest of a recovery

    kept = text
    for hidden in _HIDDEN:
        kept = re.sub(hidden, "", kept)
    return text if kept == text else kept.strip()


def died_closing(session: Session, stream: ReplayedStream) -> bool:
    """True if it was killed during its shutdown: the row is ended, its hooks may not have run."""
    clean = stream.death is not None and stream.death.code == 0
    return session.ended in _CLOSING and not clean


def left_unclosed(session: Session) -> bool:
    """True if it exited with 0 in the middle of a turn, and ended no row.

    The TUI's gateway ends its rows last. A second signal raises in the handler of the first, and
    the gateway then exits in the middle of that, with no hook run. `chat -q` ends no row at all; if
    a signal breaks its turn off in a tool, it may end the turn in order."""
    in_a_turn = session.in_flight and not session.stopped
    broken_off = "broken off" in session.sources
    return (
        in_a_turn and session.ended is None and (broken_off or session.about.get("source") == "tui")
    )


def was_cut_off(session: Session, reason: str | None) -> bool:
    """Hermes catches a hangup, stores what it has and closes the row as if the user had left."""
    in_a_turn = session.cut_off or (session.in_flight and not session.stopped)
    return reason in _CLOSING and in_a_turn


def is_own_note(text: str) -> bool:
    """True for the message that an interactive Hermes makes from a signal and starts a turn
    with."""
    return text.startswith(_BY_SIGNAL) and text[len(_BY_SIGNAL) :].strip().isdigit()


def resume_hint(session_id: str) -> str:
    """For a shell, so the id must be one word of it."""
    from shlex import quote  # costs more than the rest of this module

    return f"hermes --resume {quote(session_id)}"


def keep_what_was_shown(session: Session) -> None:
    if session.reply is not None:
        session.reply.text_pieces = [shown(session.reply.text)]
    for item in session.items:
        if item.partial:
            item.message["content"] = shown(str(item.message["content"]))


def is_between_requests(session: Session) -> bool:
    """True if the end of the process interrupts nothing, however it ends."""
    return not session.in_flight and session.about.get("source") in _REQUESTS


def is_the_users(session: Session) -> bool:
    """False for a session that Hermes started by itself, or that works for another session."""
    source = str(session.about.get("source") or "")
    return not session.about.get("subagent") and source not in _NOBODY_WAITS


def own_hooks(
    session: Session, stream: ReplayedStream, extra: dict[str, Any], timeout: float
) -> OwnHooks | None:
    """The hooks that Hermes' own interpreter has to run; None if Hermes ran them all.

    The process that runs them notes by itself which callbacks are done.
    """
    owed = [name for name in (END, FINALIZE) if name not in session.hooks_fired]
    executable = stream.hello.get("executable")
    if not owed or not isinstance(executable, str):
        return None
    common = {
        "session_id": session.id, "platform": extra["platform"], "reason": extra["reason"],
        "recovery_id": extra["recovery_id"],
    }  # fmt: skip
    end = {**common, "completed": False, "interrupted": True, "model": extra["model"]}
    if session.in_flight and "turn_id" in session.about:
        end |= {name: session.about.get(name) or "" for name in ("task_id", "turn_id")}
    arguments = {END: end, FINALIZE: common}
    asked = {
        "owed": [[name, arguments[name]] for name in owed],
        # The agent began to run these, and died or was told to leave in the middle of it.
        "cut_off": [name for name in owed if name in session.hooks_begun],
        # Not every front end registers hooks: the TUI's own process does not, for example.
        "shell_hooks": bool(session.about.get("shell_hooks")),
        "webhooks": bool(session.about.get("webhooks")),
        "session": session.id,
        "platform": extra["platform"],
        "db": extra["state_db"],
        "timeout": timeout,
    }
    theirs = stream.hello.get("env")
    env = {
        str(name): str(value)
        for name, value in (theirs.items() if isinstance(theirs, dict) else ())
        if not str(name).startswith("HERMES_SUPERVISE")
    }
    return OwnHooks(owed, [executable, _RUNNER], asked, env)
