"""Supervision of one run: observe, ask the state table, act, until nothing is left to do.

Never writes to state.db itself: recovery happens in forked jobs.

    states.py        what happens when
    processes.py     the agent's processes: who is alive, how each ended
    forwarding.py    the agent's signals
    recoveries.py    what follows from what the agent sent
    held_terminal.py what is said while the command has exited and we have not
    waiting.py       what is left if any of these fails
"""

from __future__ import annotations

import os

from ..agents import registry
from ..ingest.observer import Observer
from ..ingest.server import Server
from ..process import launch
from ..process.loop import Loop
from ..process.memory import any_child
from ..process.platform import become_subreaper
from ..process.signals import FORWARDED, signal
from ..storage.run_notes import TAP_FOLDER, end_hand_over, hand_over, living_agent, replica_of
from . import waiting
from .forwarding import Forwarding
from .held_terminal import HeldTerminal
from .processes import Processes
from .recoveries import Recoveries
from .states import TABLE, Action, Event, State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..ingest.connection import Stream
    from ..ingest.listener import Listener
    from ..model.options import Options
    from ..process.cause import Cause
    from ..process.signals import Signals, Standby
    from ..process.terminal import Terminal
    from ..process.tree import FileId
    from ..storage.run_folder import Run
    from .replication import Replication


# With a replica, the rings are read so often.
BATCH = 0.05
# A program that changes the user has done so by then.
_LOOK_FOR_USER = 2.0


def _folded(text: str) -> str:
    """A warning, broken at words where standard error is a terminal that is narrower."""
    try:
        from . import notice  # only if there is something to say; an upgrade may have replaced it
    except Exception:
        return text
    return "\n".join(notice.wrapped([text], launch.columns(), first=True))


