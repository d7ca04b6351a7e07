"""The agent behind a launcher: which processes are the agent once the started command has exited.

Never signals a process and never polls: we are the subreaper, so the processes that a dead
launcher leaves become our own children, and their exits arrive as signals like the launcher's.
Where no process can be a subreaper, only those that connect are followed.

    the launcher never connected, and a process it left is in
    our session and has our standard input or output open      it is the agent: followed
    in our session, and has our variables in its environment   may still connect: not waited for,
                                                               but the run's folder stays
    in a session of its own (a daemon, a job, a tool)          ignored, unless it connects

A launcher that connected is the agent itself, and what it leaves are its tools: nobody waits for
them. But one may be a forked child of the agent that has not sent a record yet, so the run's folder
stays while any process that was started in the run is alive (`started_in`). A process that
connected is an owner of sessions and needs none of this. Nobody reports what a process does right
after its start (setsid, another output), so a followed process is checked a few more times.
"""

from __future__ import annotations

import os
import sys

from ...ipc.endpoint import RUN_VARIABLE, SOCKET_VARIABLE
from .platform import (
    HAS_SUBREAPERS,
    ProcessInfo,
    below,
    command_line,
    environment,
    fd_target,
    own_children,
    process_table,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .loop import Loop

FileId = tuple[int, int]
"""Device and inode of an open file."""

# Seconds between the checks of recently followed processes; three in all.
_CHECKS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


class Tree:
    """The followed processes of one run."""

    def __init__(self, loop: Loop, address: str) -> None:
        self._loop = loop
        self._entry = os.fsencode(f"{SOCKET_VARIABLE}={address}")
        self._input: FileId | None = None
        self._output: FileId | None = None
        self._checks_left = list(_CHECKS)
        self._ours: set[int] = set()
        self.followed: set[int] = set()

    def set_streams(self, streams: list[FileId | None]) -> None:
        """The standard input and output that we were started with."""
        null = _file_id(os.devnull)
        self._input = None if streams[0] == null else streams[0]
        self._output = streams[1]

    def reaped(self, pid: int) -> bool:
        """A child of ours exited; True if it was a followed process."""
        if pid not in self.followed:
            return False
        self.followed.remove(pid)
        return True

    def update(self, ours: set[int]) -> int | None:
        """A process of the agent has exited: follow those that go on in its place, except `ours`.
        Returns the oldest followed process, if there is one."""
        self._ours = ours
        # A dead process that has not been reaped yet stays until `reaped`.
        followed = [
            process
            for process in self._left_to_us()
            if (
                self._has_our_streams(process.pid)
                if process.alive
                else process.pid in self.followed
            )
        ]
        self.followed = {process.pid for process in followed}
        if self.followed and self._checks_left:
            self._loop.after(self._checks_left.pop(0), self._check_again)
        return _oldest(followed)

    def oldest(self) -> int | None:
        """The oldest followed process."""
        return _oldest(process_table(list(self.followed)))

    def _check_again(self) -> None:
        if self.followed:
            self.update(self._ours)

    def may_still_connect(self, ours: set[int]) -> int | None:
        """The oldest process that nobody waits for and that may still connect to us."""
        if not HAS_SUBREAPERS:
            return self._with_our_variable()
        self._ours = ours
        return _oldest([p for p in self._left_to_us() if p.alive and self._has_our_variable(p.pid)])

    def may_connect_to_successor(self) -> int | None:
        """The same for a successor, which does not inherit its predecessor's children."""
        return self._with_our_variable()

    def _with_our_variable(self) -> int | None:
        """The oldest process of our session with our variable, whoever its parent is."""
        session = os.getsid(0)
        return _oldest(
            [
                process
                for process in process_table()
                if process.alive
                and process.session == session
                and self._has_our_variable(process.pid)
            ]
        )

    def _left_to_us(self) -> list[ProcessInfo]:
        """Our children in our session, without those that we started ourselves."""
        us, session = os.getpid(), os.getsid(0)
        our_command = command_line(us)
        return [
            process
            for process in process_table(own_children())
            if process.parent == us
            and process.session == session
            and process.pid not in self._ours
            and command_line(process.pid) != our_command
        ]

    def _has_our_streams(self, pid: int) -> bool:
        at_input = self._input is not None and fd_target(pid, 0) == self._input
        at_output = self._output is not None and fd_target(pid, 1) == self._output
        return at_input or at_output

    def _has_our_variable(self, pid: int) -> bool:
        return has_variable(pid, self._entry)


def started_in(run: str, *, below_us: bool = False) -> list[int]:
    """The living processes that were started in a run: each of them may still send records. Forked
    children count, and everything that they start, in any session. `below_us`: we started the run,
    and it is over."""
    entry = os.fsencode(f"{RUN_VARIABLE}={run}")
    # The processes below a dead agent are below its subreaper, and those are quick to list.
    pids = _descendants() if below_us and HAS_SUBREAPERS else None
    return [p.pid for p in process_table(pids) if p.alive and has_variable(p.pid, entry)]


def has_children() -> bool:
    """True if a process is left below us. Reaps those that have ended: only for the end of a run
    whose processes cannot be looked at."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def has_variable(pid: int, entry: bytes) -> bool:
    """True if a process was started with this entry, NAME=VALUE, in its environment."""
    return entry in environment(pid)


def _descendants() -> list[int]:
    """All processes below us. One whose parent ends while we look becomes our child, so we look
    until nothing has changed."""
    seen: list[int] | None = None
    while True:
        pids = sorted(pid for pid, _ in below(os.getpid(), sys.maxsize))
        if pids == seen:
            return pids
        seen = pids


def is_below(pid: int, above: int, known: set[int]) -> bool:
    """True if a process is a descendant of `above`, and `above` is `known` or below us."""
    return above in ancestors(pid) and (above in known or os.getpid() in ancestors(above))


def ancestors(pid: int) -> Iterator[int]:
    """The processes above one, the nearest first."""
    while pid > 1 and (line := process_table([pid])):
        pid = line[0].parent
        yield pid


def standard_streams() -> list[FileId | None]:
    """Our own standard input and output."""
    return [fd_target(os.getpid(), fd) for fd in (0, 1)]


def _oldest(processes: list[ProcessInfo]) -> int | None:
    """By when it began: pids begin again at the bottom once they have reached their limit."""
    return min((process.start, process.pid) for process in processes)[1] if processes else None


def _file_id(path: str) -> FileId | None:
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_dev, about.st_ino
