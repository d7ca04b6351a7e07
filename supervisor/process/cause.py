"""Why a process ended, as far as it can be proved; everything else is reported as unknown.

Never guesses: "out of memory" means that the kernel counted a kill in our cgroup meanwhile, and
"machine restarted" that the boot id is no longer the run's.
"""

from __future__ import annotations

import os
import time

from ...ipc import clock
from ...ipc.lightweight.signal import SIGHUP, SIGKILL
from .platform import oom_kills

__all__ = ["LOST", "RESTARTED", "UNSUPERVISED", "Cause", "from_record", "of_status", "oom_kills"]

# Why nobody saw how a process ended.
RESTARTED = "the machine restarted in between"
UNSUPERVISED = "the supervisor had died as well"
LOST = "its machine was lost"


class Cause:
    """How a process ended. Exactly one of `signal` and `code` is set, or neither if unknown."""

    __slots__ = (
        "at", "code", "memory", "mono", "oom", "orphans", "signal", "terminal_closed", "unseen",
    )  # fmt: skip

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
        # When the supervisor learned of it, by the clock of the records' places; 0: not known.
        self.mono = 0
        # The processes that it left running (orphans.py), and the memory that it used (memory.py).
        self.orphans: list[dict[str, object]] = []
        self.memory: dict[str, object] = {}

    def as_record(self) -> dict[str, object]:
        return {
            "kind": "death", "signal": self.signal, "code": self.code, "at": self.at,
            "oom": self.oom, "terminal_closed": self.terminal_closed, "orphans": self.orphans,
            "memory": self.memory, "mono": self.mono,
        }  # fmt: skip

    @property
    def kind(self) -> str:
        """The reason as one of a few words, for programs."""
        if self.oom:
            return "out of memory"
        if self.signal is not None or self.code is not None:
            closed = self.terminal_closed and self.signal == SIGHUP
            return "terminal closed" if closed else "exit" if self.signal is None else "signal"
        known = {RESTARTED: "machine restarted", UNSUPERVISED: "supervisor lost",
                 LOST: "machine lost"}  # fmt: skip
        return known.get(self.unseen, "unknown")

    def __str__(self) -> str:
        from .signals import signal_name  # start-up: only to show it

        if self.oom:
            return "killed by SIGKILL: out of memory"
        if self.signal is not None:
            # Only a HUP comes from a closed terminal.
            why = ":" if self.signal == SIGHUP else " after"
            closed = f"{why} the terminal was closed" if self.terminal_closed else ""
            return f"killed by {signal_name(self.signal)}{closed}"
        if self.code is not None:
            closed = " after the terminal was closed" if self.terminal_closed else ""
            return f"exited with code {self.code}{closed}"
        return "exit status unknown" + (f": {self.unseen}" if self.unseen else "")


def of_status(status: int | None, *, oom_before: int | None, terminal_closed: bool) -> Cause:
    """The cause that follows from a wait status, seen at this moment."""
    cause = Cause(at=time.time(), terminal_closed=terminal_closed)
    cause.mono = clock.now()
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
        unseen=LOST if record.get("unseen") == "lost" else "",
    )
    orphans = record.get("orphans")
    if isinstance(orphans, list):
        cause.orphans = [orphan for orphan in orphans if isinstance(orphan, dict)]
    mono = record.get("mono")
    cause.mono = mono if isinstance(mono, int) and mono > 0 else 0
    memory = record.get("memory")
    if isinstance(memory, dict):
        cause.memory = memory
    return cause
