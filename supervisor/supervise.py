"""Supervision of one run: from the agent's start until every session in it is settled.

Never writes to state.db itself: recovery happens in a forked process, so that a locked
database or a slow hook keeps nobody from being served, and what recovery imports is gone
again afterwards.

The order at a death, which is what makes "handed over" mean "recovered": accept whoever
still waits at the door, read the dead process' connections to their end, write down how
it died, sync, and only then recover.
"""

from __future__ import annotations

import os
import time

from ..ipc.endpoint import process_start
from . import cause, launch
from .door import Door, take_over
from .footprint import Weights, any_child
from .hooks.minder import Minder, see_to_what_is_left
from .loop import Loop
from .orphans import Orphans
from .run import note_agent
from .signals import (
    HEARSAY,
    PASSED_ON,
    Signals,
    become_subreaper,
    name_of,
    signal,
    stop_of,
)
from .tree import Tree, is_part_of
from .watch import Watch, watch
from .watcher import Watcher
from .workshop import Job, Workshop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .client import Stream
    from .listener import Listener
    from .options import Options
    from .run import Run
    from .signals import Witness
    from .tending import Tending
    from .terminal import Terminal
    from .tree import Stream as Given

_ASK_INTERVAL = 0.5  # for processes that can only be asked whether they live
_RECOVERY_TRIES = 3
_STRANGERS_KEPT = 64


class Owner:
    """A process that spoke to us, and so may own sessions."""

    def __init__(self, pid: int, start: int | None, watched: Watch | None) -> None:
        self.pid = pid
        self.start = start
        self.watched = watched


