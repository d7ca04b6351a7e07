"""The user's terminal: remembered before the agent starts, put back after it crashed.

Never reads from it, and writes to it only after a crash.
"""

from __future__ import annotations

import os
import select
import termios

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Mouse reporting, focus reporting, bracketed paste off; save the cursor, then leave the
# alternate screen, which restores it (so that on the main screen it stays where it is);
# kitty keys, modifyOtherKeys, character set and attributes back; cursor shown.
_RESET = (
    b"\x1b[?1006l\x1b[?1015l\x1b[?1003l\x1b[?1002l\x1b[?1000l\x1b[?1004l\x1b[?2004l"
    b"\x1b7\x1b[?1049l\x1b[<u\x1b[>4m\x1b[?1l\x1b>\x1b(B\x1b[0m\x1b[?25h"
)


class Terminal:
    def __init__(self, fd: int, settings: list[Any]) -> None:
        self._fd = fd
        self._settings = settings

    def gone(self) -> bool:
        """Is the other side closed (window closed, connection lost)?"""
        poller = select.poll()
        poller.register(self._fd, 0)
        return any(mask & (select.POLLHUP | select.POLLERR) for _, mask in poller.poll(0))

    def changed(self) -> bool:
        """Are its settings others than before the agent started?"""
        try:
            return termios.tcgetattr(self._fd) != self._settings
        except termios.error:
            return False

    def restore(self) -> None:
        if self._in_use():
            return
        try:
            termios.tcsetattr(self._fd, termios.TCSANOW, self._settings)
            if os.environ.get("TERM", "dumb") != "dumb" and self._takes_text():
                os.write(self._fd, _RESET)
        except (OSError, termios.error):
            pass  # no terminal left to restore

    def _in_use(self) -> bool:
        """Were we put into the background, and another program has it now?"""
        try:
            foreground = os.tcgetpgrp(self._fd)
            if foreground == os.getpgrp():
                return False
            os.kill(-foreground, 0)
        except PermissionError:
            return True
        except OSError:  # not ours to share, or the group is gone
            return False
        return True

    def _takes_text(self) -> bool:
        """A terminal held with Ctrl-S, or whose other side reads no more, would keep us."""
        poller = select.poll()
        poller.register(self._fd, select.POLLOUT)
        return any(mask & select.POLLOUT for _, mask in poller.poll(0))


def remember() -> Terminal | None:
    """The terminal on any of our standard descriptors, with its settings of now."""
    for fd in (0, 1, 2):
        try:
            if os.isatty(fd):
                import fcntl

                own = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
                return Terminal(own, termios.tcgetattr(fd))
        except (OSError, termios.error):
            continue
    return None
