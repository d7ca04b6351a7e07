"""pi: `~/.pi/agent/sessions/<folder of the project>/<time>_<session>.jsonl`. Pure.

    {"type": "session", "id", "cwd"}              the first line
    {"type": "message", "id", "message": {…}}     role user, assistant or toolResult
    model_change, compaction, branch_summary, …   nothing that was said

The file of a new session is written when the first reply is complete; until then only the tap
knows of it.
"""

from __future__ import annotations

import os

from ..command_line import value_of
from ..messages import about, answer, assistant, call, moment, name_in, result_of, said, text_of
from ..node_tap import NodeTap, TappedFiles
from ..protocol import Fold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..protocol import Entry, Place, Record

SOURCE = "pi"


class PiFiles(TappedFiles):
    def __init__(self, place: Place, tap: NodeTap | None = None) -> None:
        super().__init__(tap)
        env = place.env
        home = env.get("HOME") or os.path.expanduser("~")
        own = env.get("PI_CODING_AGENT_DIR") or os.path.join(home, ".pi", "agent")
        chosen = value_of(place.arguments, "--session-dir") or env.get(
            "PI_CODING_AGENT_SESSION_DIR"
        )
        folder = os.path.expanduser(chosen or os.path.join(own, "sessions"))
        self._folder = os.path.join(place.started_in, folder)
        self._projects = {place.cwd, os.path.realpath(place.cwd)}

    def folders(self) -> list[str]:
        return [self._folder]

    def parser(self, path: str) -> PiFold:
        return PiFold(path)

    def belongs(self, entry: Entry) -> bool:
        return entry.get("cwd") in self._projects


class PiFold(Fold):
    """One file: one session."""

    def __init__(self, path: str) -> None:
        self.family = os.path.basename(path).removesuffix(".jsonl").rpartition("_")[2]

    def line(self, entry: Entry, key: str) -> list[Record]:
        at, message = moment(entry.get("timestamp")), entry.get("message")
        if entry.get("type") == "session" and isinstance(entry.get("id"), str):
            self.family = entry["id"]
            resume = f"pi --session {self.family}"
            return [about(self.family, at, source=SOURCE, started=at, resume=resume)]
        if entry.get("type") != "message" or not isinstance(message, dict):
            return []
        made = _message(message)
        if made is None or not isinstance(entry.get("id"), str):
            return []
        model = name_in(message, "model")
        known = [about(self.family, at, model=model)] if model else []
        return [*known, said(self.family, entry["id"], made, at)]


def _message(message: Entry) -> dict[str, Any] | None:
    role, content = message.get("role"), message.get("content")
    if role == "user":
        text = text_of(content)
        return {"role": "user", "content": text} if text else None
    if role == "toolResult":
        return answer(message.get("toolCallId"), message.get("toolName"), result_of(content))
    if role != "assistant" or not isinstance(content, list):
        return None
    blocks = [block for block in content if isinstance(block, dict)]
    calls = [
        call(block.get("id"), block.get("name"), block.get("arguments"))
        for block in blocks
        if block.get("type") == "toolCall"
    ]
    texts = [text_of(block) for block in blocks if block.get("type") == "text"]
    thoughts = [str(block.get("thinking") or "") for block in blocks if "thinking" in block]
    if not any(texts) and not calls and not any(thoughts):
        return None  # a reply that failed
    return assistant("".join(texts), calls, "\n\n".join(filter(None, thoughts)))
