"""Settles sessions: groups the shares that processes have in each session, and writes each once.

Never removes a file, and never raises for a database that fails: the report says so.

Several processes may have a share in a session, each in a stream of its own. The session is written
once, from all of them, in the order of the messages; messages of living processes that precede the
last message of a dead one are written with it. If a living process may still send something that
belongs before it (a reply is growing), the stream of the dead process is left for the next
recovery.
"""

from __future__ import annotations

import os
import time

from ...ipc.lightweight.dataclass import dataclass
from ..agents import registry
from ..model.life import life_of
from ..process.cause import Cause
from ..process.platform import boot_id, pid_namespace
from ..statedb.writer import Applied, Part, Replaced, StateDb, StateDbError
from . import elsewhere
from .describe import complete, cut_short, describe, lost_of
from .ending import Member, crash_in, decide
from .outcome import Outcome
from .reading import database_of
from .replay import outlast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..model.stream import ReplayedStream, Session
    from ..storage.run_folder import Run
    from .reading import Reading
    from .report import SessionReport

_FILES_TRIED = 3
# How often to check whether another process is done with an earlier life of a session.
_ASK_AGAIN = 0.05


@dataclass
class SettledSession:
    session: Session
    report: SessionReport
    cause: Cause
    """What ended it: the end of its own process, or of another one that had a share in it."""
    owes_hooks: bool
    """Its processes died before they ran the hooks of the session's end."""
    lost: int | None = None
    """How many records of its stream were lost, as noted when its rows were written."""
    cut_short: bool = False
    """Whether the last records of its stream may be lost, as noted then."""


