"""Standard streams that the agent has closed stay closed: no file of ours takes their numbers.

    with numbers_kept_free():
        fd = os.open(…)         never 0, 1 or 2

A new descriptor gets the lowest free number. If that were 1, what a program prints would go into
our socket or our ring, and not fail as it does without us.

A shim of release 0.1.0 may load this module late, after an upgrade, with `ring.py`. So nothing here
is imported by name from a module of ours that it has loaded before.
"""

from __future__ import annotations

import os

from ..ipc import handlers

_LAST = 2
_FLAGS = os.O_RDONLY | os.O_CLOEXEC


class numbers_kept_free:
    """While it is entered, free numbers among the first three are taken."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken: list[int] = []

    def __enter__(self) -> None:
        try:
            while not self._taken or self._taken[-1] <= _LAST:
                self._taken.append(os.open(os.sep, _FLAGS))
            os.close(self._taken.pop())
        except BaseException as error:
            if not isinstance(error, OSError) or handlers.raised_by_signal_handler(error):
                self._release()
                raise
            # There is no descriptor left; opening ours fails as well.

    def __exit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        while self._taken:
            os.close(self._taken.pop())
