"""What the end of its processes means for a session that they left open: tables, and a rule.

Never calls a clean exit an interruption.

    the process …            said "bye" last   work in flight   the session was
    exited with 0            any               no               completed
    exited with 0            yes               yes              completed
    exited with 0            no                yes              interrupted
    exited with another code any               any              interrupted
    was killed by a signal   yes               no               completed
    was killed by a signal   otherwise                          interrupted
    ended, how is unknown    yes               no               completed
    ended, how is unknown    otherwise                          interrupted

"bye" is sent while an interpreter shuts down normally: a process that is killed after it was
exiting anyway.

Several processes may have a share in one session. It ends with the last of them, with the worst
outcome since its last completed turn. A process that ends before the others crashed the session if
the table says "interrupted", and it

    did not exit with 0                       a worker that ends in order is no crash
    had work in flight, or the user in it     an idle worker may be stopped
    had work in flight, if how is unknown

A turn that began in another process and was completed after the crash is not affected by it. And
the work of the last process is done if another process completed a turn after its last record.
"""

from __future__ import annotations

from itertools import product

from ...ipc.lightweight.dataclass import Enum, dataclass
from ..model.phases import Phase
from ..process.cause import Cause

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..model.stream import Session


class Outcome(Enum):
    COMPLETED = "exited"
    INTERRUPTED = "interrupted"


class End(Enum):
    CLEAN = "exited with 0"
    FAILED = "exited with another code"
    SIGNALLED = "was killed by a signal"
    UNKNOWN = "ended, how is unknown"


# (how it ended, said bye, work in flight) -> outcome
TABLE: dict[tuple[End, bool, bool], Outcome] = dict.fromkeys(
    product(End, (True, False), (True, False)), Outcome.INTERRUPTED
)
TABLE |= {
    (End.CLEAN, True, True): Outcome.COMPLETED,
    (End.CLEAN, True, False): Outcome.COMPLETED,
    (End.CLEAN, False, False): Outcome.COMPLETED,
    (End.SIGNALLED, True, False): Outcome.COMPLETED,
    (End.UNKNOWN, True, False): Outcome.COMPLETED,
}


def end_of(cause: Cause | None) -> End:
    if cause is None or (cause.signal is None and cause.code is None):
        return End.UNKNOWN
    if cause.signal is not None:
        return End.SIGNALLED
    return End.CLEAN if cause.code == 0 else End.FAILED


def outcome_of(cause: Cause | None, *, said_bye: bool, in_flight: bool) -> Outcome:
    return TABLE[end_of(cause), said_bye, in_flight]


# -- several processes in one session ----------------------------------------------------------


@dataclass
class Moment:
    """A point in time, by a clock that only goes forward and by the wall clock."""

    boot: str = ""
    place: int = 0
    at: float = 0.0

    def is_after(self, other: Moment) -> bool:
        if self.boot and self.boot == other.boot and self.place and other.place:
            return self.place > other.place
        return self.at > other.at


@dataclass
class Crash:
    """A process died in the middle of something, or with the user in it."""

    when: Moment
    cause: Cause


def works(session: Session) -> bool:
    """True if work of its own is in flight: a turn that began here, or a reply. What a worker adds
    to the turn of another process does not count."""
    return session.in_flight and (session.takes_turns or session.phase is Phase.REPLYING)


def crashed(cause: Cause, session: Session, *, said_bye: bool) -> bool:
    """Whether a process that ended before others of its session crashed it."""
    end, in_flight = end_of(cause), works(session)
    if end is End.CLEAN or not (in_flight or session.takes_turns):
        return False
    if end is End.UNKNOWN and not in_flight:
        return False
    return outcome_of(cause, said_bye=said_bye, in_flight=in_flight) is Outcome.INTERRUPTED


def worst(crashes: Iterable[Crash], completed: Iterable[Moment]) -> Crash | None:
    """The last crash that no completed turn came after."""
    last: Crash | None = None
    turns = list(completed)
    for crash in crashes:
        outlived = any(turn.is_after(crash.when) for turn in turns)
        if not outlived and (last is None or crash.when.is_after(last.when)):
            last = crash
    return last
