"""A command that waits for long says what it waits for, and how to leave.

Never says it twice, and only if standard error is a terminal.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ...process import launch

SILENT_FOR = 1.5


@contextmanager
def explained(why: str) -> Iterator[None]:
    """If the work inside takes long, say why. A timer, not a thread: the work may fork."""
    if not sys.stderr.isatty():
        yield
        return

    def tell(number: int, frame: FrameType | None) -> None:
        launch.say(f"{why}. Ctrl-C leaves; nothing is lost")

    before = signal.signal(signal.SIGALRM, tell)
    signal.setitimer(signal.ITIMER_REAL, SILENT_FOR)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
