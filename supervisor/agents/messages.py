"""Messages as Hermes stores them, made of what agents write. Pure.

Never raises if an agent wrote something in an unknown shape: what is not text is left out.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .protocol import Entry, Record

_IMAGE = "[image]"
# Later than any clock shows in seconds; what is above it counts milliseconds.
_LAST_SECOND = 1e11


def call(id: object, name: object, arguments: object) -> dict[str, Any]:
    """A tool call, as in OpenAI's chat API."""
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    return {
        "id": str(id),
        "type": "function",
        "function": {"name": str(name or "tool"), "arguments": arguments},
    }


def assistant(
    text: str, calls: list[dict[str, Any]] | None = None, reasoning: str = ""
) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = list(calls)
        message["finish_reason"] = "tool_calls"
    if reasoning:
        message["reasoning"] = reasoning
    return message


def answer(id: object, name: object, text: str) -> dict[str, Any]:
    """The result of a tool call."""
    message = {"role": "tool", "tool_call_id": str(id), "content": text}
    if name:
        message["tool_name"] = str(name)
    return message


def said(session: str, uid: object, message: dict[str, Any], at: float | None) -> Record:
    record: Record = {
        "kind": "message", "session": session, "uid": str(uid), "message": message
    }  # fmt: skip
    return record if at is None else {**record, "at": at}


def about(session: str, at: float | None, **known: object) -> Record:
    """A session record with what is known about the session."""
    record: Record = {"kind": "session", "session": session}
    record |= {name: value for name, value in known.items() if value is not None}
    return record if at is None else {**record, "at": at}


def text_of(content: object) -> str:
    """The text in a message's content: a string, a part, or a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(filter(None, map(text_of, content)))
    if not isinstance(content, dict):
        return ""
    if isinstance(content.get("text"), str):
        return str(content["text"])
    kind = str(content.get("type") or "")
    if "image" in kind or "inlineData" in content:
        return _IMAGE
    if kind == "document" or "fileData" in content:
        return "[document]"
    return text_of(content["content"]) if "content" in content else ""


def result_of(content: object) -> str:
    """A tool's result as text. Anything else is shown as it was written."""
    text = text_of(content)
    if text or content in (None, "", [], {}):
        return text
    return json.dumps(content, ensure_ascii=False)


def moment(value: object) -> float | None:
    """Seconds since the epoch, from those, from milliseconds or from ISO 8601."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float) and 0 < value < 1e15:
        return value / 1000 if value > _LAST_SECOND else float(value)
    if isinstance(value, str) and value[:4].isdigit():
        try:
            found = datetime.fromisoformat(value.strip())
        except ValueError:
            return None
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    return None


def name_in(entry: Entry, *fields: str) -> str | None:
    """The first of these fields that holds a text."""
    for field in fields:
        value = entry.get(field)
        if isinstance(value, str) and value:
            return value
    return None
