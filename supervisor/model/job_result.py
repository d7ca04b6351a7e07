"""How a background job ended, as its exit status: the one way in which a job reports back.

Never two numbers for one name: every job, and everyone who waits for one, goes by these.
"""

from __future__ import annotations


class JobResult:
    """The exit statuses of background jobs."""

    DONE = 0
    FAILED = 1
    """Also what Python itself exits with after an exception."""
    MORE = 3
    """There is more to do than one job takes on."""
    AGAIN = 4
    """Not everything could be done now: try again later."""
    NOT_OURS = 5
    """The agent does this itself: do not ask again."""
    STORED = 7
    """All messages are in state.db, but a later step failed."""
    FOUND = 6
    """There is a message for the user; the job has left it in a file."""
