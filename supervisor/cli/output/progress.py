"""The progress of a long recovery, as one line on a terminal that disappears at the end.

Never shown for a short recovery, or if standard error is not a terminal.
"""

from __future__ import annotations

import sys
import time

from .style import for_stream
from .table import cut

A_MOMENT = 0.5
_EVERY = 0.1
_CELLS = 20


class Progress:
    """The progress of recovering `runs` runs, one after the other."""

    def __init__(self, runs: int) -> None:
        self._runs = runs
        self._run = 0
        self._done = 0
        self._style = for_stream(sys.stderr)
        self._next = time.monotonic() + A_MOMENT
        self._shown = False

    def begin_run(self) -> None:
        self._run += 1
        self._done = 0
        self._draw(0)

    def wrote(self, count: int, left: int) -> None:
        """`count` more messages of a session are written, and `left` are still to be written."""
        self._done += count
        self._draw(left)

    def _draw(self, left: int) -> None:
        now = time.monotonic()
        if self._style.width is None or now < self._next:
            return
        self._next, self._shown = now + _EVERY, True
        share = self._done / (self._done + left) if self._done + left else 0.0
        full = round(share * _CELLS)
        bar = "\u2588" * full + "\u2591" * (_CELLS - full)
        text = f"run {self._run} of {self._runs}  {bar}  {self._done:,} of {self._done + left:,}"
        self._write("\r" + cut(f"recovering {text} messages", self._style.width - 1) + "\x1b[K")

    def end(self) -> None:
        if self._shown:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            self._style.width = None  # the terminal is gone; continue without it
