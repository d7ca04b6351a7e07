"""What processes weigh, and who is below whom, as the kernel tells it.

Never signals anyone, and says nothing where nothing is known: all figures are in bytes.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from resource import struct_rusage

_PAGE = os.sysconf("SC_PAGE_SIZE")
_MOST = 200


def resident(pid: int) -> int | None:
    """Of the memory that a process uses, what is in RAM. One short file: cheap enough to be
    asked now and then while an agent works."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            pages = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * _PAGE or None  # none at all: it is dead


def proportional(pid: int) -> int | None:
    """The same, with what it shares counted by shares: these add up to what is really used."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def below(pid: int) -> list[tuple[int, int]]:
    """The processes below one, each with its parent, parents first; not all if they are many."""
    found: list[tuple[int, int]] = []
    waiting = [pid]
    while waiting and len(found) < _MOST:
        parent = waiting.pop(0)
        fresh = [(child, parent) for child in _children(parent)]
        found += fresh
        waiting += [child for child, _ in fresh]
    return found[:_MOST]


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += [int(word) for word in file.read().split()]
        except OSError:
            continue
    return sorted(found)


def of_group() -> dict[str, int]:
    """The most that our cgroup has used, and its limit, where it has one."""
    found: dict[str, int] = {}
    try:
        with open("/proc/self/cgroup") as file:
            lines = file.read().splitlines()
    except OSError:
        return found
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            folder, names = f"/sys/fs/cgroup{path}", ("memory.max", "memory.peak")
        elif "memory" in controllers.split(","):
            folder = f"/sys/fs/cgroup/memory{path}"
            names = ("memory.limit_in_bytes", "memory.max_usage_in_bytes")
        else:
            continue
        limit, peak = (_number(f"{folder}/{name}") for name in names)
        # Version 1 says that there is no limit by one that nobody can reach.
        if limit is not None and limit < 1 << 60:
            found["group_limit"] = limit
            if peak is not None:
                found["group_peak"] = peak
    return found


def _number(path: str) -> int | None:
    try:
        with open(path, "rb") as file:
            return int(file.read())
    except (OSError, ValueError):  # not there, or "max"
        return None


def any_child(*, weighed: bool) -> tuple[int, int, struct_rusage | None]:
    """A child that ended, stopped or goes on, how, and what it used; number 0 if there is none.
    What it used only where that matters: for the answer Python loads a module, which takes longer
    than everything else at the end of a command that said nothing."""
    flags = os.WNOHANG | os.WUNTRACED | os.WCONTINUED
    return os.wait4(-1, flags) if weighed else (*os.waitpid(-1, flags), None)


class Weights:
    """What the processes that matter weighed, when last it cost nothing to ask."""

    def __init__(self) -> None:
        self._seen: dict[int, dict[str, object]] = {}

    def look(self, pids: Iterable[int]) -> None:
        for pid in pids:
            weight = resident(pid)
            if weight is not None:
                self._seen.setdefault(pid, {}).update(last=weight, last_at=time.time())

    def reaped(self, pid: int, used: struct_rusage | None) -> None:
        """A child ended: the kernel says what it used at its highest, or what the largest of the
        processes that it waited for did."""
        if used is None:
            return
        spent = round(used.ru_utime + used.ru_stime, 2)
        self._seen.setdefault(pid, {}).update(peak=used.ru_maxrss * 1024, cpu=spent)

    def forget(self, pid: int) -> None:
        self._seen.pop(pid, None)

    def take(self, pid: int) -> dict[str, object]:
        """All that is known of a process that is dead; it is forgotten here."""
        return {**self._seen.pop(pid, {}), **of_group()}