class Supervision:
    def __init__(
        self,
        run: Run,
        listener: Listener,
        options: Options,
        signals: Signals,
        terminal: Terminal | None,
    ) -> None:
        self._run = run
        self._options = options
        self._signals = signals
        self._terminal = terminal
        self._loop = Loop()
        self._door = Door(self._loop, listener, run.folder, options.sync)
        self._door.greeted = self._greeted
        self._door.is_part_of = lambda pid, whole: is_part_of(pid, whole, set(self._owners))
        self._door.synced = self._look_at_memory
        self._door.warn = self._warn
        self._workshop = Workshop(self._leave_to_helper, self._warn)
        # Who is process 1 takes the whole container along when it goes.
        patience = None if os.getpid() == 1 else options.hook_wait
        self._hooks = Minder(self._loop, run.name, self._leave_to_helper, patience)
        self._tending: Tending | None = None
        self._door.segment_closed = lambda stream, number: self._tend().segment_closed(
            stream, number
        )
        self._door.spoke = lambda stream: self._tend().spoke(stream)
        if options.exclusive:
            from .exclusive import Lookout

            self._door.spoke = Lookout(self._workshop, run, self._warn, self._door.spoke).spoke
        self._recovery: Job | None = None
        self._to_recover: list[str] = []
        self.orphans = Orphans(self._loop, options.orphans)
        self._tree = Tree(self._loop, listener.path)
        self.heard = False
        self._witness: Witness | None = None
        self._child = 0
        self._child_spoke = False
        self._stopped = False
        self._suspended_at = 0.0
        self._told_group = False
        self._weights = Weights()
        self._oom_before = self._oom_lately = cause.oom_kills()
        self._owners: dict[int, Owner] = {}
        self._strays_seen = self._door.strays
        self._door.is_recovering = lambda: self._workshop.busy
        self._asking = False
        self._warned: set[str] = set()
        self._leave = False
        self.told: dict[int, float] = {}
        """The signals that reached us, and when the last of each did."""
        self.status: int | None = None
        self.cause: cause.Cause | None = None
        self._known: dict[int, cause.Cause] = {}
        self._strangers: dict[int, int] = {}
        self._watcher = Watcher(self._loop, self._door, run, self._warn)

    def run(self, child: int, given: list[Given | None], witness: Witness | None) -> None:
        """Supervise the agent, which has been started with `given` as its input and output;
        returns when nothing is left to do."""
        self._child = child
        self._tree.given(given)
        self._watch_over(lambda: witness)
        if self._child_spoke and self.status is not None and os.WIFSIGNALED(self.status):
            return  # it was the agent itself, and what it left are tools
        if (left := self._tree.may_yet_speak(self._ours())) is not None:
            note_agent(self._run, left)

    def adopt(self, bear_witness: Callable[[], Witness | None]) -> None:
        """Take over a run whose supervisor died, with the processes that still live in it."""
        from . import adoption

        become_subreaper()
        self.status = 0  # whatever the child was, whoever waited for it has been told
        for name, (who, last) in adoption.survivors(self._run).items():
            take_over(self._door, self._run.folder, name, who, last)
            if name == self._run.watcher:
                self._door.streams[name].pid = 0  # another watcher will go on with it
            else:
                self._greeted(*who)
        if (agent := adoption.silent_agent(self._run, self._tree)) is not None:
            self._greeted(*agent)
        self._find_strays()
        # No sooner: an heir that cannot even begin must not have one that cannot, either.
        self._watch_over(bear_witness)
        adoption.silent_agent(self._run, self._tree)  # for whom the run's folder stays

    def _watch_over(self, witness: Callable[[], Witness | None]) -> None:
        """Without a witness every signal that reaches us is taken for ours alone."""
        self._loop.when_readable(self._signals.fileno(), self._on_signals)
        self._watcher.start()
        # In an heir: whatever its predecessor did not live to see to.
        if self._door.streams:
            self._tend().adopt(self._door.streams)
        self._hooks.run()
        self._witness = witness()
        if self._witness is not None:
            self._witness.attend(self._loop, self._pass_on)
        try:
            self._loop.run_until(self._finished)
        except Exception as fault:
            self._warn(f"supervision failed, the agent goes on without it: {fault!r}")
            self._only_wait()
        if self._witness is not None:
            self._witness.dismiss()

    def let_go(self) -> None:
        """Nothing is left to do here, and we go on with another run."""
        self._door.shut()

    def _finished(self) -> bool:
        if self._leave:
            self._hooks.run()
            return True
        busy = self._workshop.busy or self._hooks.busy
        if self.status is None or self._agent_goes_on() or busy:
            return False
        self._door.answer()
        self._door.hear_all()
        if self._agent_goes_on() or self._workshop.busy:
            return False
        if not self._watcher.finished(self._recover_watched) or self._find_strays():
            return False
        return not self.orphans.still_ending()

    def _find_strays(self) -> bool:
        """Streams that are here without ever having been at the door: spools, or left by a
        supervisor before us. Their processes are looked for when they are finished."""
        known = self._strays_seen | set(self._door.streams)
        strays = [name for name in self._run.streams() if name not in known]
        if strays:
            self._recover(strays)
        return bool(strays)

    def _only_wait(self) -> None:
        """After a fault of ours. The shim keeps what it says in its spool; a later start, or
        `recover`, finds it there."""
        self._door.shut()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda number, _: self._signal_agent(number) and None)
        if self.status is None:
            _, self.status = os.waitpid(self._child, 0)

    # -- processes ---------------------------------------------------------------------------

    def _greeted(self, pid: int, start_as_told: object) -> int | None:
        """A process spoke for the first time: from now on its death matters."""
        if pid == self._watcher.pid:
            return process_start(pid)  # it speaks for the agent
        self.heard = True
        self._child_spoke |= pid == self._child
        owner = self._owners.get(pid)
        if owner is None:
            start = process_start(pid)
            # A moment that is yet to come is not one, but some other count of a client's.
            is_moment = isinstance(start_as_told, int) and start_as_told <= _ticks_since_boot()
            another = is_moment and start_as_told != start
            watched = None if start is None or another else watch(pid, start)
            owner = self._owners[pid] = Owner(pid, start, watched)
            if watched is None:
                self._loop.after(0, lambda: self._bury(owner, None))
            elif (fd := watched.fileno()) is not None:
                self._loop.when_readable(fd, lambda: self._on_death(owner))
            elif not self._asking:
                self._asking = True
                self._loop.after(_ASK_INTERVAL, self._ask_owners)
        return owner.start

    def _ask_owners(self) -> None:
        for owner in list(self._owners.values()):
            if owner.watched is not None and owner.watched.dead():
                self._on_death(owner)
        self._asking = bool(self._owners)
        if self._asking:
            self._loop.after(_ASK_INTERVAL, self._ask_owners)

    def _on_death(self, owner: Owner) -> None:
        self._reap()  # a child's own status says more than anything else does
        if owner.pid in self._owners:
            self._bury(owner, owner.watched.status() if owner.watched else None)

    def _reap(self) -> None:
        while True:
            try:
                pid, status, used = any_child(weighed=self._door.is_visited())
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                if pid in self._agent():
                    self._follow(status)
            elif self._workshop.reaped(pid, status):
                self._hooks.run()
            elif not self._watcher.reaped(pid, status) and not self._hooks.reaped(pid, status):
                if self._witness is not None:
                    self._witness.reaped(pid)
                self._weights.reaped(pid, used)
                self._ended(pid, status)
                self._weights.forget(pid)  # of one that said nothing: nobody asks for it

    def _ended(self, pid: int, status: int) -> None:
        """A child of ours is dead: the one we started, or what others have left to us."""
        was_followed = self._tree.reaped(pid)
        if pid == self._child:
            self.status = status
            self._door.last_words(pid)
        if was_followed or pid == self._child:
            self.cause = self._known[pid] = self._cause_of(status)
        if self.status is not None and not self._child_spoke:
            # The status stays that of the command, as whoever waits for it would have seen.
            successor = self._tree.look(self._ours())
            if successor is not None:
                note_agent(self._run, successor)
        if (owner := self._owners.get(pid)) is not None:
            self._bury(owner, status)
            return
        self._strangers[pid] = status  # it may have spoken, and still wait at the door
        for oldest in list(self._strangers)[:-_STRANGERS_KEPT]:
            del self._strangers[oldest]
        if was_followed or pid == self._child:
            self._tidy_terminal(status)
            if not self._agent_goes_on():
                self._left_by(status)

    def _bury(self, owner: Owner, status: int | None) -> None:
        """The process is dead: take its last words, note how it died, recover what it owned."""
        if self._owners.get(owner.pid) is not owner:
            return
        self._door.last_words(owner.pid)
        del self._owners[owner.pid]
        if owner.watched is not None:
            if (fd := owner.watched.fileno()) is not None:
                self._loop.forget(fd)
            owner.watched.close()
        if status is None:
            status = self._strangers.pop(owner.pid, None)
        self._tidy_terminal(status)
        cause_of_death = self._cause_of(status)
        cause_of_death.orphans = self._left_by(status)
        cause_of_death.memory = self._weights.take(owner.pid)
        self.cause = self.cause or cause_of_death  # an heir knows of no other
        streams = self._door.streams_of(owner.pid)
        for stream in streams:
            self._close(stream, cause_of_death)
        self._door.hear_all()
        if streams:
            self._recover([stream.name for stream in streams])

    def _close(self, stream: Stream, how: cause.Cause) -> None:
        if self._tending is not None:
            self._tending.forget(stream)
        from ..ipc import frames, records

        death = frames.encode(frames.HANDSHAKE, records.pack(how.as_record()))
        self._door.close_stream(stream, death)

    def _recover_watched(self, stream: Stream) -> None:
        """What the watcher told are the agent's words, and how the agent ended is their end."""
        self._close(stream, self.cause or cause.Cause(at=time.time()))
        self._recover([stream.name])

    def _tidy_terminal(self, status: int | None) -> None:
        """The last process of the agent ended. If it crashed, what it did to the terminal is
        undone before anything else; a launcher that dies leaves the terminal to what lives on."""
        if self._terminal is None or self.status is None or self._agent_goes_on():
            return
        # A launcher that failed and the agent below it, which then ended in order, are one.
        ends = {self.status, status}
        signalled = any(one is not None and os.WIFSIGNALED(one) for one in ends)
        if ends != {0} and (signalled or self._terminal.changed()):
            self._terminal.restore()

    def _left_by(self, status: int | None) -> list[dict[str, object]]:
        """What a process that did not end in order has left running."""
        if status == 0:
            return []
        exited = status is not None and os.WIFEXITED(status)
        try:
            ours = self._ours() | set(self._owners) | self._agent()
            return self.orphans.look(ours, only_tools=exited)
        except OSError as error:
            self._warn(f"what the agent left running cannot be told: {error.strerror or error}")
            return []

    def _ours(self) -> set[int]:
        """Children that we started ourselves, beside the agent."""
        witness = {self._witness.pid} if self._witness is not None else set()
        return {self._workshop.pid, self._watcher.pid} | self._hooks.pids | witness

    def _look_at_memory(self) -> None:
        """Whom the kernel killed up to now was a tool, not the agent. One interval late: a victim
        is counted before it is dead."""
        self._oom_before, self._oom_lately = self._oom_lately, cause.oom_kills()
        self._weights.look(self._owners)

    def _cause_of(self, status: int | None) -> cause.Cause:
        gone = self._terminal is not None and self._terminal.gone()
        return cause.of_status(status, oom_before=self._oom_before, terminal_closed=gone)

    def _follow(self, status: int) -> None:
        """The agent was stopped or continued: a shell that waits for us must see the same."""
        self._stopped = os.WIFSTOPPED(status)
        if not self._stopped or self._terminal is None:
            return
        # A bare SIGSTOP is someone else's business with the agent, unless Ctrl-Z led to it.
        by_terminal = os.WSTOPSIG(status) in (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
        if by_terminal or time.monotonic() - self._suspended_at < 1.0:
            stop_of(os.WSTOPSIG(status))
            # Continued. Normally the whole group was; if it was only us, pass that on.
            self._loop.after(HEARSAY, self._wake_child)

    def _wake_child(self) -> None:
        self._reap()
        if self._stopped:
            self._signal_agent(signal.SIGCONT)

    # -- signals -----------------------------------------------------------------------------

    def _on_signals(self) -> None:
        for number in self._signals.take():
            if number == signal.SIGCHLD:
                self._reap()
            elif number == signal.SIGTSTP:
                self._suspended_at = time.monotonic()
            elif number in PASSED_ON:
                self.told[number] = time.time()
                self._consider(number)

    def _consider(self, number: int) -> None:
        if self.status is not None and not self._agent_goes_on():
            # The agent is gone and only recovery is left. It goes on without us.
            self._leave = self._leave or number == signal.SIGINT
        elif self._witness is None:
            self._pass_on(number)
        else:
            self._witness.consider(number)

    def _pass_on(self, number: int) -> None:
        if number == signal.SIGHUP and self._is_hung_up():
            if self._told_group:
                return
            # The kernel tells the leader of the session alone, and the rest when that is dead.
            # In an agent of several processes the launcher's death would be none of the others'.
            self._told_group = True
            os.killpg(0, signal.SIGHUP)
            signalled = self._agent()
        else:
            signalled = self._signal_agent(number)
        if number in (signal.SIGTERM, signal.SIGHUP):
            self._loop.after(self._options.grace, lambda: self._put_an_end(number, signalled))

    def _is_hung_up(self) -> bool:
        leads = os.getsid(0) == os.getpid()
        return leads and self._terminal is not None and self._terminal.gone()

    def _put_an_end(self, asked_by: int, asked: set[int]) -> None:
        """Kill who was asked to end and is still there; who was not asked before is asked now."""
        if asked.isdisjoint(self._agent()):
            self._pass_on(asked_by)
        else:
            self._signal_agent(signal.SIGKILL)

    def _agent(self) -> set[int]:
        """The child; if that is gone and what it started lives on, then that is the agent."""
        if self.status is None:
            return {self._child}
        return self._tree.followed | {
            owner.pid
            for owner in self._owners.values()
            if owner.start is not None and process_start(owner.pid) == owner.start
        }

    def _agent_goes_on(self) -> bool:
        """Whether somebody is left who may have something to say, the child aside."""
        return bool(self._owners or self._tree.followed)

    def _signal_agent(self, number: int) -> set[int]:
        pids = self._agent()
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
            except OSError as error:  # it runs as another user
                self._warn(f"{name_of(number)} cannot be passed on: {error.strerror or error}")
        return pids

    # -- recovery, in a process of its own ---------------------------------------------------

    def _recover(self, streams: list[str]) -> None:
        self._strays_seen.update(streams)
        if self._workshop.waits(self._recovery):
            self._to_recover += streams  # who dies while others are recovered goes with the next
            return
        self._to_recover = batch = list(streams)
        us = os.getpid()

        def work() -> None:
            from .recovery import finish

            finish.finish_streams(self._run, batch, set(self._door.streams), self._known)
            see_to_what_is_left(us, self._run.name)

        failing = "recovery did not finish; `hermes-supervise recover` tries again"
        self._recovery = self._workshop.add(work, tries=_RECOVERY_TRIES, failing=failing)

    def _tend(self) -> Tending:
        if self._tending is None:
            from .tending import Tending

            self._tending = Tending(self._loop, self._workshop, self._run, self._options)
        return self._tending

    def _leave_to_helper(self) -> None:
        self._signals.leave_to_recovery()
        self._door.abandon()
        self._watcher.abandon()
        launch.let_go_of_standard_error()

    def _warn(self, text: str) -> None:
        """Each trouble once: the terminal is the agent's."""
        if text not in self._warned and not self._options.quiet:
            self._warned.add(text)
            launch.say(text)


def _ticks_since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")
