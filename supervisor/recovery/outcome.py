"""What a death means for a session it left open. A table, and the words for the reason.

Never calls a clean exit an interruption.

    the process …            its last words were "bye"   work was in flight   the session was
    exited with 0            any                         no                   completed
    exited with 0            yes                         yes                  completed
    exited with 0            no                          yes                  interrupted
    exited with another code any                         any                  interrupted
    was killed by a signal   yes                         no                   completed
    was killed by a signal   otherwise                                        interrupted
    ended, how is unknown    yes                         no                   completed
    ended, how is unknown    otherwise                                        interrupted

"bye" is said while an interpreter shuts down in order: who is killed after it was leaving.
"""

from __future__ import annotations

from itertools import product

from ..cause import Cause
from ..plain import Enum


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
