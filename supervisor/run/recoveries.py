"""The recoveries of one run, and all other work that follows from what its agent sent.

Never recovers anything itself: a recovery is a forked job (jobs.py), so that a locked database or a
slow disk keeps nobody from being served.

    a process died          its streams are closed with how it died, and recovered in one job
    streams nobody serves   spools, or what an earlier supervisor left: recovered as well
    transcripts             followed by a process of their own (transcript_process.py)
    hooks                   queued by a recovery; their runner is started here (hooks/launcher.py)
    living streams          checkpoints, compaction, hooks for idle sessions (background.py)
"""

from __future__ import annotations

import os
import time

from ..agents import registry
from ..hooks.launcher import HookLauncher, run_if_orphaned
from ..model.job_result import JobResult
from ..process.cause import Cause
from ..process.launch import reason
from ..storage.run_folder import make_again, settings
from .jobs import JobQueue
from .transcript_process import READ, TranscriptProcess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..ingest.connection import Stream
    from ..ingest.server import Server
    from ..model.options import Options
    from ..process.loop import Loop
    from ..storage.run_folder import Run
    from .background import BackgroundWork
    from .exclusive import DuplicateSessionGuard
    from .jobs import Job

_RECOVERY_TRIES = 3
_FAILING = "recovery did not finish; run `hermes-supervise recover` to try again"


