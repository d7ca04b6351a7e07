"""What recovery has to know of Hermes: how it stores text, which sessions are whose, its hooks.

Never imports Hermes: its plugins run in its own interpreter, by the shim's `hermes_hooks`.
"""

from __future__ import annotations

import os

from ..recovery.replay import Session, Told

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Everything else that Hermes calls a platform is a chat it serves, and it takes such a chat's
# session up again only if nobody has ended it.
_NOT_A_CHAT = frozenset(
    ("", "acp", "api_server", "cli", "cron", "curator", "desktop", "local", "msgraph_webhook",
     "subagent", "test", "tool", "tui", "unknown", "webhook", "webui")
)  # fmt: skip
# Why its front ends end a session when they shut down.
_CLOSING = frozenset(("cli_close", "tui_close", "tui_shutdown"))
# Sessions that Hermes began by itself.
_NOBODY_WAITS = frozenset(("cron", "curator", "subagent"))
# Asked one request at a time, by a program: between two requests nobody is in the session.
_REQUESTS = frozenset(("api_server", "msgraph_webhook", "webhook"))
# Reasoning that some models put between tags in their text; Hermes shows and stores none of it.
_TAGS = "think|thinking|thought|reasoning|reasoning_scratchpad"
_BEGUN = "|".join(tag[:size] for tag in _TAGS.split("|") for size in range(len(tag), 0, -1))
_HIDDEN = (
    rf"(?is)<({_TAGS})\b[^>]*>.*?</\1\s*>",
    rf"(?i)</(?:{_TAGS})\s*>\s*",
    rf"(?is)(?:^|\n)\s*<(?:{_TAGS})\b[^>]*>.*\Z",
    # Only where a tag may stand: elsewhere it is a character of the answer, which nobody may lose.
    rf"(?i)(?:^|\n)[ \t]*<(?:{_BEGUN})?\Z",
)

_RUNNER = os.path.join(
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
    "agent_shim", "adapters", "hermes_hooks.py",
)  # fmt: skip


def is_hermes(told: Told) -> bool:
    return told.hello.get("agent") == "hermes"


def may_be_ended(session: Session) -> bool:
    """Not a chat of the gateway's: an ended one would lose its history at the next message."""
    return str(session.about.get("source") or "") in _NOT_A_CHAT


def shown(text: str) -> str:
    """Of streamed text, what the user saw and Hermes would have stored."""
    if "<" not in text:
        return text
    import re  # compiling these takes longer than the rest of a recovery

    kept = text
    for hidden in _HIDDEN:
        kept = re.sub(hidden, "", kept)
    return text if kept == text else kept.strip()


def died_closing(session: Session, told: Told) -> bool:
    """Killed while it shut down: it has ended the row, and may not have lived to run its hooks."""
    clean = told.death is not None and told.death.code == 0
    return is_hermes(told) and session.ended in _CLOSING and not clean


def resume(session_id: str) -> str:
    """To be typed into a shell, so the id must be one word of it."""
    from shlex import quote

    return f"hermes --resume {quote(session_id)}"


def as_shown(session: Session) -> None:
    """Reduce a reply in progress to what was shown of it."""
    if session.reply is not None:
        session.reply.text_pieces = [shown(session.reply.text)]
    for item in session.items:
        if item.partial:
            item.message["content"] = shown(str(item.message["content"]))


def is_between_requests(session: Session) -> bool:
    """Nothing of it dies with the process, whatever ends that."""
    return not session.in_flight and session.about.get("source") in _REQUESTS


def is_the_users(session: Session) -> bool:
    """Not one that Hermes began by itself, nor one that works for another session."""
    source = str(session.about.get("source") or "")
    return not session.about.get("subagent") and source not in _NOBODY_WAITS


def hooks(
    session: Session, told: Told, extra: dict[str, Any], timeout: float
) -> tuple[list[str], list[str], dict[str, Any], dict[str, str]] | None:
    """What a death owes a session in Hermes' own interpreter; None if Hermes did it all.

    Its names, the words that run it, what it is told, and the environment of the dead process
    as far as that is known. Its runner notes by itself which callbacks it has been through.
    """
    names = ("on_session_end", "on_session_finalize")
    owed = [name for name in names if name not in session.hooks_fired]
    executable = told.hello.get("executable")
    if not owed or not isinstance(executable, str):
        return None
    common = {
        "session_id": session.id, "platform": extra["platform"], "reason": extra["reason"],
        "recovery_id": extra["recovery_id"],
    }  # fmt: skip
    end = {**common, "completed": False, "interrupted": True, "model": extra["model"]}
    if session.in_flight and "turn_id" in session.about:
        end |= {name: session.about.get(name) or "" for name in ("task_id", "turn_id")}
    arguments = {"on_session_end": end, "on_session_finalize": common}
    asked = {
        "owed": [[name, arguments[name]] for name in owed],
        # Not every front end registers any: the TUI's own process does not, for one.
        "shell_hooks": bool(session.about.get("shell_hooks")),
        "session": session.id,
        "platform": extra["platform"],
        "db": extra["state_db"],
        "timeout": timeout,
    }
    theirs = told.hello.get("env")
    env = {
        str(name): str(value)
        for name, value in (theirs.items() if isinstance(theirs, dict) else ())
        if not str(name).startswith("HERMES_SUPERVISE")
    }
    return owed, [executable, _RUNNER], asked, env
