"""GitHub Copilot CLI: `~/.copilot/session-state/<session>/events.jsonl`. Pure, but for `owners`.

{"type", "data", "id", "timestamp", "parentId"}

session.start             `context.cwd`, `selectedModel`
session.model_change      `newModel`
user.message              `content`; with a `source` it is the agent's own, not the user's
assistant.message         `content`, `reasoningText`, `toolRequests`, before the tools run
tool.execution_complete   `toolCallId`, `result.content` or `error.message`
abort                     the user stopped the turn
others                    nothing that was said

The folder of a session has a file `inuse.PID.lock` for each process that has it open; those of
killed processes stay. What a subagent says has the `parentToolCallId` of the call that began it.
"""

from __future__ import annotations

import os

from ..messages import about, answer, assistant, call, moment, name_in, result_of, said
from ..protocol import Fold, LineFiles

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..protocol import Entry, Place, Record

SOURCE = "copilot"


class CopilotFiles(LineFiles):
    def __init__(self, place: Place) -> None:
        home = place.env.get("HOME") or os.path.expanduser("~")
        base = place.env.get("COPILOT_HOME") or os.path.join(home, ".copilot")
        self._folder = os.path.join(base, "session-state")
        self._projects = {place.cwd, os.path.realpath(place.cwd)}

    def folders(self) -> list[str]:
        return [self._folder]

    def accepts(self, path: str) -> bool:
        return os.path.basename(path) == "events.jsonl"

    def fold(self, path: str) -> CopilotFold:
        return CopilotFold(path)

    def belongs(self, entry: Entry) -> bool:
        context = _data(entry).get("context")
        return isinstance(context, dict) and context.get("cwd") in self._projects

    def owners(self, fold: CopilotFold) -> list[int]:
        found = []
        for name in os.listdir(os.path.join(self._folder, fold.family)):
            kind, _, rest = name.partition(".")
            pid, _, end = rest.partition(".")
            if kind == "inuse" and end == "lock" and pid.isdecimal():
                found.append(int(pid))
        return found


class CopilotFold(Fold):
    """One file: one session, and those of its subagents."""

    def __init__(self, path: str) -> None:
        self.family = os.path.basename(os.path.dirname(path))
        self._names: dict[str, str] = {}
        self._begun: set[str] = set()

    def line(self, entry: Entry, key: str) -> list[Record]:
        kind, data = entry.get("type"), _data(entry)
        at = moment(entry.get("timestamp"))
        parent = name_in(data, "parentToolCallId")
        session = self.family if parent is None else f"{self.family}-{parent}"
        if kind == "session.start" or kind == "session.model_change":
            model = name_in(data, "selectedModel", "newModel")
            return [*self._about(session, parent, at), about(session, at, model=model)]
        if kind == "abort":
            turn = {"kind": "turn", "session": session, "phase": "broken off", "by": "user"}
            return [turn if at is None else {**turn, "at": at}]
        made = self._message(kind, data, key)
        if made is None:
            return []
        uid, message = made
        return [*self._about(session, parent, at, data), said(session, uid, message, at)]

    def _message(self, kind: object, data: Entry, key: str) -> tuple[str, dict[str, Any]] | None:
        id = name_in(data, "messageId") or key
        if kind == "user.message" and name_in(data, "source") in (None, "user"):
            text = name_in(data, "content")
            return None if text is None else (id, {"role": "user", "content": text})
        if kind == "assistant.message":
            calls = []
            for made in data.get("toolRequests") or ():
                name = str(made["toolCallId"])
                self._names[name] = str(made.get("name") or "")
                calls.append(call(name, made.get("name"), made.get("arguments")))
            text, thought = name_in(data, "content"), name_in(data, "reasoningText")
            return (id, assistant(text or "", calls, thought or "")) if text or calls else None
        if kind == "tool.execution_complete":
            name = str(data.get("toolCallId"))
            result = data.get("result") or data.get("error") or {}
            text = name_in(result, "content", "message") or result_of(result)
            return f"{name}:result", answer(name, self._names.get(name), text)
        return None

    def _about(
        self, session: str, parent: str | None, at: float | None, data: Entry | None = None
    ) -> list[Record]:
        known: dict[str, Any] = {}
        if session not in self._begun:
            self._begun.add(session)
            known = {"source": SOURCE, "started": at}
            if parent is None:
                known["resume"] = f"copilot --resume {self.family}"
            else:
                known |= {"parent": self.family, "subagent": True}
        if model := name_in(data or {}, "model"):
            known["model"] = model
        return [about(session, at, **known)] if known else []


def _data(entry: Entry) -> Entry:
    data = entry.get("data")
    return data if isinstance(data, dict) else {}
