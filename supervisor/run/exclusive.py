"""`--exclusive`: one agent per session. A second one is not started, and the user learns why.

Never kills a process, and keeps no lease that could outlive its owner. The living runs themselves
say which sessions they hold: by the records of their agents or, before the first record, by a
command line that names the session. A lock orders two starts at the same moment; it is held from
the check of the other runs until our own run can be seen.

A session that an agent opens later by itself cannot be refused; a warning says so once.
"""

from __future__ import annotations

import fcntl
import os
import time

from ...ipc import endpoint
from ..agents import registry
from ..ingest.connection import USER_MESSAGE
from ..model.job_result import JobResult
from ..process import launch
from ..process.death import may_live
from ..storage import run_folder as runs
from ..storage.run_notes import living_agent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..ingest.connection import Stream
    from ..model.stream import ReplayedStream
    from ..storage.run_folder import Run
    from .jobs import Job, JobQueue

_FINDINGS = "elsewhere"  # a file in the run's folder


def admit(command: list[str], db: str) -> int | None:
    """Call before a run is created; returns a lock to close once the run is there. Raises
    CannotLaunch if another run holds the session that the command names."""
    session = _session_in(command)
    if session is None:
        return None
    path = os.path.join(endpoint.state_folder(), "exclusive.lock")
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (holder := _holder(session, db)) is not None:
            why = (
                f"session {session} is open in {holder}; not starting a second agent (--exclusive)"
            )
            raise launch.CannotLaunch(command[0], launch.OUR_FAILURE, why)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _session_in(command: list[str]) -> str | None:
    parsed = registry.parsed(command)
    return parsed.session if parsed is not None else None


def _holder(session: str, db: str, own: str = "") -> str | None:
    """A description of the run that holds a session, if there is one."""
    others = [folder for folder in runs.left_behind() if os.path.basename(folder) != own]
    if not others:
        return None
    # Heavy, and rarely needed.
    from ..recovery.elsewhere import open_in_another_run
    from ..recovery.reading import settings_of

    # Silent agents are looked for first: one that sends its first record between the two looks is
    # seen by the second.
    for folder in others:
        other = runs.Run(folder, -1)
        about = settings_of(other)
        if about.get("db") == db and _is_about_to_open(other, about, session):
            return _describe(other, about)
    holder = open_in_another_run(own, session, db)
    return _describe(holder, settings_of(holder)) if holder is not None else None


def _is_about_to_open(other: Run, about: dict[str, Any], session: str) -> bool:
    """True if a run is alive, was started on this session, and has not named a session yet."""
    if _session_in(about.get("command", [])) != session:
        return False
    try:
        if any(_replayed(other, stream).sessions for stream in other.streams()):
            return False
        starting = not os.path.exists(other.path("agent"))
    except OSError:
        return False  # it has just been settled
    if not starting:
        return living_agent(other.folder) is not None
    pid, start = (about.get(name) for name in ("supervisor", "supervisor_start"))
    return may_live(pid, start)


def _replayed(run: Run, stream: str) -> ReplayedStream:
    # Heavy, and rarely needed.
    from ..recovery.gather import gather
    from ..recovery.replay import replay

    return replay(gather(run.folder, stream).frames)


def _describe(other: Run, about: dict[str, Any]) -> str:
    agent = living_agent(other.folder)
    parts = [f"process {agent[0]}"] if agent is not None else []
    if isinstance(started := about.get("started"), int | float):
        parts.append(time.strftime("since %Y-%m-%d %H:%M:%S", time.localtime(started)))
    if terminal := about.get("terminal"):
        parts.append(f"on {terminal}")
    return f"run {other.name} ({', '.join(parts)})"


class DuplicateSessionGuard:
    """Warns if another run has a session open that our agent works in. Looks at the first records
    of a stream, and at every message of the user."""

    def __init__(self, jobs: JobQueue, run: Run, warn: Callable[[str], None]) -> None:
        self._jobs = jobs
        self._run = run
        self._warn = warn
        self._seen: set[str] = set()
        self._job: Job | None = None

    def records_arrived(self, stream: Stream) -> None:
        due = stream.name not in self._seen or stream.news == USER_MESSAGE
        self._seen.add(stream.name)
        if due and not self._jobs.is_queued(self._job):
            self._job = self._jobs.add(lambda: self._look(stream.name), done=self._looked)

    def _look(self, stream: str) -> JobResult:
        """In the job, which cannot write to the terminal: it leaves its findings in a file."""
        from ..recovery.reading import database_of, settings_of  # heavy

        replayed = _replayed(self._run, stream)
        findings = []
        for session in replayed.sessions.values():
            if session.ended is None:
                db = database_of(session, replayed, settings_of(self._run))
                holder = _holder(session.id, db, self._run.name)
                if holder is not None:
                    findings.append(
                        f"session {session.id} is also open in {holder}: two agents use it"
                    )
        if not findings:
            return JobResult.DONE
        with open(self._run.path(_FINDINGS), "w", encoding="utf-8") as file:
            file.write("\n".join(findings))
        return JobResult.FOUND

    def _looked(self, result: JobResult) -> None:
        if result is JobResult.FOUND:
            from ..model.text import printable  # only if there is something to say

            with open(self._run.path(_FINDINGS), encoding="utf-8") as file:
                for line in file.read().splitlines():
                    self._warn(printable(line))