class Settler:
    """Settles the sessions of one run."""

    def __init__(
        self,
        run: Run,
        settings: dict[str, Any],
        patience: float,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._run = run
        self._settings = settings
        self._patience = patience
        self._progress = progress
        self._held: set[tuple[str, str | None]] = set()
        """Sessions that a living process has open, each with its file; None: not known."""
        self._databases: dict[str, StateDb | StateDbError] = {}
        self._replaced = 0

    def close(self) -> None:
        # Not before: a file with a long WAL that nobody has open is read as a whole when opened.
        for database in self._databases.values():
            if isinstance(database, StateDb):
                database.close()

    def settle(
        self, dead: list[Reading], living: list[Reading]
    ) -> dict[str, dict[str, SettledSession]]:
        """Write the sessions of the dead streams; the results by stream and session. Those that
        have to wait for a living process are not among them.

        Sessions that a living stream has open get no end.
        """
        for reading in living:
            replayed = reading.replayed
            for session in replayed.sessions.values():
                if session.ended is None:
                    path = database_of(session, replayed, self._settings)
                    self._held.add((session.id, os.path.realpath(path)))
            self._held |= {(s.id, None) for s in outlast(replayed) if s.ended is None}
        groups = self._groups(dead, living)
        for _ in range(_FILES_TRIED):
            before = self._replaced
            settled: dict[str, dict[str, SettledSession]] = {}
            for group in groups:
                for member, done in self._settle(group):
                    settled.setdefault(member.stream, {})[member.session.id] = done
            if self._replaced == before:
                break
            # Another file took the path meanwhile, and the groups before went into the old one.
        for group in groups:  # in the order in which the stream speaks of them
            for member in group:
                of_stream = settled.get(member.stream, {})
                order = [id for id in member.replayed.sessions if id in of_stream]
                settled[member.stream] = {id: of_stream[id] for id in order}
        return settled

    def _groups(self, dead: list[Reading], living: list[Reading]) -> list[list[Member]]:
        """The shares in each session, the dead first. A living process that stores its messages
        itself has none."""
        groups: dict[tuple[str, str], list[Member]] = {}
        for reading in dead:
            for session in reading.replayed.sessions.values():
                path = database_of(session, reading.replayed, self._settings)
                member = Member(reading, session, path, reading.replayed.death)
                groups.setdefault((session.id, path), []).append(member)
        for reading in living:
            if _stores_itself(reading.replayed):
                continue
            for session in reading.replayed.sessions.values():
                path = database_of(session, reading.replayed, self._settings)
                if (session.id, path) in groups and session.about.get("settles") is not True:
                    groups[session.id, path].append(Member(reading, session, path, None))
        return list(groups.values())

    def _settle(self, group: list[Member]) -> list[tuple[Member, SettledSession]]:
        dead = [member for member in group if member.cause is not None]
        path = group[0].path
        self._let_earlier_lives_go_first(dead)
        applied: dict[str, Applied | None] = {}
        failure = ""
        try:
            living = [member for member in group if member.cause is None]
            decide(dead, self._is_open_elsewhere, self._notes_of_others, living)
            for member in group:
                registry.of_stream(member.replayed).keep_what_was_shown(member.session)
            applied = self._write(path, group)
        except Exception as fault:  # the other sessions have nothing to do with it
            why = fault if isinstance(fault, StateDbError) else type(fault).__name__
            failure = f"not written to state.db yet: {why}"
        settled = []
        for member in dead:
            if not failure and member.stream not in applied:
                continue  # it has to wait
            _remember_how_it_ended(member, applied.get(member.stream))
            described = describe(self._run.name, self._settings, member)
            if failure:
                described.problems.append(failure)
                described.complete = False
            else:
                self._complete(described, member, applied[member.stream])
            agent = registry.of_stream(member.replayed)
            interrupted = described.outcome == Outcome.INTERRUPTED.value
            owes_hooks = (interrupted and not member.had_hooks) or (
                described.outcome == "ended by the agent"
                and agent.died_closing(member.session, member.replayed)
            )
            if not failure and agent.was_cut_off(member.session, described.end_reason):
                described.outcome = Outcome.INTERRUPTED.value  # the row keeps the agent's reason
            cause = member.ended_by or member.died
            result = SettledSession(member.session, described, cause, owes_hooks)
            if (done := applied.get(member.stream)) is not None:
                lost = done.note.get("lost")
                result.lost = lost if isinstance(lost, int) else None
                result.cut_short = done.note.get("cut_short") is True
            settled.append((member, result))
        return settled

    def _let_earlier_lives_go_first(self, dead: list[Member]) -> None:
        """Wait while another process stores an earlier life of this session."""
        until = time.monotonic() + self._patience
        for member in dead:
            life = life_of(member.replayed, member.session)
            where = (self._run.name, member.session.id, member.path, life)
            while elsewhere.is_being_finished(*where) and time.monotonic() < until:
                time.sleep(_ASK_AGAIN)

    def _complete(self, described: SessionReport, member: Member, applied: Applied | None) -> None:
        complete(described, member, applied)
        if applied is not None:
            if (left := self._database(member.path).cjk_index.take_note()) is not None:
                described.problems.append(left)
            described.turn = self._last_turn(member)

    def _last_turn(self, member: Member) -> dict[str, Any] | None:
        """Only for the report, so a failure to read it does not fail the recovery."""
        session = member.session
        try:
            turn = self._database(member.path).reader.last_turn(session.id)
        except StateDbError:
            return None
        return {**turn, "stopped": session.stopped}

    def _is_open_elsewhere(self, member: Member) -> bool:
        """True if another living process can go on with the session."""
        session_id = member.session.id
        # The same id in another file is another session.
        if {(session_id, os.path.realpath(member.path)), (session_id, None)} & self._held:
            return True
        holders = registry.of_stream(member.replayed).open_sessions(member.path)
        if any(alive for _, alive in holders.get(session_id, ())):
            return True  # the agent's own list says so
        return elsewhere.open_in_another_run(self._run.name, session_id, member.path) is not None

    def _notes_of_others(self, members: list[Member]) -> list[dict[str, Any]]:
        """The notes of earlier recoveries about other processes that had a share in the session."""
        own = {member.stream for member in members}
        member = members[0]
        try:
            markers = self._database(member.path).closed_by_others(member.session.id, own)
        except StateDbError:
            return []  # it cannot be written either, and the next try asks again
        life = life_of(member.replayed, member.session, member.died.at)
        return [
            marker
            for marker, other in markers
            if not other.precedes(life, boot_id()) and not life.precedes(other, boot_id())
        ]

    # -- rows --------------------------------------------------------------------------------

    def _write(self, path: str, group: list[Member]) -> dict[str, Applied | None]:
        """Write to the file that has the path at the end: a backup may be restored there
        meanwhile."""
        for _ in range(_FILES_TRIED):
            try:
                writer = self._database(path).write(
                    [_part(member) for member in group], boot=boot_id(), progress=self._progress
                )
                return writer.run()
            except Replaced as error:
                replaced = error
                self._replaced += 1
                database = self._databases.pop(path)
                if isinstance(database, StateDb):
                    database.close()
        raise replaced

    def database_of(self, replayed: ReplayedStream) -> Callable[[Session], StateDb]:
        """Opens the database of a session of this stream. Raises StateDbError."""
        return lambda session: self._database(database_of(session, replayed, self._settings))

    def _database(self, path: str) -> StateDb:
        if path not in self._databases:
            try:
                self._databases[path] = StateDb(path, self._patience)
            except StateDbError as error:
                self._databases[path] = error
        database = self._databases[path]
        if isinstance(database, StateDbError):
            raise database
        return database


def _remember_how_it_ended(member: Member, applied: Applied | None) -> None:
    """Nobody could write down how the process ended, but its session was written at once: then the
    marker says it."""
    if applied is not None and member.ended_by is None and member.died.unseen:
        crash = crash_in(applied.note)
        if crash is not None and crash.cause.kind != "unknown":
            member.ended_by = crash.cause


def _stores_itself(replayed: ReplayedStream) -> bool:
    from .checkpoint import stores_itself  # only where a living process shares a session

    return stores_itself(replayed)


def _part(member: Member) -> Part:
    pid = member.replayed.hello.get("pid")
    living = member.cause is None
    at = time.time() if living else member.died.at
    return Part(
        member.stream, member.session, at,
        life=life_of(member.replayed, member.session, 0.0 if living else at),
        living=living, pid=pid if isinstance(pid, int) else None,
        # Where the supervisor saw the same pid, the agent was in the supervisor's namespace.
        pid_namespace=pid_namespace() if member.replayed.peer.get("pid") == pid else "",
        end=member.end,
        note={"outcome": member.outcome, "lost": lost_of(member.reading), **member.note}
        | ({"cut_short": True} if cut_short(member.reading) else {}),
    )  # fmt: skip
