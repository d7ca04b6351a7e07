"""Who is the agent once the process that we started is gone: a launcher is followed as a tree.

Never signals anyone, and never asks again and again: we are the subreaper, so what a dead
launcher leaves is our own child, and its end comes as a signal like the launcher's.

    the launcher never spoke, and a process below it is still in
    our session and at the input or output that we were given      it is the agent: followed
    in our session, and with our variables in its environment      may yet speak: not waited for,
                                                                   but its run's folder stays
    in a session of its own: a daemon, a job, a tool               let go, unless it speaks

A launcher that spoke is the agent itself, and what it leaves are its tools. Who spoke is an owner
and needs none of this. What a process does right after its birth (setsid, another output) is not
told to anybody, so who is followed is looked at a few times more, and then believed.
"""

from __future__ import annotations

import os

from ..ipc.endpoint import SOCKET_VARIABLE
from .orphans import Process, children, command_line, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .loop import Loop

Stream = tuple[int, int]
"""Device and inode of what a descriptor stands for."""

# Seconds between the looks at who is followed since a moment ago; three in all.
_LOOKS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


class Tree:
    """The followed processes of one run."""

    def __init__(self, loop: Loop, address: str) -> None:
        self._loop = loop
        self._entry = os.fsencode(f"{SOCKET_VARIABLE}={address}")
        self._input: Stream | None = None
        self._output: Stream | None = None
        self._left_to_look = list(_LOOKS)
        self._ours: set[int] = set()
        self.followed: set[int] = set()

    def given(self, streams: list[Stream | None]) -> None:
        """What standard input and output were when we were started."""
        null = _identity(os.devnull)
        self._input = None if streams[0] == null else streams[0]
        self._output = streams[1]

    def reaped(self, pid: int) -> bool:
        """A child of ours ended: was it of the agent?"""
        if pid not in self.followed:
            return False
        self.followed.remove(pid)
        return True

    def look(self, ours: set[int]) -> int | None:
        """A process of the agent has ended: who goes on in its place? `ours` is not looked at.
        The oldest that is followed, if any."""
        self._ours = ours
        self._look()
        if self.followed and self._left_to_look:
            self._loop.after(self._left_to_look.pop(0), self._look_again)
        return min(self.followed, default=None)

    def _look_again(self) -> None:
        if self.followed:
            self.look(self._ours)

    def _look(self) -> None:
        # Who is dead and not taken notice of yet is left to `reaped`.
        self.followed = {
            one.pid
            for one in self._left()
            if (self._is_at_our_streams(one.pid) if one.alive else one.pid in self.followed)
        }

    def may_yet_speak(self, ours: set[int]) -> int | None:
        """A process that nobody waits for, and that could still have something to say."""
        self._ours = ours
        left = (one.pid for one in self._left() if one.alive and self._carries_us(one.pid))
        return min(left, default=None)

    def may_speak_to_an_heir(self) -> int | None:
        """The same for an heir, to whom its predecessor's children do not come."""
        session = os.getsid(0)
        mates = (one.pid for one in table() if one.alive and one.session == session)
        return min(filter(self._carries_us, mates), default=None)

    def _left(self) -> list[Process]:
        """Our children that are of our session, and not what we started ourselves."""
        us, session = os.getpid(), os.getsid(0)
        own_words = command_line(us)
        return [
            one
            for one in table(children())
            if one.parent == us and one.session == session and one.pid not in self._ours
            and command_line(one.pid) != own_words
        ]  # fmt: skip

    def _is_at_our_streams(self, pid: int) -> bool:
        at_input = self._input is not None and _identity(f"/proc/{pid}/fd/0") == self._input
        at_output = self._output is not None and _identity(f"/proc/{pid}/fd/1") == self._output
        return at_input or at_output

    def _carries_us(self, pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                return self._entry in file.read().split(b"\0")
        except OSError:
            return False


def is_part_of(pid: int, whole: int, known: set[int]) -> bool:
    """Whether a process is below another, which is `known` or below us."""
    above = list(ancestors(pid))
    return whole in above and (whole in known or os.getpid() in ancestors(whole))


def ancestors(pid: int) -> Iterator[int]:
    """The processes above one, the nearest first."""
    while pid > 1 and (line := table([str(pid)])):
        pid = line[0].parent
        yield pid


def standard_streams() -> list[Stream | None]:
    """What our own standard input and output are."""
    return [_identity(f"/proc/self/fd/{fd}") for fd in (0, 1)]


def _identity(path: str) -> Stream | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
