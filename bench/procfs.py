"""What /proc says about a process: memory, processor time, wake-ups, descendants."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path


def tree(pid: int) -> list[int]:
    """A process and its living descendants."""
    found = [pid]
    for parent in found:
        try:
            for task in Path(f"/proc/{parent}/task").glob("*/children"):
                found += [int(word) for word in task.read_text().split()]
        except OSError:
            continue  # gone while we looked
    return found


def kill_tree(pid: int) -> None:
    """Kill a process and all its descendants, the last ones first."""
    for victim in reversed(tree(pid)):
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            pass


def executable(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        return ""


def memory(pid: int) -> dict[str, float]:
    """PSS, RSS and USS in MiB."""
    fields: dict[str, float] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        fields[name] = int(rest.split()[0]) / 1024
    unshared = fields["Private_Clean"] + fields["Private_Dirty"]
    return {"pss": fields["Pss"], "rss": fields["Rss"], "uss": unshared}


def processor_time(pid: int) -> float:
    """Processor time of all threads, in seconds."""
    total = 0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            total += int(task.read_text().split()[0])
        except OSError:
            continue
    return total / 1e9


def wake_ups(pid: int) -> int:
    """How often the process was scheduled after it had waited."""
    total = 0
    for task in Path(f"/proc/{pid}/task").glob("*/status"):
        for line in task.read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                total += int(line.split()[1])
    return total


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:g} s")
        time.sleep(0.002)


def settled(pid: int) -> None:
    """Wait until the process tree has used no processor time for half a second."""
    last, since = -1.0, time.monotonic()
    while time.monotonic() - since < 0.5:
        time.sleep(0.05)
        now = sum(processor_time(process) for process in tree(pid))
        if now - last > 0.0005:
            last, since = now, time.monotonic()
