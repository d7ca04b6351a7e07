"""Qwen Code: `~/.qwen/projects/<folder of the project>/chats/<session>.jsonl`. Pure.

{"uuid", "sessionId", "timestamp", "type", "cwd", "message": {"role", "parts"}}

user, assistant   parts with `text`; of a reply also with `thought`, or with a `functionCall`
tool_result       parts with a `functionResponse`
system            nothing that was said
"""

from __future__ import annotations

import os

from ..messages import about, answer, assistant, call, moment, name_in, result_of, said
from ..node_tap import NodeTap, TappedFiles
from ..protocol import Fold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..protocol import Entry, Place, Record

SOURCE = "qwen-code"
# Texts that Qwen Code writes in the user's name.
_INJECTED = ("<system-reminder>", "<session_context>")


class QwenFiles(TappedFiles):
    def __init__(self, place: Place, tap: NodeTap | None = None) -> None:
        super().__init__(tap)
        env = place.env
        home = env.get("HOME") or os.path.expanduser("~")
        self._folder = os.path.join(home, ".qwen", "projects")
        self._projects = {place.cwd, os.path.realpath(place.cwd)}

    def folders(self) -> list[str]:
        return [self._folder]

    def accepts(self, path: str) -> bool:
        return path.endswith(".jsonl") and os.path.basename(os.path.dirname(path)) == "chats"

    def parser(self, path: str) -> QwenFold:
        return QwenFold(path)

    def belongs(self, entry: Entry) -> bool:
        return entry.get("cwd") in self._projects


class QwenFold(Fold):
    """One file: one session."""

    def __init__(self, path: str) -> None:
        self.family = os.path.basename(path).removesuffix(".jsonl")
        self._begun = False

    def line(self, entry: Entry, key: str) -> list[Record]:
        message = entry.get("message")
        if not isinstance(entry.get("uuid"), str) or not isinstance(message, dict):
            return []
        at, id = moment(entry.get("timestamp")), entry["uuid"]
        parts = [part for part in message.get("parts") or () if isinstance(part, dict)]
        kind = entry.get("type")
        if kind == "user":
            made = self._question(id, parts, at)
        elif kind == "assistant":
            made = [self._reply(id, parts, at)]
        elif kind == "tool_result":
            made = [
                said(self.family, f"{id}:{number}", _result(part["functionResponse"]), at)
                for number, part in enumerate(parts)
                if isinstance(part.get("functionResponse"), dict)
            ]
        else:
            made = []
        return [*self._about(entry, at), *made] if made else []

    def _about(self, entry: Entry, at: float | None) -> list[Record]:
        known: dict[str, Any] = {}
        if not self._begun:
            self._begun = True
            resume = f"qwen --resume {self.family}"
            known = {"source": SOURCE, "started": at, "resume": resume}
        if model := name_in(entry, "model"):
            known["model"] = model
        return [about(self.family, at, **known)] if known else []

    def _question(self, id: str, parts: list[Entry], at: float | None) -> list[Record]:
        texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
        text = "\n".join(text for text in texts if not text.startswith(_INJECTED))
        return [said(self.family, id, {"role": "user", "content": text}, at)] if text else []

    def _reply(self, id: str, parts: list[Entry], at: float | None) -> Record:
        texts: dict[bool, list[str]] = {False: [], True: []}
        calls = []
        for number, part in enumerate(parts):
            made = part.get("functionCall")
            if isinstance(made, dict):
                name = made.get("id") or f"{id}-{number}"
                calls.append(call(name, made.get("name"), made.get("args")))
            elif isinstance(part.get("text"), str):
                texts[bool(part.get("thought"))].append(part["text"])
        message = assistant("".join(texts[False]), calls, "".join(texts[True]))
        return said(self.family, id, message, at)


def _result(given: Entry) -> dict[str, Any]:
    response = given.get("response")
    if isinstance(response, dict) and ("output" in response or "error" in response):
        response = response.get("output", response.get("error"))
    return answer(given.get("id"), given.get("name"), result_of(response))
