"""Gemini CLI: `~/.gemini/tmp/<project>/chats/session-<time>-<id>.jsonl`. Pure.

    {"sessionId", "projectHash", …}    the first line
    {"id", "type": "user" | "gemini"}  a message; the same id again is the message as it is now
    {"$set": {…}}                      a summary, or messages put right, which is for the model
    {"$rewindTo": id}                  for the model; what was said was said

A subagent's file lies in a folder that is named after its parent's session. Results of tools
stand in the message that called them.
"""

from __future__ import annotations

import os
from hashlib import sha256

from ..messages import about, answer, assistant, call, moment, name_in, result_of, said, text_of
from ..node_tap import NodeTap, TappedFiles
from ..protocol import Fold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..protocol import Entry, Place, Record

SOURCE = "gemini-cli"
# Texts that Gemini CLI writes in the user's name.
_INJECTED = ("<session_context>",)
_OVER = ("success", "error", "cancelled")


class GeminiFiles(TappedFiles):
    def __init__(self, place: Place, tap: NodeTap | None = None) -> None:
        super().__init__(tap)
        env, cwd = place.env, place.cwd
        home = env.get("GEMINI_CLI_HOME") or env.get("HOME") or os.path.expanduser("~")
        self._folder = os.path.join(home, ".gemini", "tmp")
        self._projects = {cwd, os.path.realpath(cwd)}
        self._hashes = {sha256(os.fsencode(path)).hexdigest() for path in self._projects}

    def folders(self) -> list[str]:
        return [self._folder]

    def accepts(self, path: str) -> bool:
        return path.endswith(".jsonl") and "/chats/" in path

    def parser(self, path: str) -> GeminiFold:
        return GeminiFold(path)

    def time_of(self, entry: Entry) -> object:
        return entry.get("timestamp") or entry.get("startTime")

    def belongs(self, entry: Entry) -> bool:
        return entry.get("projectHash") in self._hashes


class GeminiFold(Fold):
    """One file."""

    def __init__(self, path: str) -> None:
        self.family = os.path.basename(path).removesuffix(".jsonl")
        folder = os.path.basename(os.path.dirname(path))
        self._parent = None if folder == "chats" else folder
        self._known: dict[str, Any] = {}
        self._made: dict[str, list[str]] = {}
        self._answered: set[str] = set()
        self._last = ""

    def line(self, entry: Entry, key: str) -> list[Record]:
        if isinstance(update := entry.get("$set"), dict):
            return self._update(update)
        if isinstance(entry.get("id"), str) and entry.get("type"):
            return self._message(entry)
        if isinstance(entry.get("sessionId"), str):
            return self._begin(entry)
        return []

    def _begin(self, entry: Entry) -> list[Record]:
        self.family = str(entry["sessionId"])
        self._known = {"source": SOURCE, "started": moment(entry.get("startTime"))}
        if self._parent is not None or entry.get("kind") == "subagent":
            self._known |= {"subagent": True, "parent": self._parent}
        else:
            self._known["resume"] = f"gemini --resume {self.family}"
        at = moment(entry.get("startTime"))
        return [about(self.family, at, **self._known), *self._titled(entry)]

    def _titled(self, entry: Entry) -> list[Record]:
        title = name_in(entry, "summary")
        return [{"kind": "title", "session": self.family, "title": title}] if title else []

    def _update(self, update: Entry) -> list[Record]:
        records = self._titled(update)
        messages = update.get("messages")
        for message in messages if isinstance(messages, list) else []:
            # A known message stays as it was: here it may have been shortened for the model.
            if isinstance(message, dict) and isinstance(message.get("id"), str):
                known = message["id"] in self._made
                records += [] if known or not message.get("type") else self._message(message)
        return records

    def _message(self, entry: Entry) -> list[Record]:
        id, kind = str(entry["id"]), entry["type"]
        at = moment(entry.get("timestamp"))
        if kind == "user":
            self._made.setdefault(id, [])
            self._last = id
            text = text_of(entry.get("displayContent")) or text_of(entry.get("content"))
            if not text or text.startswith(_INJECTED):
                return []
            return [said(self.family, id, {"role": "user", "content": text}, at)]
        if kind != "gemini":
            return []
        model = name_in(entry, "model")
        records = [about(self.family, at, model=model)] if model else []
        return records + self._reply(id, entry, at)

    def _reply(self, id: str, entry: Entry, at: float | None) -> list[Record]:
        given = entry.get("toolCalls")
        calls = [c for c in given if isinstance(c, dict) and c.get("id")] if given else []
        before = self._made.get(id)
        fresh = [c for c in calls if before is None or str(c["id"]) not in before]
        self._made[id] = [str(c["id"]) for c in calls]
        records: list[Record] = []
        made = [call(c["id"], c.get("name"), c.get("args")) for c in calls]
        message = assistant(text_of(entry.get("content")), made, _thoughts(entry))
        if before is None or not fresh or self._last == id:
            # An empty message means that the model thinks; its id comes again.
            if message["content"] or made or message.get("reasoning"):
                records.append(said(self.family, id, message, at))
        else:
            # Other messages came since: a call that is added now would be stored before them.
            made = [call(c["id"], c.get("name"), c.get("args")) for c in fresh]
            records.append(said(self.family, f"{id}:{fresh[0]['id']}", assistant("", made), at))
        self._last = id
        for tool_call in calls:
            over = tool_call.get("status") in _OVER or tool_call.get("result") is not None
            if over and str(tool_call["id"]) not in self._answered:
                self._answered.add(str(tool_call["id"]))
                result = answer(tool_call["id"], tool_call.get("name"), _result(tool_call))
                records.append(said(self.family, f"{id}:{tool_call['id']}:result", result, at))
                self._last = ""
        return records


def _thoughts(entry: Entry) -> str:
    thoughts = entry.get("thoughts")
    records = []
    for thought in thoughts if isinstance(thoughts, list) else []:
        if isinstance(thought, dict):
            parts = (thought.get("subject"), thought.get("description"))
            records.append(": ".join(str(part) for part in parts if part))
    return "\n\n".join(filter(None, records))


def _result(made: Entry) -> str:
    """`result` is [{"functionResponse": {"response": {"output" or "error": …}}}], or text."""
    result = made.get("result")
    parts = result if isinstance(result, list) else [result]
    texts = []
    for part in parts:
        response = part.get("functionResponse") if isinstance(part, dict) else None
        records = response.get("response") if isinstance(response, dict) else part
        if isinstance(records, dict) and ("output" in records or "error" in records):
            records = records.get("output", records.get("error"))
        texts.append(result_of(records))
    return "\n".join(filter(None, texts)) or str(made.get("status") or "")
