"""Any file of JSON lines that are messages: a role and a content, in one of the usual shapes.

    {"role": …, "content": …, "tool_calls": …, "tool_call_id": …}   as in OpenAI's chat API
    {"role": …, "content": [{"type": "tool_use" | "tool_result", …}]}  as in Anthropic's
    {"role": …, "parts": [{"functionCall" | "functionResponse": …}]}   as in Google's
    {"role": "assistant" | "toolResult", "content": [{"type": "toolCall", …}]}   as pi has them
    {"message": {"role": …, …}, …}                                     any of these, wrapped

Pure. What is said in another shape is not stored, and the first of it in a file is reported. A
message without an id is identified by its text and by how often that text has occurred, so
that a file that is written anew from its beginning is not reported again.
"""

from __future__ import annotations

import os
from hashlib import blake2b

from ..messages import about, answer, assistant, call, moment, name_in, result_of, said, text_of
from ..protocol import Fold, LineFiles

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..protocol import Entry, Record

SOURCE = "transcript"
_ROLES = {"human": "user", "ai": "assistant", "model": "assistant", "function": "tool",
          "toolResult": "tool"}  # fmt: skip
_KNOWN = ("user", "assistant", "tool", "system")
_SESSION = ("session_id", "sessionId", "conversation_id", "conversationId", "thread_id")
_TIMES = ("timestamp", "created_at", "createdAt", "time", "ts")
# Parts that have no text of their own, or one that nobody could read.
_PARTS = ("thinking", "redacted_thinking", "reasoning", "tool_use", "tool_result")


class JsonlFiles(LineFiles):
    named_by_user = True

    def __init__(self, path: str) -> None:
        self._path = path

    def folders(self) -> list[str]:
        return [self._path]

    def accepts(self, path: str) -> bool:
        return path == self._path or path.endswith((".jsonl", ".ndjson"))

    def fold(self, path: str) -> JsonlFold:
        return JsonlFold(path)

    def belongs(self, entry: Entry) -> bool:
        return True  # the user said so


class JsonlFold(Fold):
    """One file."""

    def __init__(self, path: str) -> None:
        stem = os.path.splitext(os.path.basename(path))[0]
        # Every folder may hold a `chat.jsonl`.
        place = blake2b(os.fsencode(os.path.realpath(path)), digest_size=4).hexdigest()
        self.family = f"{stem}-{place}"
        self._names: dict[str, str] = {}
        self._complained = False

    def line(self, entry: Entry, key: str) -> list[Record]:
        inner = entry.get("message")
        message: Entry = inner if isinstance(inner, dict) and "role" in inner else entry
        role = message.get("role") or message.get("type")
        role = _ROLES.get(role, role) if isinstance(role, str) else None
        if role not in _KNOWN:
            return []
        session = name_in(entry, *_SESSION) or self.family
        at = next(filter(None, (moment(entry.get(name)) for name in _TIMES)), None)
        model = name_in(message, "model") or name_in(entry, "model")
        records = [about(session, at, source=SOURCE, model=model)]
        uid = name_in(message, "id", "uuid", "uid") or name_in(entry, "id", "uuid", "uid") or key
        message = _in_usual_shape(message)
        unknown = _unknown_in(message)
        for uid_of, part in self._messages(role, message, uid):
            if unknown is None or part["content"] or part.get("tool_calls"):
                records.append(said(session, uid_of, part, at))
        if unknown is not None and not self._complained:
            self._complained = True
            text = f"a message in {self.family} has {unknown}, which is not stored"
            records.append({"kind": "trouble", "session": session, "text": text})
        return records

    def _messages(self, role: str, message: Entry, uid: str) -> list[tuple[str, dict[str, Any]]]:
        content = message.get("content")
        parts = content if isinstance(content, list) else [content]
        blocks = [part for part in parts if isinstance(part, dict)]
        if role == "tool":
            id = name_in(message, "tool_call_id", "call_id", "toolCallId") or uid
            name = name_in(message, "tool_name", "name", "toolName") or self._names.get(id)
            return [(uid, answer(id, name, result_of(content)))]
        if role == "assistant":
            return [(uid, self._assistant(message, parts, blocks))]
        found = []
        for block in blocks:
            if block.get("type") == "tool_result":
                id = str(block.get("tool_use_id"))
                result = answer(id, self._names.get(id), result_of(block.get("content")))
                found.append((f"{uid}:{id}", result))
        rest = [p for p in parts if not (isinstance(p, dict) and p.get("type") == "tool_result")]
        if text := text_of(rest):
            found.append((uid, {"role": role, "content": text}))
        return found

    def _assistant(
        self, message: Entry, parts: list[Any], blocks: list[dict[str, Any]]
    ) -> dict[str, Any]:
        thoughts = [str(b.get("thinking") or "") for b in blocks if b.get("type") == "thinking"]
        reasoning = name_in(message, "reasoning", "reasoning_content") or "\n\n".join(thoughts)
        calls = [
            call(block["id"], block.get("name"), block.get("input"))
            for block in blocks
            if block.get("type") == "tool_use" and block.get("id")
        ]
        given = message.get("tool_calls")
        for made in given if isinstance(given, list) else []:
            if isinstance(made, dict) and made.get("id"):
                inner = made.get("function")
                function = inner if isinstance(inner, dict) else made
                calls.append(call(made["id"], function.get("name"), function.get("arguments")))
        for tool_call in calls:
            self._names[tool_call["id"]] = tool_call["function"]["name"]
        own = ("thinking", "tool_use")
        texts = [p for p in parts if not (isinstance(p, dict) and p.get("type") in own)]
        return assistant(text_of(texts), calls, reasoning)


def _in_usual_shape(message: Entry) -> Entry:
    """The message with its parts as in Anthropic's API."""
    parts = message.get("content")
    if parts is None and isinstance(message.get("parts"), list):
        parts = message["parts"]
    if not isinstance(parts, list):
        return message
    return {
        **message,
        "content": [_part(part) if isinstance(part, dict) else part for part in parts],
    }


def _part(part: Entry) -> Entry:
    made, result = part.get("functionCall"), part.get("functionResponse")
    if part.get("type") == "toolCall":
        made = {**part, "args": part.get("arguments")}
    if isinstance(made, dict):
        id = name_in(made, "id", "name")
        return {"type": "tool_use", "id": id, "name": made.get("name"), "input": made.get("args")}
    if isinstance(result, dict):
        response = result.get("response")
        output = response.get("output") if isinstance(response, dict) else None
        content = response if output is None else output
        id = name_in(result, "id", "name")
        return {"type": "tool_result", "tool_use_id": id, "content": content}
    if part.get("thought") is True:
        return {"type": "thinking", "thinking": part.get("text")}
    return part


def _unknown_in(message: Entry) -> str | None:
    """What of a message is in no shape that is known here."""
    if "role" in message and not {"content", "tool_calls", "text"}.intersection(message):
        return "no content"
    content = message.get("content")
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, dict) and not isinstance(part.get("text"), str):
            kind = str(part.get("type") or "no type")
            if kind not in _PARTS and not text_of(part):
                return f"a part of an unknown kind ({kind[:40]})"
    return None