class Supervision(Observer):
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
        self._warned: set[str] = set()
        self._state = State.STARTING
        self._command = 0
        self._standby: Standby | None = None
        self._helpers: set[int] = set()
        self.goes_on: int | None = None
        """The daemon that continues the turn of the command that has ended: a successor waits
        for it."""
        self.failed = False
        """A fault of ours ended supervision."""
        self.replica = replica_of(run.folder)
        """The folder of the run's replica, if it has one."""
        self._replication: Replication | None = None
        self._loop = loop = Loop()
        self._server = Server(
            loop,
            listener,
            run.folder,
            self,
            sync=options.sync,
            transcript_stream=run.transcript_stream,
            batch=BATCH if self.replica is not None else None,
        )
        self._recoveries = Recoveries(
            loop, run, self._server, options, self._prepare_child, self.warn, self._turn_ended
        )
        self._processes = Processes(
            loop, run, self._server, self._recoveries, terminal, listener.path, options.orphans,
            self._our_children, self._reap, self.warn,
        )  # fmt: skip
        self._forwarding = Forwarding(
            loop, self._processes.pids, self._reap, terminal, options.grace, self.warn
        )
        self._held_terminal = HeldTerminal(
            loop, terminal, self._processes, self._recoveries, self.warn
        )
        self._actions: dict[Action, Callable[[int], None]] = {
            Action.FORWARD: self._forwarding.got,
            Action.STOP_TOO: self._forwarding.agent_stopped,
            Action.NOTE_CONTINUED: lambda _: self._forwarding.agent_continued(),
            Action.DRAIN: lambda _: self._drain(),
            Action.START_HOOKS: lambda _: self._recoveries.start_hooks(),
            Action.STOP_CAPTURE: lambda _: self._server.close(),
        }

    # -- what became of it -------------------------------------------------------------------

    @property
    def status(self) -> int | None:
        """The command's wait status."""
        return self._processes.status

    @property
    def cause(self) -> Cause | None:
        """How the agent ended."""
        return self._processes.cause

    @property
    def any_connected(self) -> bool:
        return self._processes.any_connected

    @property
    def other_user(self) -> int | None:
        """Who the agent ran as, if that is another user and something was not captured for it."""
        seen = self.was_refused or not self.any_connected
        return self._processes.other_user if seen else None

    @property
    def was_refused(self) -> bool:
        """A process of another user tried to connect."""
        return self._processes.refused

    @property
    def orphans(self) -> list[dict[str, object]]:
        """What the agent left running."""
        return self._processes.orphans.found

    @property
    def recovery_failed(self) -> bool:
        return self._recoveries.failed

    @property
    def unfinished(self) -> bool:
        """True if the run's folder has to stay, whatever is in it."""
        return self._recoveries.unfinished

    @property
    def signals_received(self) -> dict[int, float]:
        """The signals that we got, and when we last got each."""
        return self._forwarding.received

    # -- one run -----------------------------------------------------------------------------

    def run(self, command: int, streams: list[FileId | None], standby: Standby | None) -> None:
        """Supervise a command that has been started; `streams` are its standard input and output.
        Returns when nothing is left to do."""
        self._command = command
        self._standby = standby
        self._processes.started(command, streams)
        self.look_after(_LOOK_FOR_USER, lambda _: self._processes.look_for_other_user())
        self._supervise(Event.STARTED, lambda: standby)
        if self.goes_on is not None:
            return
        try:
            self._processes.remember_who_may_connect()
        except Exception as fault:
            self.warn(f"cannot list the processes left behind: {launch.reason(fault)}")

    def take_over(self, fork_standby: Callable[[], Standby | None]) -> None:
        """Supervise what is alive of a run whose supervisor died."""
        from . import takeover  # only here

        become_subreaper()
        self._processes.took_over()
        connected = self._server.connected_streams
        survivors = takeover.survivors(self._run, connected)
        for name, (owner, last, sessions) in survivors.items():
            self._server.streams.resume(name, owner, last, sessions)
            if name != self._run.transcript_stream:
                self._processes.connected(*owner)
        if (agent := takeover.silent_agent(self._run, self._processes.successor_agent)) is not None:
            self._processes.connected(*agent)
        self._recoveries.recover_unserved()
        # Our standby comes last: if we die while taking over, the next one would die of the same.
        self._supervise(Event.TOOK_OVER, fork_standby)
        takeover.silent_agent(self._run, self._processes.successor_agent)  # keeps the run's folder

    def look_after(self, seconds: float, look: Callable[[int], None]) -> None:
        """Call `look` with the command's pid after a while, if the command still runs then."""

        def act() -> None:
            try:
                if self.status is None:
                    look(self._command)
            except Exception:  # an upgrade may have replaced our files; supervision goes on
                pass

        self._loop.after(seconds, act)

    def start_helper(self, arguments: list[str]) -> None:
        """Run a command of ours beside the agent, with the lowest priority and without output. It
        ends with the supervision at the latest."""
        from ..process import own_program  # few runs need one

        self._helpers.add(own_program.start(arguments, own_session=False))

    def close(self) -> None:
        """Release everything before the next life of the agent."""
        self._server.close()

    def _supervise(self, begun: Event, standby: Callable[[], Standby | None]) -> None:
        try:
            self._loop.when_readable(self._signals.fileno(), self._on_signals)
            self._recoveries.start()
            if self.replica is not None:
                from .replication import Replication  # start-up: only with --replica

                self._replication = Replication(self._loop, self.replica, self._run.name, self.warn)
            self._forwarding.use(standby())
            self._handle(begun)
            while self._state is not State.LEAVING:
                self._handle(self._observe())
                if self._state not in (State.DRAINING, State.LEAVING):
                    self._loop.wait()
            self._recoveries.keep_what_is_left()
            if self.goes_on is None:
                self._forwarding.dismiss_standby()
        except Exception as fault:
            self._fail(fault)
        self._kill_helpers()

    def _observe(self) -> Event:
        """What is left?"""
        if self._processes.status is None:
            return Event.COMMAND_RUNS
        if self._processes.others_run():
            return Event.OTHERS_RUN
        if self._recoveries.busy or self._processes.orphans.still_ending():
            return Event.WORK_REMAINS
        return Event.NOTHING_LEFT

    def _handle(self, event: Event, number: int = 0) -> None:
        self._state, actions = TABLE[self._state, event]
        self._held_terminal.entered(self._state)
        for action in actions:
            self._actions[action](number)

    def _happened(self, event: Event, number: int) -> None:
        """An event between two observations: observe first, so that the state is current."""
        self._handle(self._observe())
        if self._state is State.DRAINING:
            self._handle(self._observe())  # a connection may be waiting that was not read yet
        self._handle(event, number)

    def _fail(self, fault: Exception) -> None:
        """Shims continue with their spools; a later start, or `recover`, finds those."""
        self.failed = True
        waiting.say_why(fault, self._options)
        try:
            self._handle(Event.FAILED)
        except Exception:
            pass  # the same fault again
        if self._processes.status is None:
            self._processes.status = waiting.wait_only(
                self._command, self._signals, self._standby, self._terminal, self._options.grace
            )
        self._handle(Event.NOTHING_LEFT)

    # -- what happens ------------------------------------------------------------------------

    def _on_signals(self) -> None:
        for number in self._signals.take():
            if number == signal.SIGCHLD:
                self._reap()
            elif number in FORWARDED:
                self._forwarding.note(number)
                event = Event.INTERRUPT if number == signal.SIGINT else Event.SIGNAL
                if event is Event.INTERRUPT and self._held_terminal.user_may_leave():
                    event = Event.LEFT
                self._happened(event, number)

    def _reap(self) -> None:
        if self._command and self._processes.status is None:
            self._processes.look_for_other_user(only_command=True)  # a zombie still shows it
        while True:
            try:
                pid, status, used = any_child(weighed=self._server.was_used())
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                if pid in self._processes.pids():
                    stopped = os.WIFSTOPPED(status)
                    event = Event.AGENT_STOPPED if stopped else Event.AGENT_CONTINUED
                    self._happened(event, os.WSTOPSIG(status) if stopped else 0)
            elif pid in self._helpers:
                self._helpers.remove(pid)
            elif self._replication is not None and self._replication.reaped(pid):
                pass  # the next check starts another, if there is something to ship
            elif not self._recoveries.reaped(pid, status) and not self._forwarding.reaped(pid):
                self._processes.exited(pid, status, used)

    def _drain(self) -> None:
        self._server.accept()
        self._server.read_all()
        if self._processes.others_run() or self._recoveries.recovering:
            return
        if self._command and self._may_hand_over():
            self._hand_over()
        if self.goes_on is None:
            self._recoveries.recover_rest(self._processes.cause)

    def _may_hand_over(self) -> bool:
        options, standby = self._options, self._standby
        adopts = standby is not None and standby.alive and not options.no_adopt
        tap = self._run.path(TAP_FOLDER)
        return adopts and options.restart == "never" and os.path.isdir(tap)

    def _hand_over(self) -> None:
        """If a daemon goes on with the turn of the command that has ended, that is no death: we
        leave at once, and the standby waits for the turn."""
        try:
            from ..transcripts.settings import Settings  # at the end of a run with a live tap

            followed = Settings.read(self._run.folder)
            agent = registry.named(followed.agent)
            pid = agent.goes_on(self._run.path(TAP_FOLDER), followed.place().env)
            if pid is not None:
                hand_over(self._run.folder, pid)
                self.goes_on = pid
        except Exception:  # an upgrade may have replaced our files; then it counts as a death
            return

    def _turn_ended(self) -> None:
        end_hand_over(self._run.folder)
        self._processes.release_agent()

    def _our_children(self) -> set[int]:
        shippers = self._replication.pids if self._replication is not None else set()
        return self._recoveries.pids | self._forwarding.pids | self._helpers | shippers

    def _kill_helpers(self) -> None:
        for pid in self._helpers:
            try:
                os.killpg(pid, signal.SIGKILL)
            except OSError:
                pass  # it has just exited

    def _prepare_child(self) -> None:
        """In a forked process: only the parent has these."""
        self._signals.ignore_in_job()
        self._server.close_in_child()
        if self._replication is not None:
            self._replication.close_in_child()
        launch.close_standard_error()

    # -- what the server asks and reports ------------------------------------------------------

    def process_connected(self, pid: int, claimed_start: object) -> int | None:
        return self._processes.connected(pid, claimed_start)

    def process_exited(self, pid: int, status: int) -> None:
        self._processes.keep_status(pid, status)

    def user_refused(self, uid: int) -> None:
        self._processes.note_other_user(uid, refused=True)

    def is_part_of(self, pid: int, whole: int) -> bool:
        return self._processes.includes(pid, whole)

    def transcript_owner(self) -> tuple[int, int | None]:
        return living_agent(self._run.folder) or (0, None)

    def is_recovering(self) -> bool:
        return self._recoveries.recovering

    def records_arrived(self, stream: Stream) -> None:
        self._recoveries.records_arrived(stream)

    def segment_closed(self, stream: Stream, number: int) -> None:
        self._recoveries.segment_closed(stream, number)

    def synced(self) -> None:
        self._processes.check_memory()
        self._recoveries.ensure_folder()

    def batch_journaled(self) -> None:
        if self._replication is not None:
            self._replication.wake()

    def warn(self, text: str) -> None:
        """Each problem once: the terminal belongs to the agent."""
        if text not in self._warned and not self._options.quiet:
            self._warned.add(text)
            if self._terminal is not None and self._terminal.was_reset and os.isatty(2):
                launch.finish_line(self._terminal.line_for_a_notice())
            launch.say(_folded(text))
