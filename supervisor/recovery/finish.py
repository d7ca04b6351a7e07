"""Finishes the streams of dead processes, in steps. A kill between any two of them is harmless.

Never signals anyone, and never raises for a database or a hook that fails.

    1  gather and replay the streams                      reads only
    2  for every session: rows and end mark into state.db  transactions, each with its markers
    3  the observer: queues hooks                         a file each, and a line here
    4  the report
    5  if nothing failed, remove the stream's files

If this is killed and run again, 2 and 3 find out from marker and ledger what is done (I4). If 2
fails, 3 runs all the same, and the files stay for a later try. Step 3 is the caller's: it passes an
observer, which queues hooks or does nothing.

Step 2 is in settle.py. If a session has to wait for a living process, the streams that contain it
keep their files; their other sessions do not wait.
"""

from __future__ import annotations

import os

from ...ipc import endpoint
from ...ipc.endpoint import sync_folder
from ...ipc.lightweight.dataclass import dataclass, field
from ..model.stream import ReplayedStream
from ..process import launch
from ..process.cause import RESTARTED, UNSUPERVISED, Cause
from ..statedb.writer import PATIENCE, StateDbError
from ..storage import run_folder as runs
from ..storage import run_notes
from . import idle, report
from .describe import cut_short, lost_of, problems_of
from .gather import files_of, tombstone
from .identify import identify
from .reading import (
    Reading,
    last_sign_of_life,
    read,
    settings_of,
)
from .report import SessionReport
from .settle import SettledSession, Settler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..model.unwritten import Unwritten
    from .checkpoint import Databases

# Segments. A stream of fewer is replayed as a whole.
_LONG = 3


@dataclass
class SettledStream:
    """A stream whose rows are written, as far as they could be."""

    run: runs.Run
    settings: dict[str, Any]
    stream: str
    replayed: ReplayedStream
    sessions: list[SettledSession]


class Observer:
    """What the caller of recovery does at its own steps. This observer does nothing."""

    def settled(self, stream: SettledStream) -> None:
        """The rows are written, the stream's files are still there. What is written now survives
        a kill; the next recovery comes here again. May fill in the `hooks` of the reports."""

    def reported(self, stream: SettledStream) -> None:
        """The reports are on disk, the stream's files are still there."""


# -- entry points ----------------------------------------------------------------------------


@dataclass
class Supervised:
    """What a living supervisor passes to the recovery that it starts in a forked process."""

    closed: list[str]
    """The streams to finish: the supervisor closed them, or found them without their process."""
    living: set[str]
    """The streams of processes that it still serves, or has not been able to serve yet."""
    causes: dict[int, Cause]
    """How processes ended, by pid. A spool does not contain that."""
    pid: int
    """The supervisor's own."""
    unwritten: dict[str, Unwritten] = field(default_factory=dict)
    """Records in memory that could not be written to journals, by stream."""


@dataclass
class Finished:
    reports: list[SessionReport]
    living: int
    """How many processes of the run are alive, as far as their streams were read."""
    waiting: bool = False
    """A dead process' share in a session has to wait for a living one."""


class NotPutAway(Exception):
    """All rows are in state.db, but a report or a hook could not be written to disk."""


def finish(
    run: runs.Run,
    observer: Observer,
    *,
    supervised: Supervised | None = None,
    patience: float = PATIENCE,
    progress: Callable[[int, int], None] | None = None,
    read_transcripts: Callable[[str], list[str]] | None = None,
) -> Finished:
    """Finish the streams of a run whose processes are dead.

    Without `supervised` the run was left behind: all of its streams are looked at.
    `read_transcripts` adds what the transcripts of a dead agent say beyond the journal, and returns
    what it could not read.
    `progress` is called with the number of messages just stored and left in their session.
    A fault in one stream is raised when all others are done.
    """
    finisher = Finisher(run, observer, patience, progress)
    faults: list[Exception] = []
    waits_for_transcripts = None
    if read_transcripts is not None:
        try:
            _read_transcripts(finisher, read_transcripts)
        except (OSError, ImportError) as fault:  # a full disk, an upgrade: the next try may do
            waits_for_transcripts = finisher.settings["watcher"]
            faults.append(fault)
    try:
        dead, living, unreadable = _read_streams(finisher, supervised, waits_for_transcripts)
        faults += unreadable
        unread = len(faults)
        # Whoever has supervised the run from its beginning has all that it ever stored from.
        if supervised is None or supervised.pid != finisher.settings.get("supervisor"):
            finisher.add_marked(dead, living)
        reports, more_faults = finisher.finish(dead, living)
        faults += more_faults
        if faults:
            if not unread and finisher.all_stored:
                why = launch.reason(faults[0])
                raise NotPutAway(f"its messages are in state.db; {why}") from faults[0]
            raise faults[0]
        alive = max(len(living), int(run_notes.living_agent(run.folder) is not None))
        return Finished(reports, alive, finisher.waiting)
    finally:
        finisher.close()


