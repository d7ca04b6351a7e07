"""The event loop: descriptors and deadlines, nothing else. Idle means no wake-up at all.

Never knows what it waits for. `select.poll` instead of `selectors`: a launch pays for
every import.
"""

from __future__ import annotations

import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Timer:
    __slots__ = ("action", "due")

    def __init__(self, due: float, action: Callable[[], object]) -> None:
        self.due = due
        self.action = action


def _nothing() -> None:
    pass


class Loop:
    def __init__(self) -> None:
        self._poll = select.poll()
        self._actions: dict[int, Callable[[], object]] = {}
        self._resting: set[int] = set()
        self._timers: list[Timer] = []

    def when_readable(self, fd: int, action: Callable[[], object]) -> None:
        self._poll.register(fd, select.POLLIN)
        self._actions[fd] = action

    def forget(self, fd: int) -> None:
        if self._actions.pop(fd, None) is not None:
            if fd in self._resting:
                self._resting.remove(fd)
            else:
                self._poll.unregister(fd)

    def rest(self, fd: int, seconds: float) -> None:
        """Do not look at this descriptor for so long; then act as if it were readable."""
        action = self._actions.get(fd)
        if action is not None and fd not in self._resting:
            self._poll.unregister(fd)
            self._resting.add(fd)
            self.after(seconds, lambda: self._look_again(fd, action))

    def _look_again(self, fd: int, action: Callable[[], object]) -> None:
        # Forgotten meanwhile, its number may be another's by now.
        if fd in self._resting and self._actions.get(fd) is action:
            self._resting.remove(fd)
            self._poll.register(fd, select.POLLIN)
            action()

    def after(self, seconds: float, action: Callable[[], object]) -> Timer:
        timer = Timer(time.monotonic() + seconds, action)
        self._timers.append(timer)
        return timer

    def cancel(self, timer: Timer) -> None:
        timer.action = _nothing  # it may be among those that are due right now
        if timer in self._timers:
            self._timers.remove(timer)

    def run_until(self, finished: Callable[[], bool]) -> None:
        while not finished():
            ready = [(fd, self._actions.get(fd)) for fd, _ in self._poll.poll(self._patience())]
            for fd, action in ready:
                # An earlier action of this round may have closed this descriptor, and its number
                # may be that of another by now, which is not ready.
                if action is not None and self._actions.get(fd) is action:
                    action()
            self._fire()

    def _patience(self) -> float | None:
        if not self._timers:
            return None
        left = min(timer.due for timer in self._timers) - time.monotonic()
        return max(0.0, left * 1000)

    def _fire(self) -> None:
        if self._timers:
            now = time.monotonic()
            due = [timer for timer in self._timers if timer.due <= now]
            self._timers = [timer for timer in self._timers if timer.due > now]
            for timer in due:
                timer.action()
