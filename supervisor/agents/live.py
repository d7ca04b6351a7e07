"""A message in progress, in a file that a live tap appends to.

    {"session": …}                       first
    {"n", "part", "type", "text"}        a piece; `n` counts from 0: behind a gap nothing is known
    {"n", "call", "arguments"}           a tool that is about to run

A process that reads the file again begins at its beginning. The transcript is authoritative for
complete messages: what was reported from there is not pending here.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .protocol import Record


class Live:
    """A message in progress, as its file has it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.session = ""
        self.arguments: dict[str, object] = {}
        """By call: what the tool that is about to run was given."""
        self._parts: dict[str, tuple[str, str]] = {}  # by part, in order: its type, its text
        self._offset = self._next = 0
        self._broken = False  # a line is missing: what follows is not joined to what was before
        self._sent: tuple[set[str], dict[str, str]] | None = None

    @property
    def parts(self) -> list[str]:
        return list(self._parts)

    def look(self) -> None:
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return  # removed meanwhile
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            try:
                self._line(json.loads(line))
            except (ValueError, TypeError, LookupError, AttributeError):
                self._broken = True

    def _line(self, entry: dict[str, Any]) -> None:
        if "session" in entry:
            self.session = str(entry["session"])
            return
        self._broken |= entry["n"] != self._next
        self._next += 1
        if self._broken:
            return
        if "call" in entry:
            self.arguments[str(entry["call"])] = entry.get("arguments")
        else:
            part = str(entry["part"])
            kind, text = self._parts.get(part, (str(entry["type"]), ""))
            self._parts[part] = (kind, text + str(entry["text"]))

    def pending(self, reported: set[str]) -> tuple[Record, str] | None:
        """What is new, and its key. `reported`: the parts that were reported from the transcript;
        they are no longer in progress, and the rest starts again."""
        now: dict[str, str] = {}
        for part, (kind, text) in self._parts.items():
            if part not in reported:
                name = "reasoning" if kind == "reasoning" else "text"
                now[name] = "\n\n".join(filter(None, (now.get(name), text)))
        before = {} if self._sent is None or self._sent[0] != reported else self._sent[1]
        restart = not before
        if restart:
            self._sent = None
        new = {name: text[len(before.get(name, "")) :] for name, text in now.items()}
        new = {name: text for name, text in new.items() if text}
        if not new:
            return None
        self._sent = (set(reported), now)
        at = ".".join(f"{name}{len(before.get(name, ''))}" for name in new)
        record: Record = {"kind": "delta", "session": self.session, **new}
        if restart:
            record["restart"] = True
        return record, f"{len(reported)}.{at}"