def _read_streams(
    finisher: Finisher, supervised: Supervised | None, without: str | None
) -> tuple[list[Reading], list[Reading], list[Exception]]:
    """The streams of dead processes, those of living ones, and the faults of those that could not
    be read. A dead process' stream says how it died, or why nobody knows."""
    dead: list[Reading] = []
    living: list[Reading] = []
    faults: list[Exception] = []
    run, restarted = finisher.run, finisher.restarted
    served = supervised.living if supervised is not None else set()
    unwritten = supervised.unwritten if supervised is not None else {}
    streams = supervised.closed if supervised is not None else run.streams()
    for stream in [*sorted(served), *(name for name in streams if name not in served)]:
        if stream == without:
            continue
        try:
            if stream not in served:
                finisher.digest(stream)
            reading = read(run, stream, unwritten.get(stream))
            replayed = reading.replayed
            if supervised is not None and replayed.death is None:
                pid = replayed.hello.get("pid")
                replayed.death = supervised.causes.get(pid if isinstance(pid, int) else 0)
            lives = replayed.death is None and reading.living and not restarted
            if stream in served or lives:
                living.append(reading)
            else:
                if replayed.death is None:
                    why = _why_unseen(replayed, supervised, restarted=restarted)
                    replayed.death = Cause(at=last_sign_of_life(reading), unseen=why)
                dead.append(reading)
        except Exception as fault:
            faults.append(fault)
    return dead, living, faults


def _why_unseen(replayed: ReplayedStream, supervised: Supervised | None, *, restarted: bool) -> str:
    """Why nobody saw how a process ended."""
    if restarted:
        return RESTARTED
    seen_by = replayed.peer.get("by")
    if supervised is not None and seen_by in (None, supervised.pid):
        return ""
    return UNSUPERVISED


def _read_transcripts(finisher: Finisher, read_them: Callable[[str], list[str]]) -> None:
    """Add lines of a dead agent's own transcripts that no process reported."""
    run = finisher.run
    if finisher.settings.get("watcher") and run_notes.living_agent(run.folder) is None:
        try:
            finisher.unread = read_them(run.folder)
        except (OSError, ImportError):
            raise
        except Exception as fault:  # the journal is finished all the same
            why = f"{type(fault).__name__}: {fault}"
            finisher.unread = [f"the agent's transcript could not be read to its end: {why}"]
        if finisher.unread and not files_of(run.folder, finisher.settings["watcher"]):
            raise OSError("; ".join(finisher.unread))  # there is no session to say it of


# -- one run -----------------------------------------------------------------------------------


