"""Codex CLI: `<CODEX_HOME>/sessions/YYYY/MM/DD/rollout-<time>-<thread>.jsonl`. Pure.

    session_meta    the thread, where it runs, who started it; in a fork that of its origin follows
    turn_context    the model
    response_item   what was said and called, as the model's API has it
    event_msg       the same once more, for the screen: only where turns begin and end is taken
    compacted       the summary that takes the place of what was said, for the model; not here

Text, reasoning and calls come one by one and are one message until a result or the user follows.
"""

from __future__ import annotations

import os

from ..messages import about, answer, assistant, call, moment, name_in, result_of, said, text_of
from ..protocol import Fold, LineFiles
from . import daemon
from .tap import Complete

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..protocol import Entry, Place, Record

SOURCE = "codex"
# What Codex itself says in the user's name.
_INJECTED = (
    "<environment_context>", "<user_instructions>", "# AGENTS.md instructions", "<turn_aborted>",
    "<INSTRUCTIONS>", "<skill>", "<subagent_notification>", "<user_shell_command>",
    "<permissions instructions>", "<collaboration_mode>", "<apps_instructions>",
)  # fmt: skip
_BEGIN = ("task_started", "turn_started")
_END = ("task_complete", "turn_complete")


class CodexFiles(LineFiles):
    def __init__(self, place: Place, complete: Complete | None = None) -> None:
        self._home = daemon.home(place.env)
        self._folder = os.path.join(self._home, "sessions")
        self._cwd = os.path.realpath(place.cwd)
        self._complete = Complete() if complete is None else complete

    def folders(self) -> list[str]:
        return [self._folder]

    def accepts(self, path: str) -> bool:
        return path.endswith(".jsonl") and os.path.basename(path).startswith("rollout-")

    def fold(self, path: str) -> CodexFold:
        return CodexFold(path, self._complete)

    def owners(self, fold: CodexFold) -> list[int]:
        return daemon.tui_of(self._home, fold.family)

    def is_server(self, words: list[str]) -> bool:
        return "app-server" in words

    def belongs(self, entry: Entry) -> bool:
        payload = entry.get("payload")
        cwd = payload.get("cwd") if isinstance(payload, dict) else None
        return isinstance(cwd, str) and os.path.realpath(cwd) == self._cwd


class CodexFold(Fold):
    """One file."""

    def __init__(self, path: str, complete: Complete) -> None:
        self._complete = complete
        # rollout-2026-01-31T12-00-00-<thread>
        stem = os.path.basename(path).removesuffix(".jsonl")
        self.family = "-".join(stem.split("-")[6:]) or stem
        self._known: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        self._reply: _Reply | None = None

    def line(self, entry: Entry, key: str) -> list[Record]:
        kind, payload = entry.get("type"), entry.get("payload")
        at = moment(entry.get("timestamp"))
        if not isinstance(payload, dict):
            return []
        if kind == "session_meta":
            return self._meta(payload, at)
        if kind == "turn_context":
            return [about(self.family, at, model=name_in(payload, "model"), cwd=None)]
        if kind == "compacted":
            self._reply = None
            summary = name_in(payload, "message")
            message = {"role": "user", "content": summary}
            return [said(self.family, key, message, at)] if summary else []
        if kind == "event_msg":
            return self._event(payload)
        if kind == "response_item":
            return self._item(payload, at, key)
        return []

    def _meta(self, payload: Entry, at: float | None) -> list[Record]:
        if self._known:
            return []  # of the thread that this one was forked from
        self.family = name_in(payload, "id") or self.family
        source = payload.get("source")
        self._known = {
            "source": SOURCE,
            "cwd": name_in(payload, "cwd"),
            "started": moment(payload.get("timestamp")) or at,
        }
        if isinstance(source, dict) and "subagent" in source:
            self._known |= {"subagent": True, "parent": _parent_in(source)}
        else:
            self._known["resume"] = f"codex resume {self.family}"
        return [about(self.family, at, **self._known)]

    def _event(self, payload: Entry) -> list[Record]:
        kind = payload.get("type")
        turn: Record = {"kind": "turn", "session": self.family}
        if kind in _BEGIN:
            return [{**turn, "phase": "start"}]
        if kind in _END:
            return [{**turn, "phase": "end"}]
        if kind == "turn_aborted":
            broken_off = {**turn, "phase": "broken off", "by": "user"}
            by_user = payload.get("reason") == "interrupted"
            return [*([broken_off] if by_user else []), {**turn, "phase": "end"}]
        if kind == "thread_name_updated" and (title := name_in(payload, "thread_name")):
            return [{"kind": "title", "session": self.family, "title": title}]
        return []

    def _item(self, item: Entry, at: float | None, key: str) -> list[Record]:
        kind = str(item.get("type") or "")
        if kind == "message":
            return self._message(item, at, key)
        if kind == "reasoning":
            thought = text_of(item.get("summary")) or text_of(item.get("content"))
            if not thought:
                return []
            reply = self._open(key, after=("text", "calls"))
            reply.reasoning = "\n\n".join(filter(None, (reply.reasoning, thought)))
            # It has only thought so far: the reply is still to come.
            turn: Record = {"kind": "turn", "session": self.family, "phase": "start"}
            return [reply.said(self.family, at), turn]
        id = item.get("call_id")
        if kind.endswith("_output") and id:
            self._reply = None
            name = self._names.get(str(id))
            output = item.get("output")
            if isinstance(output, dict) and "content" in output:
                output = output["content"]
            return [said(self.family, f"{id}:result", answer(id, name, result_of(output)), at)]
        if kind.endswith("_call") and id:
            name = str(item.get("name") or kind.removesuffix("_call"))
            arguments = next((item[n] for n in ("arguments", "input", "action") if n in item), None)
            self._names[str(id)] = name
            reply = self._open(key, after=())
            reply.calls.append(call(id, name, arguments))
            return [reply.said(self.family, at)]
        return []

    def _message(self, item: Entry, at: float | None, key: str) -> list[Record]:
        text, role = text_of(item.get("content")), item.get("role")
        if role == "assistant":
            reply = self._open(key, after=("text", "calls"))
            reply.text = text
            self._complete.ids.add(str(item.get("id")))
            return [reply.said(self.family, at)]
        if role != "user" or not text or text.lstrip().startswith(_INJECTED):
            return []
        self._reply = None
        return [said(self.family, key, {"role": "user", "content": text}, at)]

    def _open(self, key: str, after: tuple[str, ...]) -> _Reply:
        """The message that is being put together; a new one behind what may not precede."""
        if self._reply is None or any(getattr(self._reply, what) for what in after):
            self._reply = _Reply(key)
        return self._reply


class _Reply:
    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.text = self.reasoning = ""
        self.calls: list[dict[str, Any]] = []

    def said(self, session: str, at: float | None) -> Record:
        return said(session, self.uid, assistant(self.text, self.calls, self.reasoning), at)


def _parent_in(source: Entry) -> str | None:
    """{"subagent": {"thread_spawn": {"parent_thread_id": …}}}, or a name instead of the inner."""
    inner = source.get("subagent")
    for value in inner.values() if isinstance(inner, dict) else ():
        if isinstance(value, dict) and (parent := name_in(value, "parent_thread_id")):
            return parent
    return None
