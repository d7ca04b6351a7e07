"""Finishing for the dead: the order of the steps, each of which may be the last.

Never signals anyone, and never raises for a database or a hook that fails.

    1  gather and replay the stream                       reads only
    2  for every session: rows and end mark into state.db one transaction and its marker
    3  for every session: queue the hooks it is owed      a file each, and a line here
    4  the report
    5  if nothing failed, remove the stream's files

Cut off anywhere and run again, 2 and 3 find out from marker and ledger what is done (I4).
If 2 fails, 3 runs all the same, and the files stay for a later try. Running the hooks is for
whoever starts a runner of the queue next.
"""

from __future__ import annotations

import os
import time

from ...ipc import endpoint, jsontext
from ...ipc.endpoint import sync_folder
from .. import run as runs
from ..adapters import hermes
from ..cause import RESTARTED, UNSUPERVISED, Cause
from ..hooks import idle
from ..watch import lives
from . import report
from .gather import Gathered, files_of, gather, tombstone
from .outcome import Outcome, outcome_of
from .replay import Session, Told, replay
from .report import Settled
from .statedb import PATIENCE, Applied, Replaced, StateDb, Trouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..hooks.due import Due
    from .checkpoint import Databases

_FILES_TRIED = 3
_LONG = 3  # segments


