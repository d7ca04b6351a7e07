"""A line that says how far a long recovery is, on a terminal, and gone when it is over.

Never shows up for what takes but a moment, nor where nobody looks.
"""

from __future__ import annotations

import sys
import time

from .paint import paint_for
from .table import cut

A_MOMENT = 0.5
_EVERY = 0.1
_CELLS = 20


class Progress:
    """Of `runs` to be finished, one after the other."""

    def __init__(self, runs: int) -> None:
        self._runs = runs
        self._run = 0
        self._done = 0
        self._paint = paint_for(sys.stderr)
        self._next = time.monotonic() + A_MOMENT
        self._shown = False

    def begin_run(self) -> None:
        self._run += 1
        self._done = 0
        self._draw(0)

    def wrote(self, count: int, left: int) -> None:
        """So many more messages of a session are written, so many are still to be."""
        self._done += count
        self._draw(left)

    def _draw(self, left: int) -> None:
        now = time.monotonic()
        if self._paint.width is None or now < self._next:
            return
        self._next, self._shown = now + _EVERY, True
        share = self._done / (self._done + left) if self._done + left else 0.0
        full = round(share * _CELLS)
        bar = "\u2588" * full + "\u2591" * (_CELLS - full)
        told = f"run {self._run} of {self._runs}  {bar}  {self._done:,} of {self._done + left:,}"
        self._write("\r" + cut(f"recovering {told} messages", self._paint.width - 1) + "\x1b[K")

    def end(self) -> None:
        if self._shown:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            self._paint.width = None  # the terminal is gone; the recovery is not
