"""Claude Code: `<config>/projects/<folder of the project>/<session>.jsonl`. Pure but for the list
of who has which session open.

    user        what the user said, or the results of tools
    assistant   a block of a reply a line, all under the id of their message: put together here
    system, progress, attachment, …   nothing that was said

A compaction appends a summary, which goes on the list like anything else: what was said before
it stays. So does what a rewind takes back. A subagent is a session of its own: a file
`agent-….jsonl`, or, in older releases, lines marked `isSidechain`.
"""

from __future__ import annotations

import json
import os

from ...process.platform import is_another
from ..messages import about, answer, assistant, call, moment, name_in, result_of, said, text_of
from ..protocol import Fold, LineFiles
from .tap import SOURCE, Complete

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..protocol import Entry, Place, Record

# Texts that Claude Code writes in the user's name and that get no reply.
_NO_REQUEST = (
    "<command-name>", "<command-message>", "<local-command-stdout>", "<local-command-stderr>",
    "<bash-input>", "<bash-stdout>", "<bash-stderr>",
)  # fmt: skip
_WORKTREE = "--claude-worktrees-"
_BROKEN_OFF = "[Request interrupted by user"


class ClaudeFiles(LineFiles):
    def __init__(self, place: Place, complete: Complete) -> None:
        self._complete = complete
        env, cwd = place.env, place.cwd
        home = env.get("HOME") or os.path.expanduser("~")
        self._config = env.get("CLAUDE_CONFIG_DIR") or os.path.join(home, ".claude")
        self._projects = os.path.join(self._config, "projects")
        self._folder = os.path.join(self._projects, slug(cwd))
        worktree = {"-w", "--worktree"}.intersection(w.partition("=")[0] for w in place.arguments)
        self._in_worktree = bool(worktree)

    def folders(self) -> list[str]:
        # The name of a worktree, and so of its project, may be chosen by Claude Code.
        return [self._projects if self._in_worktree else self._folder]

    def accepts(self, path: str) -> bool:
        # Summaries that Claude Code makes for itself are not conversations.
        if not path.endswith(".jsonl") or "/agent-acompact" in path:
            return False
        project = path[len(self._projects) + 1 :].partition("/")[0]
        return not self._in_worktree or _WORKTREE in project

    def fold(self, path: str) -> ClaudeFold:
        return ClaudeFold(path, self._complete)

    def belongs(self, entry: Entry) -> bool:
        return True  # the folder says so

    def owners(self, fold: ClaudeFold) -> list[int]:
        """The processes that have the session open, as Claude Code notes them; killed processes
        stay on that list."""
        found = []
        folder = os.path.join(self._config, "sessions")
        try:
            names = [name for name in os.listdir(folder) if name.endswith(".json")]
        except OSError:
            return []
        for name in names:
            try:
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    owner = json.load(file)
                pid, start = owner.get("pid"), str(owner.get("procStart") or "")
                # The pid may be another process' by now.
                known = int(start) if start.isdecimal() else None
                reused = is_another(pid, known)
                if owner.get("sessionId") == fold.family and isinstance(pid, int) and not reused:
                    found.append(pid)
            except (OSError, ValueError, AttributeError, TypeError):
                continue
        return found