class Finisher:
    """Finishes streams of one run."""

    def __init__(
        self,
        run: runs.Run,
        held: set[str],
        patience: float = PATIENCE,
        wrote: Callable[[int, int], None] | None = None,
    ) -> None:
        self._run = run
        self._wrote = wrote
        self._held = held
        self._patience = patience
        self.settings = settings_of(run)
        self._due: Due | None = None
        self._databases: dict[str, StateDb | Trouble] = {}
        self._digesting: Databases | None = None
        self._replaced = 0

    def digest(self, stream: str) -> None:
        """A long one piece by piece, as far as that goes: what is left is in memory at once."""
        if sum(name.endswith(".log") for name in files_of(self._run.folder, stream)) < _LONG:
            return
        from .checkpoint import Databases
        from .digest import digest

        if self._digesting is None:
            self._digesting = Databases(self._run, self._patience)
        try:
            digest(self._run, stream, self._digesting)
        except Trouble:  # which is told of when the rest cannot be written either
            self._digesting.close()
            self._digesting = None

    def finish(self, stream: str, found: Gathered, told: Told) -> list[Settled]:
        idle.mark(self._run, stream, told)
        cause = told.death or Cause(at=_last_sign_of_life(found, told))
        sessions = list(told.sessions.values())
        applied = self._settle_all(stream, told, sessions, cause)
        due = self._hooks()
        queued = due.while_it_lived(stream, told)
        for session, settled in zip(sessions, applied, strict=True):
            closing = settled.outcome == "ended by the agent" and hermes.died_closing(session, told)
            if closing or settled.outcome == Outcome.INTERRUPTED.value:
                queued += due.at_a_death(session, told, settled, cause)
            settled.hooks = [one.as_ran() for one in queued if one.session == session.id]
        troubles = _what_is_missing(found, told)
        if self.settings.get("lost"):
            troubles.append("how the run was to be finished (run.json) is lost; as by default")
        for settled in applied:
            settled.problems += troubles
        worth_telling = [s for s in applied if s.outcome != "empty" or s.problems]
        report.append(self._run.path("report.jsonl"), worth_telling)
        due.note_what_ran(stream, queued)
        if all(settled.complete for settled in applied):
            self._retire(stream, found)
        return worth_telling

    def _hooks(self) -> Due:
        if self._due is None:
            from ..hooks.due import Due

            self._due = Due(self._run, self.settings)
        return self._due

    def close(self) -> None:
        # Not before: a file with a long WAL that nobody has open is read as a whole when opened.
        if self._digesting is not None:
            self._digesting.close()
        for database in self._databases.values():
            if isinstance(database, StateDb):
                database.close()

    # -- rows --------------------------------------------------------------------------------

    def _settle_all(
        self, stream: str, told: Told, sessions: list[Session], cause: Cause
    ) -> list[Settled]:
        for _ in range(_FILES_TRIED):
            before = self._replaced
            applied = [self._settle(stream, told, session, cause) for session in sessions]
            if self._replaced == before:
                break
            # Another file came in between, and those before it went into the old one.
        return applied

    def _settle(self, stream: str, told: Told, session: Session, cause: Cause) -> Settled:
        path = database_of(session, told, self.settings)
        outcome, end = self._decide(told, session, cause, path)
        settled = Settled(
            session=session.id, run=self._run.name, stream=stream, db=path, outcome=outcome,
            cause=str(cause), died_at=cause.at, **_circumstances(told, session, cause),
            launched=_moment(self.settings.get("started")), model=_name(session, "model"),
            platform=_name(session, "platform") or _name(session, "source"),
            subagent=bool(session.about.get("subagent")), orphans=cause.orphans,
            working=session.in_flight, progress=session.progressed,
            after=self.settings.get("after"),
        )  # fmt: skip
        settled.resume = _name(session, "resume")
        settled.problems += session.troubles
        if hermes.is_hermes(told):
            hermes.as_shown(session)
            settled.resume = hermes.resume(session.id)
            settled.subagent = not hermes.is_the_users(session)
            if not hermes.may_be_ended(session):
                end = None
        try:
            owner = told.hello.get("pid")
            owner = owner if isinstance(owner, int) else None
            applied = self._apply(path, stream, session, cause.at, end, owner)
        except Exception as fault:  # the other sessions are owed theirs all the same
            why = fault if isinstance(fault, Trouble) else type(fault).__name__
            settled.problems.append(f"not written yet: {why}")
            settled.complete = False
            return settled
        if applied is None:
            # What it continues was cut off, though; a row without a word in it would tell less.
            if outcome != Outcome.INTERRUPTED.value or not told.continues(session):
                settled.outcome = "empty"
            settled.settled_at = time.time()
        else:
            _describe(settled, applied, end)
            settled.turn = self._last_turn(path, session)
        return settled

    def _last_turn(self, path: str, session: Session) -> dict[str, Any] | None:
        """For the report alone, so that trouble with it is none."""
        try:
            return {**self._database(path).last_turn(session.id), "stopped": session.stopped}
        except Trouble:
            return None

    def _decide(
        self, told: Told, session: Session, cause: Cause, path: str
    ) -> tuple[str, tuple[float, str] | None]:
        if session.rotated:
            return "continued as another", (session.ended_at, session.ended or "compression")
        if session.ended is not None:
            how = "finalised when idle" if session.idle else "ended by the agent"
            return how, (session.ended_at, session.ended)
        elsewhere = session.id in self._held
        if elsewhere or open_in_another_run(self._run.name, session.id, path) is not None:
            return "open elsewhere", None
        outcome = outcome_of(cause, said_bye=told.said_bye, in_flight=session.in_flight)
        if hermes.is_hermes(told) and hermes.is_between_requests(session):
            outcome = Outcome.COMPLETED
        return outcome.value, (cause.at, outcome.value)

    def _apply(self, path: str, *plan: Any) -> Applied | None:
        """In the file that has the path when all is written: a restored backup, for one."""
        for _ in range(_FILES_TRIED):
            try:
                return self._database(path).apply(*plan)
            except Replaced as trouble:
                replaced = trouble
                self._replaced += 1
                database = self._databases.pop(path)
                if isinstance(database, StateDb):
                    database.close()
        raise replaced

    def _database(self, path: str) -> StateDb:
        if path not in self._databases:
            try:
                self._databases[path] = made = StateDb(path, self._patience)
                made.wrote = self._wrote
            except Trouble as trouble:
                self._databases[path] = trouble
        database = self._databases[path]
        if isinstance(database, Trouble):
            raise database
        return database

    # -- the files ---------------------------------------------------------------------------

    def _retire(self, stream: str, found: Gathered) -> None:
        """Everything is settled: the files have done their work. Damaged ones are kept aside.

        Cut off in here, what is left must not be taken for the whole: the tombstone says so.
        """
        tomb = tombstone(self._run.folder, stream)
        os.close(os.open(tomb, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        sync_folder(self._run.folder)
        for name in found.files:
            path = self._run.path(name)
            if name in found.damaged:
                aside = endpoint.private_folder(os.path.join(endpoint.state_folder(), "damaged"))
                os.replace(path, os.path.join(aside, f"{self._run.name}.{name}"))
                sync_folder(aside)
            else:
                os.unlink(path)
        sync_folder(self._run.folder)
        os.unlink(tomb)


def _circumstances(told: Told, session: Session, cause: Cause) -> dict[str, Any]:
    """What was going on when it happened, without a word of what was said."""
    pid = (told.peer or told.hello).get("pid")
    return {
        "reason": {"kind": cause.kind, "signal": cause.signal, "exit_code": cause.code},
        "agent": agent_of(told),
        "pid": pid if isinstance(pid, int) else None,
        "began": session.began or None,
        "doing": session.phase.value,
        "doing_since": session.phase_at or None,
        "open_calls": open_calls(session),
        "memory": cause.memory,
    }


def open_calls(session: Session) -> list[dict[str, Any]]:
    """Of an agent that does not announce its tools, every call may have started."""
    return [
        {"name": call.name, "call": call.id, "since": call.began or None,
         "started": call.started or not session.announces_tools}
        for call in session.calls.values()
    ]  # fmt: skip


def _moment(at: object) -> float | None:
    return float(at) if isinstance(at, int | float) and 0 < at < 1e12 else None


def agent_of(told: Told) -> str | None:
    """The name of the program that spoke, and its version where it says so."""
    named, version = told.hello.get("agent"), told.hello.get("agent_version")
    if not isinstance(named, str) or not named:
        words = told.hello.get("argv")
        first = words[0] if isinstance(words, list) and words else told.hello.get("executable")
        return os.path.basename(first) or None if isinstance(first, str) else None
    return f"{named} {version}" if isinstance(version, str) else named


def _name(session: Session, field: str) -> str | None:
    """What an agent calls something; it may have sent anything else in its place."""
    told = session.about.get(field)
    return told if isinstance(told, str) else None


def settings_of(run: runs.Run) -> dict[str, Any]:
    """How the run wants its sessions finished; the defaults if it could not write that down."""
    settings: dict[str, Any] = {"db": runs.default_db()}
    try:
        with open(run.path("run.json"), encoding="utf-8") as file:
            settings.update(jsontext.loads(file.read()))
    except (OSError, ValueError, TypeError):
        settings["lost"] = True
    return settings


def database_of(session: Session, told: Told, settings: dict[str, Any]) -> str:
    return _absolute(str(session.about.get("db") or settings["db"]), told)


def open_in_another_run(own: str, session_id: str, path: str) -> runs.Run | None:
    """The other run whose agent, which lives, has this session of this file open."""
    name = jsontext.quoted(session_id)[1:-1].encode()
    for folder in runs.left_behind():
        other = runs.Run(folder, -1)
        if other.name == own or runs.living_agent(other) is None:
            continue
        try:
            for stream in other.streams():
                found = gather(folder, stream)
                # Most have nothing to do with it, and need not be understood.
                if not any(name in frame for _, frame in found.frames):
                    continue
                told = replay(found.frames)
                open_there = told.sessions.get(session_id)
                if open_there is None or open_there.ended is not None or not is_alive(told):
                    continue
                if database_of(open_there, told, settings_of(other)) == path:
                    return other
        except OSError:
            continue  # it is just being settled, or compacted
    return None


def _absolute(path: str, told: Told) -> str:
    """A path as the agent meant it, which may stand in another folder than we do."""
    return os.path.abspath(os.path.join(str(told.hello.get("cwd") or ""), path))


def _describe(settled: Settled, applied: Applied, end: tuple[float, str] | None) -> None:
    settled.recovered = applied.counts
    settled.end_reason = applied.ended_as
    settled.settled_at = applied.at
    if applied.title_dropped is not None:
        settled.problems.append("the pending title was taken by another session and dropped")
    if applied.counts.out_of_order:
        settled.problems.append(
            f"{applied.counts.out_of_order} messages stand behind later ones the agent had written"
        )
    ours = (Outcome.INTERRUPTED.value, Outcome.COMPLETED.value)
    ended_before = applied.ended_as is not None and not applied.ended_by_us
    if settled.outcome in ours and (ended_before or (end is not None and not applied.ended_by_us)):
        settled.outcome = "ended by the agent"  # it had ended the row, and never said so


def _what_is_missing(found: Gathered, told: Told) -> list[str]:
    troubles = [f"{name} is damaged ({what}); kept aside" for name, what in found.damaged.items()]
    lost = sum(last - first + 1 for first, last in told.gaps)
    if lost:
        troubles.append(f"{lost} records were lost before they could be stored")
    if told.bad_records:
        troubles.append(f"{told.bad_records} records could not be understood")
    return troubles


# -- where it is called from -----------------------------------------------------------------


def finish_streams(
    run: runs.Run, streams: list[str], living: set[str], known: dict[int, Cause] | None = None
) -> list[Settled]:
    """Finish streams that their supervisor has closed, or found without knowing their process.

    `known` says how some processes ended, by pid: a spool cannot say it of itself. What fails
    for one stream is raised when all the others are done.
    """
    held: set[str] = set()
    for stream in living:
        told = replay(gather(run.folder, stream).frames)
        held |= {session.id for session in told.sessions.values() if session.ended is None}
    finisher = Finisher(run, held)
    faults: list[Exception] = []
    try:
        settled = []
        for stream in streams:
            try:
                finisher.digest(stream)
                found, told, alive = _all_it_told(run, stream)
                pid = told.hello.get("pid")
                told.death = told.death or (known or {}).get(pid if isinstance(pid, int) else 0)
                if told.death is not None or not alive:
                    if told.death is None and told.peer.get("by") not in (None, os.getppid()):
                        at = _last_sign_of_life(found, told)
                        told.death = Cause(at=at, unseen=UNSUPERVISED)
                    settled += finisher.finish(stream, found, told)
            except Exception as fault:
                faults.append(fault)
        if faults:
            raise faults[0]
        return settled
    finally:
        finisher.close()


def finish_left_behind(
    run: runs.Run, patience: float = PATIENCE, wrote: Callable[[int, int], None] | None = None
) -> tuple[list[Settled], int]:
    """Finish a run whose supervisor is gone; also says how many of its processes still live.

    `wrote` is told how many messages have gone in, and how many of their session are left.
    What fails for one stream is raised when all the others are done.
    """
    told = {}
    faults: list[Exception] = []
    _read_transcripts(run)
    finisher = Finisher(run, set(), patience, wrote)
    try:
        for stream in run.streams():
            try:
                finisher.digest(stream)
                told[stream] = _all_it_told(run, stream)
            except Exception as fault:
                faults.append(fault)
        booted = finisher.settings.get("boot")
        same_boot = booted == runs.boot_id()
        living = {stream for stream, (_, _, alive) in told.items() if same_boot and alive}
        for stream in living:
            finisher._held |= {s.id for s in told[stream][1].sessions.values() if s.ended is None}
        settled = []
        for stream in sorted(set(told) - living):
            try:
                found, said, _ = told[stream]
                why = UNSUPERVISED if same_boot or not booted else RESTARTED
                at = _last_sign_of_life(found, said)
                said.death = said.death or Cause(at=at, unseen=why)
                settled += finisher.finish(stream, found, said)
            except Exception as fault:
                faults.append(fault)
        if faults:
            raise faults[0]
        return settled, max(len(living), int(runs.living_agent(run) is not None))
    finally:
        finisher.close()


def _all_it_told(run: runs.Run, stream: str) -> tuple[Gathered, Told, bool]:
    """What a stream tells, and whether its process lived when that was read; of a dead one, all
    that it ever will. It may have gone on and died while the files were read, so they are read
    again once it is known to be dead. To ask a second time whether it lives would be too late."""
    found = gather(run.folder, stream)
    told = replay(found.frames)
    dead: object = None
    while told.death is None and dead != (who := told.peer or told.hello):
        if is_alive(told):
            return found, told, True
        dead = who
        again = gather(run.folder, stream)
        if again.frames != found.frames:
            told = replay(again.frames)
        found = again
    return found, told, False


def _last_sign_of_life(found: Gathered, told: Told) -> float:
    """For a death that nobody saw. What was written into a ring leaves no time on the file, but
    most records say when they were said; and none of them later than now."""
    said = max((session.heard_at for session in told.sessions.values()), default=0.0)
    return max(found.newest, min(said, time.time()))


def _read_transcripts(run: runs.Run) -> None:
    """What a dead agent wrote itself, and no watcher lived to tell of."""
    if settings_of(run).get("watcher") and runs.living_agent(run) is None:
        from ..watchers import main as watchers

        try:
            watchers.catch_up(run.folder)
        except (OSError, ValueError, KeyError, TypeError):
            pass  # what the journal has is finished all the same


def is_alive(told: Told) -> bool:
    if told.death is not None:
        return False
    if isinstance(folder := told.hello.get("speaks_for"), str):
        return runs.living_agent(runs.Run(folder, -1)) is not None  # a watcher is nobody itself
    who = told.peer or told.hello
    pid, start = who.get("pid"), who.get("start")
    return isinstance(pid, int) and isinstance(start, int) and lives(pid, start)
