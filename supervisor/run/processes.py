"""The processes of one run: the command, the processes that connected, and what a dead one left.

Never decides what happens next: `supervision.py` does. Never writes to a journal: `recoveries.py`
closes the streams of a dead process.

    the command     the process that we started; its status is ours
    owners          processes that connected, and so may own sessions
    followed        what a launcher that never connected left behind (process/tree.py)
    orphans         what a dead agent left running and nobody waits for (process/orphans.py)

The order at an exit is what makes "handed over" mean "recovered": accept waiting connections, read
those of the dead process to their end, write down how it died, sync, and only then recover.
"""

from __future__ import annotations

import os

from ...ipc.endpoint import RUN_VARIABLE
from ..agents import registry
from ..process import cause
from ..process.death import watch
from ..process.memory import MemoryUse
from ..process.orphans import Orphans
from ..process.platform import (
    below,
    is_another,
    process_start,
    sees_processes,
    since_boot,
    user_of,
)
from ..process.tree import Tree, has_variable, is_below
from ..storage.run_notes import leave, note_other_user, note_unseen, record_agent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from resource import struct_rusage

    from ..ingest.server import Server
    from ..process.death import Watch
    from ..process.loop import Loop
    from ..process.terminal import Terminal
    from ..process.tree import FileId
    from ..storage.run_folder import Run
    from .recoveries import Recoveries

_POLL_INTERVAL = 0.5  # for processes whose death no descriptor reports
_STATUSES_KEPT = 64


class Owner:
    """A process that connected, and so may own sessions."""

    def __init__(self, pid: int, start: int | None, watched: Watch | None) -> None:
        self.pid = pid
        self.start = start
        self.watched = watched

    def is_alive(self) -> bool:
        return self.watched is not None and not self.watched.dead()


