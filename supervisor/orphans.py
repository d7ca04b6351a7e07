"""What a dead agent leaves running: found among our own children, described, ended if it may be.

Never signals a process that is not our child's group, and never one that the agent meant to
keep. We are the subreaper, so what was the agent's child is ours once the agent is dead, and
stays in the process table until we have taken notice: a pid cannot become someone else's.
"""

from __future__ import annotations

import os
import time

from . import footprint
from .adapters import hermes_orphans
from .signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .loop import Loop

# What Hermes gives its tools between the two, too.
_GRACE = 2.0
_LONGEST_COMMAND = 300
_MOST = 50


class Process:
    """A line of the process table."""

    __slots__ = ("group", "parent", "pid", "session", "start", "state")

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        self.pid = pid
        self.state = fields[0]
        self.parent, self.group, self.session = (int(field) for field in fields[1:4])
        self.start = int(fields[19])

    @property
    def alive(self) -> bool:
        return self.state not in (b"Z", b"X")


class Orphans:
    """Those of one run. `wanted`: report, terminate or leave."""

    def __init__(self, loop: Loop, wanted: str) -> None:
        self._loop = loop
        self._wanted = wanted
        self._ending: dict[int, dict[str, object]] = {}
        self._told: set[tuple[int, int]] = set()
        self.found: list[dict[str, object]] = []

    def look(self, ours: set[int], *, only_tools: bool) -> list[dict[str, object]]:
        """A process of the agent has died: what is ours now and was its. `ours` is not looked at:
        what we started ourselves, and what speaks to us."""
        if self._wanted == "leave":
            return []
        us = os.getpid()
        own_words = command_line(us)
        left: list[dict[str, object]] = []
        for process in table(children()):
            known = (process.pid, process.start) in self._told or process.pid in ours
            if process.parent != us or not process.alive or known:
                continue
            words = command_line(process.pid)
            if words == own_words or len(left) >= _MOST:
                continue  # a fork of ours, or more than anybody will read
            kind = hermes_orphans.kind(process.pid, words)
            if only_tools and kind != hermes_orphans.TOOL:
                continue  # who exits may well leave a daemon; who waits for a tool does not
            self._told.add((process.pid, process.start))
            left.append(self._consider(process, words, kind))
        self.found += left
        return left

    def _consider(self, process: Process, words: list[str], kind: str) -> dict[str, object]:
        told: dict[str, object] = {
            "pid": process.pid,
            "command": " ".join(words)[:_LONGEST_COMMAND],
            "age": round(_age(process.start), 1),
            "kind": kind,
            "done": "left running",
            "dumps": hermes_orphans.dumps(words),
            "memory": footprint.resident(process.pid),
            "below": [
                {
                    "pid": pid,
                    "parent": parent,
                    "command": " ".join(command_line(pid))[:_LONGEST_COMMAND],
                    "memory": footprint.resident(pid),
                }
                for pid, parent in footprint.below(process.pid)[:_MOST]
            ],
        }
        leads = process.pid == process.group == process.session
        if kind == hermes_orphans.TOOL and leads and self._wanted == "terminate":
            told["done"] = "told to end"
            self._ending[process.group] = told
            _signal(process.group, signal.SIGTERM)
            self._loop.after(_GRACE, lambda: self._put_an_end(process.group))
        return told

    def still_ending(self) -> bool:
        """Whether some have been told to end and are still there."""
        if self._ending:
            there = {process.group for process in table() if process.alive}
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


def children() -> list[str] | None:
    """Ours, by the kernel's own list, which is shorter to read than the whole table. Nobody is
    taken off it while we look: only we could do that. None where there is no such list."""
    pid = os.getpid()
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return file.read().split()
    except OSError:
        return None


def table(names: list[str] | None = None) -> list[Process]:
    """The lines of these processes, or of all."""
    found = []
    if names is None:
        names = os.listdir("/proc") if os.path.isdir("/proc/self") else []
    for name in names:
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                line = file.read()
            found.append(Process(int(name), line[line.rindex(b")") + 2 :].split()))
        except (OSError, ValueError, IndexError):
            continue
    return found


def command_line(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return os.fsdecode(file.read()).rstrip("\0").split("\0")
    except OSError:
        return []


def _age(start: int) -> float:
    """Seconds since a process began, which the kernel counts from boot."""
    since_boot = time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
    return max(0.0, since_boot - start / os.sysconf("SC_CLK_TCK"))
