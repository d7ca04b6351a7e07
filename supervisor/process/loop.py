"""The event loop: descriptors and timers, nothing else. An idle loop does not wake up at all.

Knows nothing about what it waits for. It uses `select.poll` instead of `selectors`, which would
make every launch slower to import.
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
        self._paused: set[int] = set()
        self._timers: list[Timer] = []

    def when_readable(self, fd: int, action: Callable[[], object]) -> None:
        self._poll.register(fd, select.POLLIN)
        self._actions[fd] = action

    def forget(self, fd: int) -> None:
        if self._actions.pop(fd, None) is not None:
            if fd in self._paused:
                self._paused.remove(fd)
            else:
                self._poll.unregister(fd)

    def pause(self, fd: int, seconds: float) -> None:
        """Do not poll this descriptor for a while; then act as if it were readable."""
        action = self._actions.get(fd)
        if action is not None and fd not in self._paused:
            self._poll.unregister(fd)
            self._paused.add(fd)
            self.after(seconds, lambda: self._resume(fd, action))

    def _resume(self, fd: int, action: Callable[[], object]) -> None:
        # If it was forgotten meanwhile, its number may belong to another file by now.
        if fd in self._paused and self._actions.get(fd) is action:
            self._paused.remove(fd)
            self._poll.register(fd, select.POLLIN)
            action()

    def after(self, seconds: float, action: Callable[[], object]) -> Timer:
        timer = Timer(time.monotonic() + seconds, action)
        self._timers.append(timer)
        return timer

    def cancel(self, timer: Timer) -> None:
        timer.action = _nothing  # it may be among the timers that are being run right now
        if timer in self._timers:
            self._timers.remove(timer)

    def run_until(self, finished: Callable[[], bool]) -> None:
        while not finished():
            self.wait()

    def wait(self) -> None:
        """Wait until a descriptor is readable or a timer is due, and run what belongs to it."""
        ready = [(fd, self._actions.get(fd)) for fd, _ in self._poll.poll(self._time_left())]
        for fd, action in ready:
            # An earlier action of this round may have closed this descriptor, and its number may
            # belong to another file by now, which is not ready.
            if action is not None and self._actions.get(fd) is action:
                action()
        self._run_timers()

    def _time_left(self) -> float | None:
        if not self._timers:
            return None
        left = min(timer.due for timer in self._timers) - time.monotonic()
        return max(0.0, left * 1000)

    def _run_timers(self) -> None:
        if self._timers:
            now = time.monotonic()
            due = [timer for timer in self._timers if timer.due <= now]
            self._timers = [timer for timer in self._timers if timer.due > now]
            for timer in due:
                timer.action()