def slug(folder: str) -> str:
    """The name Claude Code gives a project's folder."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in folder)


class ClaudeFold(Fold):
    """One file."""

    def __init__(self, path: str, complete: Complete) -> None:
        self._complete = complete
        self._path = os.path.abspath(path)
        stem = os.path.basename(path).removesuffix(".jsonl")
        self._agent = stem if stem.startswith("agent-") else None
        self._stem = stem
        self.family = stem
        """The session of the user's that this file is of."""
        self._names: dict[str, str] = {}
        self._roots: dict[str, str] = {}
        self._seen: set[str] = set()
        self._reply: dict[str, _Reply] = {}

    def line(self, entry: Entry, key: str) -> list[Record]:
        kind = entry.get("type")
        at = moment(entry.get("timestamp"))
        if kind in ("summary", "custom-title", "ai-title"):
            return self._title(entry)
        message = entry.get("message")
        if kind not in ("user", "assistant") or not isinstance(message, dict):
            return []
        if isinstance(uuid := entry.get("uuid"), str):
            self._seen.add(uuid)
        records = self._session(entry, message, at)
        session = str(records[0]["session"])
        self._complete.note_line(session, at)
        if kind == "assistant" and _is_made_up(entry, message):
            return records
        if kind == "assistant":
            return records + self._assistant(session, entry, message, at, key)
        return records + self._user(session, entry, message, at, key)

    def _session(self, entry: Entry, message: Entry, at: float | None) -> list[Record]:
        session, parent = self._stem, None
        if self._agent is not None:
            self.family = parent = name_in(entry, "sessionId") or self._stem
            session = f"{parent}-{self._agent}"
        elif entry.get("isSidechain") is True:
            parent = self._stem
            session = f"{parent}-agent-{self._root(entry)[:8]}"
        model = message.get("model")
        known: dict[str, Any] = {
            "source": SOURCE,
            "cwd": name_in(entry, "cwd"),
            "model": model if isinstance(model, str) and model[:1] != "<" else None,
            "started": at,
        }
        if parent is not None:
            known |= {"parent": parent, "subagent": True}
        else:
            known["resume"] = f"claude --resume {session}"
            known["transcript"] = self._path
        return [about(session, at, **known)]

    def _root(self, entry: Entry) -> str:
        """The first line of the side conversation that this one belongs to."""
        uuid, above = str(entry.get("uuid") or ""), str(entry.get("parentUuid") or "")
        root = self._roots.get(above) or uuid
        self._roots[uuid] = root
        return root

    def _title(self, entry: Entry) -> list[Record]:
        title = name_in(entry, "customTitle", "aiTitle", "summary")
        leaf = entry.get("leafUuid")
        # Older releases also note the titles of other conversations.
        if title is None or self._agent or (leaf is not None and leaf not in self._seen):
            return []
        return [{"kind": "title", "session": self._stem, "title": title}]

    def _assistant(
        self, session: str, entry: Entry, message: Entry, at: float | None, key: str
    ) -> list[Record]:
        id = str(message.get("id") or entry.get("uuid") or key)
        reply = self._reply.get(session)
        if reply is None or reply.id != id:
            reply = self._reply[session] = _Reply(id, id)
        elif reply.closed:
            # Results came in between: what follows is a message of its own.
            reply = self._reply[session] = _Reply(id, f"{id}:{entry.get('uuid') or key}")
        content = message.get("content")
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        for block in blocks:
            if not isinstance(block, dict):
                continue
            if block.get("type") == "tool_use" and block.get("id"):
                reply.calls.append(call(block["id"], block.get("name"), block.get("input")))
                self._names[str(block["id"])] = str(block.get("name") or "")
                self._complete.note_id(str(block["id"]))
            elif block.get("type") == "thinking":
                reply.thoughts.append(str(block.get("thinking") or ""))
            elif text := text_of(block):
                reply.texts.append(text)
        stored = reply.message()
        if not (reply.texts or reply.thoughts or reply.calls):
            return []
        self._complete.note(session, str(stored["content"]))
        if reply.texts:
            self._complete.note(session, reply.texts[-1])
        self._complete.note_reply(session, reply.uid, stored)
        records = [said(session, reply.uid, stored, at)]
        if not stored["content"] and not reply.calls:
            # There is only reasoning so far: the reply is still missing.
            records.append({"kind": "turn", "session": session, "phase": "start"})
        return records

    def _user(
        self, session: str, entry: Entry, message: Entry, at: float | None, key: str
    ) -> list[Record]:
        if (reply := self._reply.get(session)) is not None:
            reply.closed = True
        uid = str(entry.get("uuid") or key)
        self._complete.note_id(str(entry.get("promptId")))
        content = message.get("content")
        parts = content if isinstance(content, list) else [content]
        records = []
        rest = []
        for part in parts:
            if isinstance(part, dict) and part.get("type") == "tool_result":
                id = str(part.get("tool_use_id"))
                result = answer(id, self._names.get(id), result_of(part.get("content")))
                records.append(said(session, f"{uid}:{id}", result, at))
            else:
                rest.append(part)
        text = text_of(rest)
        if not text or entry.get("isMeta") is True:
            return records
        if not _is_from_a_person(entry):
            # Nobody said it, but it gets a reply.
            return [*records, {"kind": "turn", "session": session, "phase": "start"}]
        records.append(said(session, uid, {"role": "user", "content": text}, at))
        turn: Record = {"kind": "turn", "session": session}
        if text.startswith(_BROKEN_OFF):
            records.append({**turn, "phase": "broken off", "by": "user"})
        if entry.get("isCompactSummary") is True or text.startswith((_BROKEN_OFF, *_NO_REQUEST)):
            records.append({**turn, "phase": "end"})
        return records


def _is_made_up(entry: Entry, message: Entry) -> bool:
    """True for a reply that no model gave and nobody saw. An API error is shown, so it is kept."""
    return message.get("model") == "<synthetic>" and entry.get("isApiErrorMessage") is not True


def _is_from_a_person(entry: Entry) -> bool:
    """False if Claude Code says that it wrote this itself, as a notice to the model. If a release
    does not say who wrote it, the user did."""
    origin = entry.get("origin")
    kind = origin.get("kind") if isinstance(origin, dict) else None
    return kind in (None, "human") and entry.get("promptSource") != "system"


class _Reply:
    """A message of the assistant's, as far as it has been written."""

    def __init__(self, id: str, uid: str) -> None:
        self.id = id
        self.uid = uid
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self.closed = False

    def message(self) -> dict[str, Any]:
        return assistant("\n\n".join(self.texts), self.calls, "\n\n".join(self.thoughts))
