"""Why a process ended, as far as it can be proved. What is not known is said to be unknown.

Never guesses: out of memory means that the kernel counted a kill in our cgroup meanwhile, and
a restart of the machine that it calls this boot by another name than the run's.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from signal import SIGHUP, SIGKILL
else:
    from _signal import SIGHUP, SIGKILL


# Why nobody saw how a process ended.
RESTARTED = "the machine was restarted in between"
UNSUPERVISED = "its supervisor was gone as well"


class Cause:
    """How a process ended. Exactly one of `signal` and `code` is set, or neither if unknown."""

    __slots__ = ("at", "code", "memory", "oom", "orphans", "signal", "terminal_closed", "unseen")

    def __init__(
        self,
        signal: int | None = None,
        code: int | None = None,
        *,
        at: float = 0.0,
        oom: bool = False,
        terminal_closed: bool = False,
        unseen: str = "",
    ) -> None:
        self.signal = signal
        self.code = code
        self.at = at
        self.oom = oom
        self.terminal_closed = terminal_closed
        self.unseen = unseen
        # What it left running, in the words of `orphans`, and what it weighed, of `footprint`.
        self.orphans: list[dict[str, object]] = []
        self.memory: dict[str, object] = {}

    def as_record(self) -> dict[str, object]:
        return {
            "kind": "death", "signal": self.signal, "code": self.code, "at": self.at,
            "oom": self.oom, "terminal_closed": self.terminal_closed, "orphans": self.orphans,
            "memory": self.memory,
        }  # fmt: skip

    @property
    def kind(self) -> str:
        """The reason as one of a few words, for programs."""
        if self.oom:
            return "out of memory"
        if self.signal is not None or self.code is not None:
            closed = self.terminal_closed and self.signal == SIGHUP
            return "terminal closed" if closed else "exit" if self.signal is None else "signal"
        known = {RESTARTED: "machine restarted", UNSUPERVISED: "supervisor lost"}
        return known.get(self.unseen, "unknown")

    def __str__(self) -> str:
        from .signals import name_of

        if self.oom:
            return "killed by SIGKILL: out of memory"
        if self.signal is not None:
            why = ":" if self.signal == SIGHUP else " after"  # only a HUP is said to come of it
            closed = f"{why} the terminal was closed" if self.terminal_closed else ""
            return f"killed by {name_of(self.signal)}{closed}"
        if self.code is not None:
            closed = " after the terminal was closed" if self.terminal_closed else ""
            return f"exited with code {self.code}{closed}"
        return "ended, how is not known" + (f": {self.unseen}" if self.unseen else "")


def of_status(status: int | None, *, oom_before: int | None, terminal_closed: bool) -> Cause:
    """The cause that a wait status tells, at this moment."""
    cause = Cause(at=time.time(), terminal_closed=terminal_closed)
    if status is None:
        return cause
    if os.WIFSIGNALED(status):
        cause.signal = os.WTERMSIG(status)
        if cause.signal == SIGKILL:
            now = oom_kills()
            cause.oom = oom_before is not None and now is not None and now > oom_before
    else:
        cause.code = os.WEXITSTATUS(status)
    return cause


def from_record(record: dict[str, object]) -> Cause:
    signal, code, at = record.get("signal"), record.get("code"), record.get("at")
    cause = Cause(
        signal if isinstance(signal, int) else None,
        code if isinstance(code, int) else None,
        at=float(at) if isinstance(at, int | float) and 0 <= at < 1e12 else 0.0,
        oom=record.get("oom") is True,
        terminal_closed=record.get("terminal_closed") is True,
    )
    orphans = record.get("orphans")
    if isinstance(orphans, list):
        cause.orphans = [one for one in orphans if isinstance(one, dict)]
    memory = record.get("memory")
    if isinstance(memory, dict):
        cause.memory = memory
    return cause


def oom_kills() -> int | None:
    """How many processes of our cgroup the kernel has killed for want of memory."""
    for path in _counter_files():
        try:
            with open(path, "rb") as file:
                for line in file:
                    name, _, count = line.partition(b" ")
                    if name == b"oom_kill":
                        return int(count)
        except (OSError, ValueError):
            continue
    return None


def _counter_files() -> list[str]:
    """Where the counter may be: cgroup v2 first, then v1."""
    try:
        with open("/proc/self/cgroup") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    found: list[str] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        path = path.rstrip("/")
        if not controllers:
            found.insert(0, f"/sys/fs/cgroup{path}/memory.events")
        elif "memory" in controllers.split(","):
            found.append(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
    return found
