"""A report made fit for sharing: what was said, and whose it was, is replaced by how long it is.

Never changes the structure or a time: what happened, in which order and how long it took stays.
Names of tools, signals, outcomes, agent and model stay, too: they are what a report is read for.
"""

from __future__ import annotations

import json
from typing import Any

from ..plain import replace
from ..recovery.report import Settled
from .story import calls_of

# Of a row, what says nothing about anybody. All else is left out.
_KEPT_OF_MESSAGE = ("id", "role", "timestamp", "finish_reason", "effect_disposition", "tool_name")
_KEPT_OF_SESSION = ("source", "model", "started_at", "ended_at", "end_reason", "message_count",
                    "tool_call_count")  # fmt: skip
_OUTCOMES = ("ok", "exit ", "killed by ", "timed out", "waiting", "running", "cut off")


def hidden(text: object, what: str = "text") -> str:
    count = len(str(text))
    return f"[{what}: {count:,} character{'' if count == 1 else 's'}]"


def settled(one: Settled, name: str = "session-1") -> Settled:
    calls = {call["call"]: f"call-{n}" for n, call in enumerate(one.open_calls, 1)}
    return replace(
        one,
        session=name,
        run="run-1",
        stream="",
        db=hidden(one.db, "path"),
        resume=hidden(one.resume, "command") if one.resume else None,
        open_calls=[{**call, "call": calls[call["call"]]} for call in one.open_calls],
        hooks=[_hook(ran) for ran in one.hooks],
        problems=[hidden(problem, "problem") for problem in one.problems],
        orphans=[_orphan(orphan) for orphan in one.orphans],
    )


def _hook(ran: dict[str, Any]) -> dict[str, Any]:
    outcome = str(ran["outcome"])
    plain = outcome if outcome.startswith(_OUTCOMES) else hidden(outcome, "outcome")
    kept = {key: ran.get(key) for key in ("attempt", "state", "event", "at", "ended")}
    return {**kept, "outcome": plain, "command": hidden(ran["command"], "command"), "output": ""}


def _orphan(orphan: dict[str, Any]) -> dict[str, Any]:
    below = [
        {**one, "command": hidden(one["command"], "command")} for one in orphan.get("below") or []
    ]
    dumps = [hidden(path, "path") for path in orphan["dumps"]]
    command = hidden(orphan["command"], "command")
    return {**orphan, "command": command, "dumps": dumps, "below": below}


def transcript(
    session: dict[str, Any] | None, messages: list[dict[str, Any]], one: Settled
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The rows without a word. `one` is the report as it was, for the ids of its calls."""
    if session is not None:
        title = session.get("title")
        kept = {name: session.get(name) for name in _KEPT_OF_SESSION}
        session = {**kept, "id": "session-1", "title": hidden(title, "title") if title else None}
    names = {str(call["call"]): f"call-{n}" for n, call in enumerate(one.open_calls, 1)}
    return session, [_message(message, names) for message in messages]


def _message(message: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    kept = {name: message.get(name) for name in _KEPT_OF_MESSAGE}
    role = str(message.get("role"))
    what = "tool result" if role == "tool" else "text"
    if message.get("content"):
        kept["content"] = hidden(message["content"], what)
    if message.get("reasoning"):
        kept["reasoning"] = hidden(message["reasoning"], "reasoning")

    def renamed(id: str) -> str:
        return names.setdefault(id, f"call-{len(names) + 1}")

    if message.get("tool_call_id"):
        kept["tool_call_id"] = renamed(str(message["tool_call_id"]))
    made = calls_of(message)
    if made:
        kept["tool_calls"] = json.dumps(
            [
                {"id": renamed(id), "function": {"name": n, "arguments": hidden(a, "arguments")}}
                for id, n, a in made
            ]
        )
    return kept
