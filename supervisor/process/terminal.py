"""The user's terminal: its settings are saved before the agent starts, and restored after a crash.

Never reads from it, and writes to it only after a crash.
"""

from __future__ import annotations

import os
import select
import termios

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# End a sequence that the agent was cut off in, and a frame that it was drawing; mouse reporting,
# focus reporting, bracketed paste off; save the cursor, then leave the alternate screen, which
# restores it (so that on the main screen it stays where it is); scroll region and origin back,
# which moves the cursor, so it is saved again; kitty keys, modifyOtherKeys, character set and
# attributes back; cursor shown.
_RESET = (
    b"\x1b\\\x1b[?2026l\x1b[?1006l\x1b[?1015l\x1b[?1003l\x1b[?1002l\x1b[?1000l\x1b[?1004l\x1b[?2004l"
    b"\x1b7\x1b[?1049l\x1b7\x1b[?6l\x1b[r\x1b8\x1b[<u\x1b[>4m\x1b[?1l\x1b>\x1b(B\x1b[0m\x1b[?25h"
)


class Terminal:
    def __init__(self, fd: int, settings: list[Any]) -> None:
        self._fd = fd
        self._settings = settings
        self.was_reset = False
        """`restore` undid what an agent had done to it."""

    def is_gone(self) -> bool:
        """True once the other side is closed: the window was closed, or the connection lost."""
        poller = select.poll()
        poller.register(self._fd, 0)
        return any(mask & (select.POLLHUP | select.POLLERR) for _, mask in poller.poll(0))

    def has_changed(self) -> bool:
        """True if its settings differ from those before the agent started."""
        try:
            return termios.tcgetattr(self._fd) != self._settings
        except termios.error:
            return False

    def has_us_as_foreground_job(self) -> bool:
        """True if a shell with job control started us and waits for us."""
        try:
            is_foreground = os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:
            return False
        return is_foreground and os.getpgrp() != os.getsid(0)

    def restore(self) -> None:
        if self._is_used_by_another():
            return
        try:
            termios.tcsetattr(self._fd, termios.TCSANOW, self._settings)
            if os.environ.get("TERM", "dumb") != "dumb" and self._accepts_output():
                os.write(self._fd, _RESET)
                self.was_reset = True
        except (OSError, termios.error):
            pass  # no terminal left to restore

    def line_for_a_notice(self) -> bytes:
        """What to write before a notice, so that it stands on lines of its own: a killed agent may
        have left the cursor in the middle of a line, or of a frame that fills the screen. What it
        had drawn below the cursor is cleared; everything above it stays."""
        return b"\n\x1b[J" if self.was_reset else b"\n"

    def _is_used_by_another(self) -> bool:
        """True if we are in the background and another living group is in the foreground."""
        try:
            foreground = os.tcgetpgrp(self._fd)
            if foreground == os.getpgrp():
                return False
            os.kill(-foreground, 0)
        except PermissionError:
            return True
        except OSError:  # not our controlling terminal, or that group is gone
            return False
        return True

    def _accepts_output(self) -> bool:
        """False if a write would block: Ctrl-S was pressed, or the other side does not read."""
        poller = select.poll()
        poller.register(self._fd, select.POLLOUT)
        return any(mask & select.POLLOUT for _, mask in poller.poll(0))


def save() -> Terminal | None:
    """The terminal on any of our standard descriptors, with its current settings."""
    for fd in (0, 1, 2):
        try:
            if os.isatty(fd):
                import fcntl  # start-up: only where there is a terminal

                own = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
                return Terminal(own, termios.tcgetattr(fd))
        except (OSError, termios.error):
            continue
    return None
