"""The life of a process in a session, and which of two lives came first. Data only.

Wall clocks jump: they are set, or were wrong in an earlier boot. Two lives of one boot are compared
by a clock that only goes forward. A life of an earlier boot precedes every life of this one. Only
where neither is known does wall time decide.
"""

from __future__ import annotations

import os

from ...ipc.lightweight.dataclass import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .stream import Record, ReplayedStream, Session

NANOSECONDS_A_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


@dataclass
class Life:
    boot: str = ""
    """The boot of the machine; empty: not known."""
    first: int = 0
    """When the process began, or else the place of its first record in the session. 0: not known"""
    last: int = 0
    """The place of its last record in the session. 0: not known."""
    began: float = 0.0
    """The time of its first record in the session, by the wall clock."""
    died: float = 0.0
    """By the wall clock. 0: it lives, or nobody knows."""

    def precedes(self, other: Life, boot: str) -> bool:
        """True if this life was over before the other one began; `boot` is the current boot."""
        if self.boot and other.boot and self.boot != other.boot:
            if boot in (self.boot, other.boot):
                return boot == other.boot
        elif self.boot and self.last and other.first:
            return self.last <= other.first
        return 0.0 < self.died < other.began

    def as_record(self) -> Record:
        return {name: value for name, value in vars(self).items() if value}


def life_of(stream: ReplayedStream, session: Session, died: float = 0.0) -> Life:
    boot = stream.hello.get("boot")
    boot = boot if isinstance(boot, str) else ""
    # Not known for a process that was dead before the supervisor knew of it, or without /proc.
    start = stream.peer.get("start")
    start = start if isinstance(start, int) and start > 0 else stream.hello.get("start")
    first = session.first_place
    if first and isinstance(start, int) and 0 < start * NANOSECONDS_A_TICK < first:
        first = start * NANOSECONDS_A_TICK
    return Life(boot, first, session.last_place, session.began, died)


def from_record(record: object, died: object = None) -> Life:
    """A life as a marker has it. Markers of 0.1 have only `died`."""
    known = record if isinstance(record, dict) else {"died": died}
    life = Life()
    for name, default in vars(Life()).items():
        value = known.get(name)
        kind = str if isinstance(default, str) else int if isinstance(default, int) else float
        if isinstance(value, kind) or (kind is float and isinstance(value, int)):
            setattr(life, name, value)
    return life