class Processes:
    def __init__(
        self,
        loop: Loop,
        run: Run,
        server: Server,
        recoveries: Recoveries,
        terminal: Terminal | None,
        address: str,
        orphans: str,
        our_children: Callable[[], set[int]],
        reap: Callable[[], None],
        warn: Callable[[str], None],
    ) -> None:
        """`our_children`: the pids of children that are not the agent's. `reap`: learn of children
        that exited."""
        self._loop = loop
        self._run = run
        self._server = server
        self._recoveries = recoveries
        self._terminal = terminal
        self._our_children = our_children
        self._reap = reap
        self._warn = warn
        self._tree = Tree(loop, address)
        self.orphans = Orphans(loop, orphans, registry.describe_orphan)
        self._memory = MemoryUse()
        self._oom_before = self._oom_lately = cause.oom_kills()
        self._command = 0
        self._command_connected = False
        self._owners: dict[int, Owner] = {}
        self._polling = False
        self._statuses: dict[int, int] = {}
        """Of children that exited without having connected; their hello may still be unread."""
        self.any_connected = False
        self.other_user: int | None = None
        """A process of the agent's was seen to run as this user, who is not ours."""
        self.refused = False
        """It tried to connect."""
        self.status: int | None = None
        """The command's wait status, once it has exited."""
        self.cause: cause.Cause | None = None
        """How the agent ended: its last process that we know of."""

    # -- what is there -----------------------------------------------------------------------

    def started(self, pid: int, streams: list[FileId | None]) -> None:
        """The command runs; `streams` are the standard input and output that it was given."""
        self._command = pid
        self._tree.set_streams(streams)

    def took_over(self) -> None:
        """Our predecessor's parent knows the command's status already: we wait for the others."""
        self.status = 0

    def others_run(self) -> bool:
        """True while a process of the agent, other than the command, may still send records."""
        return bool(self._owners or self._tree.followed)

    def unknown_holder(self) -> int | None:
        """The oldest process that is followed only because it has our standard streams; None if an
        agent that is connected, or whose transcript is read, runs as well."""
        if self._owners or self._run.transcript_stream is not None:
            return None
        return self._tree.oldest()

    def pids(self) -> set[int]:
        """The agent's pids: the command, or the processes that remain once the command has
        exited."""
        if self.status is None:
            return {self._command}
        return self._tree.followed | {o.pid for o in self._owners.values() if o.is_alive()}

    def includes(self, pid: int, whole: int) -> bool:
        """True if `pid` is below `whole`, a process of this run, or was left behind in it by a
        parent that has ended: nothing but its environment shows then what it is a part of."""
        known = {*self._owners, *([self._command] if self._command else [])}
        entry = os.fsencode(f"{RUN_VARIABLE}={self._run.name}")
        return is_below(pid, whole, known) or (whole in known and has_variable(pid, entry))

    def remember_who_may_connect(self) -> None:
        """At the end: keep the run's folder for a process that may still connect."""
        crashed = self.status is not None and os.WIFSIGNALED(self.status)
        if self._command_connected and crashed:
            return  # the command was the agent itself, and what it left are tools
        pid = self._tree.may_still_connect(self._our_children())
        if pid is not None:
            leave(self._run.folder, pid)

    def successor_agent(self) -> int | None:
        """For a successor: a process that never connected, and may still do so."""
        return self._tree.may_connect_to_successor()

    def check_memory(self) -> None:
        """An OOM kill that the last check counted killed a tool, not the agent. One check late,
        because the kernel counts a victim before it is dead."""
        self._oom_before, self._oom_lately = self._oom_lately, cause.oom_kills()
        self._memory.look(self._owners)

    def look_for_other_user(self, *, only_command: bool = False) -> None:
        """If nobody has connected: does the agent run as another user? By what works at the
        bottom, because a program that changes the user may stay above the agent as it was."""
        if self.any_connected or self.other_user is not None:
            return
        family = [(self._command, 0), *([] if only_command else below(self._command))]
        above = {parent for _, parent in family}
        users = {user_of(pid) for pid, _ in family if pid not in above}
        user = users.pop() if len(users) == 1 else None
        if user is not None and user != os.getuid():
            self.note_other_user(user)

    def note_other_user(self, uid: int, *, refused: bool = False) -> None:
        if self.other_user != uid:
            self.other_user = uid
            note_other_user(self._run.folder, uid)
        self.refused |= refused

    # -- a process connects ------------------------------------------------------------------

    def connected(self, pid: int, claimed_start: object) -> int | None:
        """A process said hello for the first time: from now on we watch for its exit. Returns its
        start time, if it can be read."""
        self.any_connected = True
        self._command_connected |= pid == self._command
        owner = self._owners.get(pid)
        if owner is None:
            start = process_start(pid)
            is_other = is_another(pid, _start_time(claimed_start))
            watched = None if is_other else watch(pid, start)
            owner = self._owners[pid] = Owner(pid, start, watched)
            if watched is None:
                self._loop.after(0, lambda: self._handle_exit(owner, None))
            elif (fd := watched.fileno()) is not None:
                self._loop.when_readable(fd, lambda: self._on_death(owner))
            elif not self._polling:
                self._polling = True
                self._loop.after(_POLL_INTERVAL, self._poll)
        return owner.start

    def _poll(self) -> None:
        for owner in list(self._owners.values()):
            if not owner.is_alive():
                self._on_death(owner)
        self._polling = bool(self._owners)
        if self._polling:
            self._loop.after(_POLL_INTERVAL, self._poll)

    def _on_death(self, owner: Owner) -> None:
        self._reap()  # for a child of ours, its wait status is the best source
        if owner.pid in self._owners:
            self._handle_exit(owner, owner.watched.status() if owner.watched else None)

    # -- a process exits ---------------------------------------------------------------------

    def exited(self, pid: int, status: int, used: struct_rusage | None) -> None:
        """A child of ours exited: the command, or a process that a dead one left to us."""
        self._memory.reaped(pid, used)
        is_command = pid == self._command
        is_agent = self._tree.reaped(pid) or is_command
        if is_command:
            self.status = status
            self._server.drain(pid)
            self._server.read_all()  # the processes that have connected remain
        if is_agent:
            self.cause = self._recoveries.causes[pid] = self._cause_of(status)
        if self.status is not None and not self._command_connected:
            # The status stays the command's: our parent would have seen that without us.
            oldest = self._tree.update(self._our_children())
            if oldest is not None:
                record_agent(self._run.folder, oldest)
            elif not sees_processes():
                note_unseen(self._run.folder)  # for a successor: it may have been a launcher
        if (owner := self._owners.get(pid)) is not None:
            self._handle_exit(owner, status)
        else:
            self.keep_status(pid, status)
            if is_agent:
                self._restore_terminal(status)
                if not self.others_run():
                    self._find_orphans(status)
        self._memory.forget(pid)  # of a process that never connected

    def release_agent(self) -> None:
        """Do not wait for the owners any more, although they are alive: a daemon that continued the
        turn of a dead client has ended that turn."""
        for owner in list(self._owners.values()):
            self._handle_exit(owner, 0)

    def keep_status(self, pid: int, status: int) -> None:
        """Keep the exit status of a process that is not an owner, or not yet."""
        self._statuses[pid] = status
        for oldest in list(self._statuses)[:-_STATUSES_KEPT]:
            del self._statuses[oldest]

    def _handle_exit(self, owner: Owner, status: int | None) -> None:
        """An owner is dead: read what it sent, note how it died, recover what it owned."""
        if self._owners.get(owner.pid) is not owner:
            return
        self._server.drain(owner.pid)
        del self._owners[owner.pid]
        if owner.watched is not None:
            if (fd := owner.watched.fileno()) is not None:
                self._loop.forget(fd)
            owner.watched.close()
        if status is None:
            status = self._statuses.pop(owner.pid, None)
        self._restore_terminal(status)
        how = self._cause_of(status)
        how.orphans = self._find_orphans(status)
        how.memory = self._memory.take(owner.pid)
        self.cause = self.cause or how  # a successor knows of no other
        self._recoveries.process_died(owner.pid, how)

    def _cause_of(self, status: int | None) -> cause.Cause:
        gone = self._terminal is not None and self._terminal.is_gone()
        return cause.of_status(status, oom_before=self._oom_before, terminal_closed=gone)

    def _restore_terminal(self, status: int | None) -> None:
        """After the last process of a crashed agent, undo what it did to the terminal, before
        anything else. A launcher that dies leaves the terminal to the processes that remain."""
        if self._terminal is None or self.status is None or self.others_run():
            return
        # A launcher that failed and an agent below it that exited in order count as one.
        statuses = {self.status, status}
        killed = any(s is not None and os.WIFSIGNALED(s) for s in statuses)
        if statuses != {0} and (killed or self._terminal.has_changed()):
            self._terminal.restore()

    def _find_orphans(self, status: int | None) -> list[dict[str, object]]:
        """What a process that did not exit in order has left running."""
        if status == 0:
            return []
        exited = status is not None and os.WIFEXITED(status)
        if not exited and not sees_processes():
            self._warn("cannot list the processes left behind: /proc is missing, or not ours")
        try:
            known = self._our_children() | set(self._owners) | self.pids()
            return self.orphans.look(known, only_tools=exited)
        except OSError as error:
            self._warn(f"cannot list the processes left behind: {error.strerror or error}")
            return []


def _start_time(claimed: object) -> int | None:
    """None for a number that cannot be a start time: a client may count from elsewhere."""
    if not isinstance(claimed, int) or not 0 <= claimed <= since_boot() * os.sysconf("SC_CLK_TCK"):
        return None
    return claimed