class Recoveries:
    def __init__(
        self,
        loop: Loop,
        run: Run,
        server: Server,
        options: Options,
        prepare_child: Callable[[], None],
        warn: Callable[[str], None],
        on_idle: Callable[[], None],
    ) -> None:
        """`prepare_child`: what a forked process must do first, because it shares our
        descriptors and signal handlers."""
        self._loop = loop
        self._run = run
        self._server = server
        self._streams = server.streams
        self._options = options
        self._prepare_child = prepare_child
        self._warn = warn
        self._jobs = JobQueue(self._prepare, self._job_failed)
        self.failed = False
        """A recovery was tried several times and did not finish."""
        # Process 1 takes its whole container along when it exits, so it waits for all hooks.
        patience = None if os.getpid() == 1 else options.hook_wait
        self.hook_patience = float("inf") if patience is None else patience
        """How long to wait for hooks."""
        self._hooks = HookLauncher(loop, run.name, self._prepare, patience)
        self._transcripts = TranscriptProcess(loop, server, run, warn, on_idle)
        self._background: BackgroundWork | None = None
        self._background_failed = False
        self._guard: DuplicateSessionGuard | None = None
        if options.exclusive:
            from .exclusive import DuplicateSessionGuard  # start-up: only with --exclusive

            self._guard = DuplicateSessionGuard(self._jobs, run, warn)
        self._job: Job | None = None
        self._waiting: list[str] = []
        """Streams that were recovered in part: the rest waits for a living process."""
        self._stored = True
        """Everything that the last recovery had to write is in state.db."""
        self._batch: list[str] = []
        self._looked_for_reopened = False
        self.causes: dict[int, Cause] = {}
        """How processes ended, by pid, for streams that do not contain it."""

    @property
    def busy(self) -> bool:
        return self.recovering or self._hooks.busy or self._transcripts.finishing

    @property
    def unfinished(self) -> bool:
        """True if something is left to do that no file in the run's folder may show."""
        being_read = self._transcripts.result != READ and self.recovering
        return self.failed or self._transcripts.unfinished or being_read

    @property
    def recovering(self) -> bool:
        return self._jobs.busy

    @property
    def pids(self) -> set[int]:
        return {self._jobs.pid, self._transcripts.pid} | self._hooks.pids

    def start(self) -> None:
        """Follow transcripts, and see to what an earlier supervisor of this run left undone."""
        self._transcripts.start()
        if self._streams.served:
            self._run_background(lambda work: work.took_over(self._streams.served))
        self.start_hooks()

    def start_hooks(self) -> None:
        self._hooks.run()

    def reaped(self, pid: int, status: int) -> bool:
        """A child exited; True if it was a job, a runner of hooks or the transcript process."""
        if self._jobs.reaped(pid, status):
            self.start_hooks()
            return True
        return self._transcripts.reaped(pid, status) or self._hooks.reaped(pid, status)

    # -- living streams ----------------------------------------------------------------------

    def records_arrived(self, stream: Stream) -> None:
        if self._guard is not None:
            self._guard.records_arrived(stream)
        self._run_background(lambda work: work.records_arrived(stream))

    def segment_closed(self, stream: Stream, number: int) -> None:
        self._run_background(lambda work: work.segment_closed(stream, number))

    def _run_background(self, action: Callable[[BackgroundWork], None]) -> None:
        if self._background is None and not self._background_failed:
            try:
                from .background import BackgroundWork  # start-up: with the first record

                self._background = BackgroundWork(
                    self._loop,
                    self._jobs,
                    self._run,
                    self._options,
                    lambda: self._streams.served,
                    self._streams.unwritten,
                )
            except Exception as fault:  # an upgrade may have replaced our files
                self._background_failed = True
                self._warn(f"messages are stored only when the agent ends: {reason(fault)}")
        if self._background is not None:
            action(self._background)

    def ensure_folder(self) -> None:
        """Make the run's folder again if somebody has removed it. What the open journals hold is
        still there; what was only in a ring, a spool or an earlier segment is not."""
        try:
            if make_again(self._run):
                self._warn("the run's folder was removed; it was made again")
                self._streams.write_anew()
        except OSError as error:
            self._warn(f"the run's folder cannot be used: {error.strerror or error}")

    # -- dead streams ------------------------------------------------------------------------

    def process_died(self, pid: int, how: Cause) -> None:
        """Close the streams of a dead process and recover them."""
        self.ensure_folder()
        streams = self._streams.of(pid)
        for stream in streams:
            self._close(stream, how)
        self._server.read_all()
        if streams:
            self._recover([stream.name for stream in streams])

    def recover_rest(self, how: Cause | None) -> None:
        """No process is left: have the transcripts read to their end, and recover what remains.
        `how`: how the agent ended, if we know."""
        if self._transcripts.finish():
            name = self._run.transcript_stream or ""
            stream = self._streams.served.get(name)
            if stream is not None:
                # The transcript speaks for the agent, so the agent's end is its end.
                self._close(stream, how or Cause(at=time.time()))
                self._recover([name])
            elif self._transcripts.result != READ and not self._streams.was_given_to_recovery(name):
                self._recover([name])  # it may have no file yet: nothing of it was ever read
            else:
                self.recover_unserved()
            self._close_reopened()

    def _close_reopened(self) -> None:
        """Close the session that the agent was started on, if it exited without a message in it."""
        if self._looked_for_reopened:
            return
        self._looked_for_reopened = True
        try:
            parsed = registry.parsed(settings(self._run).get("command", []))
            if parsed is None or not parsed.session:
                return
            session = parsed.session
            from ..recovery.reopened import close_again  # only for a run that names a session
        except Exception:  # an upgrade may have replaced our files; `sweep` closes it
            return
        self._jobs.add(lambda: close_again(self._run, session), failing="")

    def recover_unserved(self) -> None:
        """Recover streams whose process never connected to us: spools, or what an earlier
        supervisor left. Recovery finds out whether their processes are alive."""
        names = [
            name
            for name in self._run.streams()
            if name not in self._streams.served and not self._streams.was_given_to_recovery(name)
        ]
        if names:
            self._recover(names)

    def keep_what_is_left(self) -> None:
        """At the end: what is only in memory and not in state.db goes to the journals, or is
        lost."""
        lost = self._streams.write_what_is_left()
        if lost and not self._stored:
            self._warn(f"{lost} records are lost: they could not be written anywhere")

    def _close(self, stream: Stream, how: Cause) -> None:
        from ...ipc import frames, records  # loaded with the first connection

        if self._background is not None:
            self._background.forget(stream)
        death = frames.encode(frames.HANDSHAKE, records.pack(how.as_record()))
        self._streams.close(stream, death)

    def _recover(self, streams: list[str]) -> None:
        self._streams.give_to_recovery(streams)
        if self._jobs.is_queued(self._job):
            self._batch += streams  # one job recovers all that died while another job ran
            return
        self._batch = batch = list(streams)
        us = os.getpid()

        def work() -> JobResult:
            from .recover import Supervised, finish_closed  # in the job: heavy

            unwritten = self._streams.unwritten()
            there = {*self._run.streams(), *unwritten}
            # Also those that had to wait for a living process the last time.
            given = set(filter(self._streams.was_given_to_recovery, there))
            # A process whose connection we could not accept has its records in ring and spool. It
            # may share a session with the dead process, so it counts as a living one.
            living = {*self._streams.served, *(there - given - set(batch))}
            closed = [*batch, *(name for name in given if name not in living | set(batch))]
            supervised = Supervised(closed, living, self.causes, us, unwritten)
            result = finish_closed(self._run, supervised, transcripts=self._transcripts.result)
            run_if_orphaned(us, self._run.name)
            return result

        def tried(result: JobResult) -> None:
            if result is JobResult.DONE:
                self._streams.recovered([*self._waiting, *batch])
                self._waiting = []
            elif result is JobResult.AGAIN:
                self._waiting += batch
            self._stored = result in (JobResult.DONE, JobResult.AGAIN, JobResult.STORED)

        self._job = self._jobs.add(work, tries=_RECOVERY_TRIES, failing=_FAILING, tried=tried)

    def _job_failed(self, text: str) -> None:
        self.failed |= text == _FAILING
        self._warn(text)

    def _prepare(self) -> None:
        self._transcripts.close_in_child()
        self._prepare_child()
