"""A live view on the terminal: one screen, redrawn in place, left with `q`.

Never flickers: each frame is written at once over the last one, without clearing the screen. The
terminal is always restored, and shows again what it showed before.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Callable

_INTERVAL = 1.0
# The alternate screen, without a cursor; and back.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_TOP, _END_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


def show_live(draw: Callable[[], list[str]]) -> None:
    """Show `draw()` and update it until the user presses q, Ctrl-C or Ctrl-D."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        sys.stdout.write(_ENTER)
        while True:
            sys.stdout.write(frame(draw(), os.get_terminal_size(sys.stdout.fileno()).lines))
            sys.stdout.flush()
            ready, _, _ = select.select([keyboard], [], [], _INTERVAL)
            if ready and os.read(keyboard, 1024)[:1] in (b"q", b"Q", b"\x04", b""):
                return
    except KeyboardInterrupt:
        pass
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def frame(lines: list[str], rows: int) -> str:
    """One frame: the lines that fit, each over the old one."""
    if len(lines) > rows:
        hidden = len(lines) - rows + 1
        lines = [*lines[: rows - 1], f"… {hidden} more lines"]
    body = f"{_END_OF_LINE}\r\n".join(lines)
    return f"{_TOP}{body}{_END_OF_LINE}{_REST_OF_SCREEN}"
