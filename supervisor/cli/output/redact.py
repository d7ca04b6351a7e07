"""Makes a report safe to share: texts, names and paths are replaced by their length. Pure.

Never changes structure or times: what happened, in which order, and how long it took. The names of
tools, signals, outcomes, agent and model stay, because a report is useless without them.
"""

from __future__ import annotations

import json
from typing import Any

from ....ipc.lightweight.dataclass import replace
from ...recovery.report import SessionReport
from .story import calls_of

# Columns without private data. All others are left out.
_KEPT_OF_MESSAGE = ("id", "role", "timestamp", "finish_reason", "effect_disposition", "tool_name")
_KEPT_OF_SESSION = ("source", "model", "started_at", "ended_at", "end_reason", "message_count",
                    "tool_call_count")  # fmt: skip
_OUTCOMES = ("ok", "exit ", "killed by ", "timed out", "waiting", "running", "cut off")


def hidden(text: object, what: str = "text") -> str:
    count = len(str(text))
    return f"[{what}: {count:,} character{'' if count == 1 else 's'}]"


def report(original: SessionReport, name: str = "session-1") -> SessionReport:
    calls = {call["call"]: f"call-{n}" for n, call in enumerate(original.open_calls, 1)}
    return replace(
        original,
        session=name,
        run="run-1",
        stream="",
        db=hidden(original.db, "path"),
        resume=hidden(original.resume, "command") if original.resume else None,
        resume_full=hidden(original.resume_full, "command") if original.resume_full else None,
        open_calls=[{**call, "call": calls[call["call"]]} for call in original.open_calls],
        hooks=[_hook(ran) for ran in original.hooks],
        problems=[hidden(problem, "problem") for problem in original.problems],
        not_captured=[hidden(name, "name") for name in original.not_captured],
        orphans=[_orphan(orphan) for orphan in original.orphans],
    )


def _hook(ran: dict[str, Any]) -> dict[str, Any]:
    outcome = str(ran["outcome"])
    plain = outcome if outcome.startswith(_OUTCOMES) else hidden(outcome, "outcome")
    kept = {key: ran.get(key) for key in ("attempt", "state", "event", "at", "ended")}
    return {**kept, "outcome": plain, "command": hidden(ran["command"], "command"), "output": ""}


def _orphan(orphan: dict[str, Any]) -> dict[str, Any]:
    below = [
        {**child, "command": hidden(child["command"], "command")}
        for child in orphan.get("below") or []
    ]
    dumps = [hidden(path, "path") for path in orphan["dumps"]]
    command = hidden(orphan["command"], "command")
    return {**orphan, "command": command, "dumps": dumps, "below": below}


def transcript(
    session: dict[str, Any] | None, messages: list[dict[str, Any]], original: SessionReport
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The rows without texts. `original` is the unredacted report, for the ids of its calls."""
    if session is not None:
        title = session.get("title")
        kept = {name: session.get(name) for name in _KEPT_OF_SESSION}
        session = {**kept, "id": "session-1", "title": hidden(title, "title") if title else None}
    names = {str(call["call"]): f"call-{n}" for n, call in enumerate(original.open_calls, 1)}
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
    calls = calls_of(message)
    if calls:
        kept["tool_calls"] = json.dumps(
            [
                {"id": renamed(id), "function": {"name": n, "arguments": hidden(a, "arguments")}}
                for id, n, a in calls
            ]
        )
    return kept
