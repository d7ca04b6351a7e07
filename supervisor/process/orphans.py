"""What a dead agent leaves running: found among our own children, described, ended if it may be.

Never signals a process outside the group of one of our children, and never a process that the agent
meant to keep. We are the subreaper, so the children of a dead agent become ours. They stay in the
process table until we reap them, so their pids cannot be reused.
"""

from __future__ import annotations

import os

from . import memory
from .platform import ProcessInfo, command_line, own_children, process_table, since_boot
from .signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .loop import Loop

# What such a process is: a tool that the agent waited for, a job that it meant to keep.
TOOL = "tool"
JOB = "background job"
OTHER = "other"

# Between TERM and KILL.
_GRACE = 2.0
_LONGEST_COMMAND = 300
_MOST = 50


class Orphans:
    """The orphans of one run. `wanted`: report, terminate or leave. `describe`: the kind of a
    process, by its pid and command line (None: not known), and the files with secrets that it
    uses."""

    def __init__(
        self,
        loop: Loop,
        wanted: str,
        describe: Callable[[int, list[str]], tuple[str | None, list[str]]],
    ) -> None:
        self._describe = describe
        self._loop = loop
        self._wanted = wanted
        self._ending: dict[int, dict[str, object]] = {}
        self._seen: set[tuple[int, int]] = set()
        self.found: list[dict[str, object]] = []

    def look(self, ours: set[int], *, only_tools: bool) -> list[dict[str, object]]:
        """A process of the agent has died: find the children that it left to us. `ours` are left
        out: processes that we started ourselves, and processes that are connected."""
        if self._wanted == "leave":
            return []
        us = os.getpid()
        own_words = command_line(us)
        left: list[dict[str, object]] = []
        for process in process_table(own_children()):
            known = (process.pid, process.start) in self._seen or process.pid in ours
            if process.parent != us or not process.alive or known:
                continue
            words = command_line(process.pid)
            if words == own_words or len(left) >= _MOST:
                continue  # a fork of ours, or more than anybody will read
            kind, secrets = self._describe(process.pid, words)
            if only_tools and kind != TOOL:
                continue  # an agent that exits may leave a daemon on purpose
            self._seen.add((process.pid, process.start))
            left.append(self._consider(process, words, kind or OTHER, secrets))
        self.found += left
        return left

    def _consider(
        self, process: ProcessInfo, words: list[str], kind: str, secrets: list[str]
    ) -> dict[str, object]:
        orphan: dict[str, object] = {
            "pid": process.pid,
            "command": _shown(words),
            "age": round(since_boot(process.start), 1),
            "kind": kind,
            "done": "left running",
            "dumps": secrets,
            "memory": memory.resident(process.pid),
            "below": [
                {
                    "pid": pid,
                    "parent": parent,
                    "command": _shown(command_line(pid)),
                    "memory": memory.resident(pid),
                }
                for pid, parent in memory.below(process.pid)[:_MOST]
            ],
        }
        leads = process.pid == process.group == process.session
        if kind == TOOL and leads and self._wanted == "terminate":
            orphan["done"] = "told to end"
            self._ending[process.group] = orphan
            _signal(process.group, signal.SIGTERM)
            self._loop.after(_GRACE, lambda: self._put_an_end(process.group))
        return orphan

    def still_ending(self) -> bool:
        """True while a process that we asked to end is still there."""
        if self._ending:
            there = {process.group for process in process_table() if process.alive}
            for group in set(self._ending) - there:
                self._ending.pop(group)["done"] = "ended"
        return bool(self._ending)

    def _put_an_end(self, group: int) -> None:
        if self.still_ending() and group in self._ending:
            self._ending.pop(group)["done"] = "killed"
            _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except OSError:
        pass  # gone, or it runs as another user


def _shown(words: list[str]) -> str:
    """A process that is just executing another program has no command line for a moment."""
    return " ".join(words)[:_LONGEST_COMMAND] or "unknown command"