class Finisher:
    """Finishes streams of one run."""

    def __init__(
        self,
        run: runs.Run,
        observer: Observer,
        patience: float = PATIENCE,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.run = run
        self.settings = settings_of(run)
        self.restarted = run_notes.is_of_another_boot(self.settings.get("boot"))
        """The machine was restarted since the run."""
        self.waiting = False
        """Something has to wait for a living process."""
        self.all_stored = True
        """Everything was written to state.db."""
        self.unread: list[str] = []
        """What could not be read of the agent's transcripts."""
        self._observer = observer
        self._patience = patience
        self._settler = Settler(run, self.settings, patience, progress)
        self._digesting: Databases | None = None

    def digest(self, stream: str) -> None:
        """Store a long stream piece by piece, as far as possible: the rest is read at once."""
        if sum(name.endswith(".log") for name in files_of(self.run.folder, stream)) < _LONG:
            return
        from .checkpoint import Databases  # rarely needed
        from .digest import digest

        if self._digesting is None:
            self._digesting = Databases(self.run, self._patience)
        try:
            digest(self.run, stream, self._digesting, restarted=self.restarted)
        except StateDbError:  # it is reported when the rest cannot be written either
            self._digesting.close()
            self._digesting = None

    def add_marked(self, dead: list[Reading], living: list[Reading]) -> None:
        """Add what only the markers in state.db know: a checkpoint of another supervisor could not
        note it in the run's folder."""
        from . import marked  # only if the supervisor was killed

        marked.add(self.run, self.settings, dead, living, self._patience)

    def finish(
        self, dead: list[Reading], living: list[Reading]
    ) -> tuple[list[SessionReport], list[Exception]]:
        """Finish the dead streams."""
        for reading in (*dead, *living):
            idle.mark(self.run, reading.stream, reading.replayed)
        for reading in dead:
            identify(reading.replayed, self._settler.database_of(reading.replayed))
        settled = self._settler.settle(dead, living)
        reports: list[SessionReport] = []
        faults: list[Exception] = []
        for reading in dead:
            sessions_of = settled.get(reading.stream, {})
            # A share in a session may have to wait for a living process, and the files with it.
            # The stream's other sessions are over: their hooks and reports do not wait.
            waits = any(id not in sessions_of for id in reading.replayed.sessions)
            self.waiting |= waits
            self.all_stored &= all(session.report.complete for session in sessions_of.values())
            try:
                reports += self._put_away(reading, list(sessions_of.values()), keep=waits)
            except Exception as fault:
                faults.append(fault)
        return reports, faults

    def _put_away(
        self, reading: Reading, sessions: list[SettledSession], *, keep: bool
    ) -> list[SessionReport]:
        """The steps behind the rows. `keep`: the files stay for a session that is not settled."""
        stream = SettledStream(self.run, self.settings, reading.stream, reading.replayed, sessions)
        self._observer.settled(stream)
        # The process that wrote the rows may have had records that were in no file.
        noted = [settled.lost for settled in sessions if settled.lost is not None]
        lost = min(noted, default=lost_of(reading))
        ends_early = cut_short(reading) and (
            not noted or all(settled.cut_short for settled in sessions if settled.lost is not None)
        )
        problems = problems_of(reading, lost, ends_early=ends_early)
        if reading.stream == self.settings.get("watcher"):
            problems += self.unread
        if self.settings.get("lost"):
            problems.append("the run's settings (run.json) were lost; defaults were used")
        reports = [settled.report for settled in sessions]
        for each in reports:
            each.problems += problems
        worth_telling = [r for r in reports if r.outcome != "empty" or r.problems]
        report.append(self.run.path("report.jsonl"), worth_telling)
        self._observer.reported(stream)
        if not keep and all(each.complete for each in reports):
            self._retire(reading)
        return worth_telling

    def close(self) -> None:
        if self._digesting is not None:
            self._digesting.close()
        self._settler.close()

    def _retire(self, reading: Reading) -> None:
        """Everything is settled, and the files can go. Damaged ones are kept elsewhere.

        If this is killed, the remaining files must not be taken for the whole stream: the tombstone
        says so.
        """
        tomb = tombstone(self.run.folder, reading.stream)
        os.close(os.open(tomb, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        sync_folder(self.run.folder)
        if run_notes.replica_of(self.run.folder) is not None:
            from ..replica.places import keep  # only with --replica

            keep(self.run.folder, reading.gathered.files)
        for name in reading.gathered.files:
            path = self.run.path(name)
            if name in reading.gathered.damaged:
                aside = endpoint.private_folder(os.path.join(endpoint.state_folder(), "damaged"))
                os.replace(path, os.path.join(aside, f"{self.run.name}.{name}"))
                sync_folder(aside)
            else:
                os.unlink(path)
        sync_folder(self.run.folder)
        os.unlink(tomb)
