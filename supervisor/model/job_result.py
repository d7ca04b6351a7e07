"""How a background job ended, as its exit status: the one way in which a job reports back.

Never two numbers for one name: every job, and everyone who waits for one, goes by these.
"""

from __future__ import annotations

import os

from ...ipc.lightweight.dataclass import Enum


class JobResult(Enum):
    """How a job ended. The values are exit statuses."""

    DONE = 0
    FAILED = 1  # also what Python itself exits with after an exception
    MORE = 3  # there is more to do than one job takes on
    AGAIN = 4  # not everything could be done now: try again later
    NOT_OURS = 5  # the agent does this itself: do not ask again
    FOUND = 6  # there is a message for the user; the job has left it in a file
    STORED = 7  # all messages are in state.db, but a later step failed


def result_of(wait_status: int) -> JobResult:
    """How the job of a dead process ended. Killed, or another status: it failed."""
    try:
        return JobResult(os.waitstatus_to_exitcode(wait_status))
    except ValueError:
        return JobResult.FAILED
