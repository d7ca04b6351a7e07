"""What the agent of the kill-point sweep says, step by step, and what must come of it.

Shared by the agent, which plays the steps, and by the sweep, which folds them into the rows that
must be in state.db if the agent got as far as step N. The fold knows nothing of ours: it is a
second opinion. Each step hands over one record, or none.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

Step = tuple["str", "Any"]

_CALL = {"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}

# The smallest conversation that leaves something to recover.
SMALL: list[Step] = [
    ("session", "first"),
    ("message", ("u1", "user", "Are you there?", {})),
    ("delta", ("Yes, I ", False)),
    ("delta", ("am", False)),
]

# Everything a session does, with a reply in flight at the end.
WHOLE: list[Step] = [
    ("session", "first"),
    ("turn", "start"),
    ("message", ("u1", "user", "Who are you?", {})),
    ("delta", ("I am ", False)),
    ("delta", ("here", False)),
    ("message", ("u2", "assistant", "I am here", {})),
    ("turn", "end"),
    ("title", "An introduction"),
    ("store", ("u1", "u2")),
    ("settled", ("u1", "u2")),
    ("turn", "start"),
    ("message", ("u3", "user", "What is in this folder?", {})),
    ("message", ("u4", "assistant", None, {"tool_calls": [_CALL]})),
    ("tool", ("start", "call_1", None)),
    ("tool", ("end", "call_1", "three files")),
    ("message", ("u5", "tool", "three files", {"tool_call_id": "call_1", "tool_name": "ls"})),
    ("meet the successor", None),
    ("rotate", "second"),
    ("message", ("u6", "user", "And in the next one?", {})),
    ("delta", ("Let me think. ", True)),
    ("delta", ("In the ", False)),
    ("delta", ("next one", False)),
]

# One that ends in order.
ENDING: list[Step] = [
    ("session", "first"),
    ("message", ("u1", "user", "Goodbye?", {})),
    ("delta", ("Good", False)),
    ("message", ("u2", "assistant", "Goodbye", {})),
    ("end", "completed"),
]

# A session that is taken up again by another process, when the one before was killed in a reply.
REOPENED: list[Step] = [
    ("session", "first"),
    ("message", ("u1", "user", "Are you there?", {})),
    ("delta", ("Yes, I ", False)),
    ("die", None),
    ("session", "first"),
    ("message", ("u1", "user", "Are you there?", {})),
    ("delta", ("Yes, I ", False)),
    ("delta", ("am", False)),
    ("message", ("u2", "assistant", "Yes, I am", {})),
    ("message", ("u3", "user", "Are you there?", {})),
    ("delta", ("Yes", False)),
]

# Messages that take more than one frame: the agent cuts them at LONG.
LONG = 700
_TEXT = " ".join(f"word{number}" for number in range(300))
LONG_MESSAGES: list[Step] = [
    ("session", "first"),
    ("message", ("u1", "user", _TEXT, {})),
    ("message", ("u2", "assistant", "Well. " + _TEXT, {})),
    ("message", ("u3", "user", "Thanks.", {})),
    ("delta", ("You are ", False)),
]

SCRIPTS = {
    "small": SMALL, "whole": WHOLE, "ending": ENDING, "reopened": REOPENED, "long": LONG_MESSAGES,
}  # fmt: skip
RECORDLESS = ("store", "meet the successor", "die")


def expected(script: list[Step]) -> dict[str, dict[str, Any]]:
    """By session: the rows, the end reason, the title, and how many runs of a hook are owed."""
    sessions: dict[str, dict[str, Any]] = {}
    id = ""
    calls: dict[str, dict[str, Any]] = {}
    reply = {"text": "", "reasoning": ""}
    for what, given in script:
        if what == "session":
            id = given
            # One that was finished before owes nothing until something is said in it.
            again = sessions.get(id, {"rows": [], "title": None, "hooks": 1})
            sessions[id] = {**again, "end": "interrupted"}
        elif what == "die":
            if reply["text"]:
                row = _row("assistant", reply["text"], finish_reason="interrupted")
                sessions[id]["rows"].append(row)
            reply = {"text": "", "reasoning": ""}
            sessions[id]["hooks"] = 0
        elif what == "message":
            sessions[id]["hooks"] = 1
            _, role, content, more = given
            sessions[id]["rows"].append(_row(role, content, **more))
            if role == "assistant":
                reply = {"text": "", "reasoning": ""}
            for call in more.get("tool_calls", []):
                calls[call["id"]] = {"started": False, "result": None}
            calls.pop(more.get("tool_call_id", ""), None)
        elif what == "delta":
            sessions[id]["hooks"] = 1
            text, reasoning = given
            reply["reasoning" if reasoning else "text"] += text
        elif what == "tool":
            phase, call, result = given
            calls[call] = {"started": True, "result": result if phase == "end" else None}
        elif what == "title":
            sessions[id]["title"] = given
        elif what == "rotate":
            sessions[id] |= {"end": "compression", "hooks": 0}
            id = given
            sessions[id] = {
                "rows": [],
                "end": "interrupted",
                "title": None,
                "hooks": 1,
                "goes on": 1,
            }
        elif what == "end":
            sessions[id] |= {"end": given, "hooks": 0}
    for call, state in calls.items():
        if state["result"] is not None:
            sessions[id]["rows"].append(_row("tool", state["result"], tool_call_id=call))
        else:
            unknown = {"tool_call_id": call, "effect_disposition": "unknown"}
            sessions[id]["rows"].append(_row("tool", ..., **unknown))
    if reply["text"] or reply["reasoning"]:
        more = {"finish_reason": "interrupted", "reasoning": reply["reasoning"] or None}
        sessions[id]["rows"].append(_row("assistant", reply["text"], **more))
    for session in sessions.values():
        # Of a session without a word nothing is made, unless a conversation goes on in it.
        if not session["rows"] and "goes on" not in session:
            session["hooks"] = 0
    return sessions


class Beginning(str):
    """A long message of which only the first frame was handed over: its beginning is kept, and a
    word that something is missing."""

    def is_of(self, text: str | None) -> bool:
        kept = (text or "").partition(" [")[0].rstrip("\u2026")
        is_shorter = text != str(self) and len(kept) > LONG // 4
        return is_shorter and self.startswith(kept[: LONG // 4])


def cut_off(script: list[Step]) -> dict[str, dict[str, Any]] | None:
    """What must come of it if the last step is a long message, and not all of it was handed over;
    None if it is none."""
    what, given = script[-1]
    if what != "message" or len(given[2] or "") < LONG:
        return None
    sessions = expected(script)
    [session] = sessions.values()
    session["rows"][-1]["content"] = Beginning(given[2])
    return sessions


def _row(
    role: str,
    content: Any,
    tool_calls: Any = (),
    tool_call_id: str | None = None,
    finish_reason: str | None = None,
    reasoning: str | None = None,
    effect_disposition: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A row as the sweep compares it. `...` is content that says only that it is unknown."""
    return {
        "role": role,
        "content": content,
        "calls": [call["id"] for call in tool_calls],
        "tool_call_id": tool_call_id,
        "finish_reason": finish_reason,
        "reasoning": reasoning,
        "effect_disposition": effect_disposition,
    }
