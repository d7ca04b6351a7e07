"""Checkpoints: the messages of a living agent that nobody else stores are written to state.db.

Never writes a message that is still growing, never ends a session that its agent did not end, and
never touches one whose agent stores it itself.

A checkpoint replays, compares and writes as at a death, with the same markers, but without an end
mark, and without removing the files. What was stored is noted twice: in the marker, within the
transaction, and then in the stream's `stored` file, which replay reads as if the agent had settled
those messages. So the marker only has to hold what one checkpoint did, and the journal can be
compacted. If it is killed between the two, the next checkpoint finds the rows in the marker.
"""

from __future__ import annotations

import os
import time

from ...ipc import clock, frames, records
from ...ipc.endpoint import sync_folder
from ..agents import registry
from ..model.job_result import JobResult
from ..model.life import life_of
from ..model.stored import records_of
from ..model.stream import ReplayedStream, Session
from ..process.platform import boot_id
from ..statedb.writer import Part, StateDb, StateDbError
from . import elsewhere, idle
from .gather import gather, stored_name
from .reading import database_of, settings_of
from .reopen import take_back_ends
from .replay import replay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..model.unwritten import Unwritten
    from ..storage.run_folder import Run

# A death must not wait for long behind a checkpoint that cannot be written now, or that is long.
PATIENCE = 2.0
_LONGEST = 1.0
_ASK_AGAIN = 0.05


def checkpoint(
    run: Run,
    stream: str,
    siblings: Iterable[str] = (),
    unwritten: dict[str, Unwritten] | None = None,
) -> JobResult:
    """Store what is complete, or as much of it as can be done in a moment.

    `siblings` are the other streams of the run that may have a share in the same sessions: what
    they said before goes in before. They are asked for once it is fixed what "before" means.
    `unwritten`: what the supervisor has in memory besides the journals.
    """
    unwritten = unwritten or {}
    began = time.monotonic()
    # Every record that was handed over before this moment is in the files by now, and no later
    # record can belong before it.
    upto = clock.now()
    replayed = replay(gather(run.folder, stream, unwritten=unwritten.get(stream)).frames)
    idle.mark(run, stream, replayed)
    if stores_itself(replayed):
        return take_back_ends(run, stream, replayed, list(replayed.sessions.values()))
    if replayed.gaps:
        # A record was moved meanwhile: not yet in the file that was read first, and gone from the
        # second.
        return JobResult.AGAIN
    announced = [
        session for session in replayed.sessions.values() if session.about.get("settles") is True
    ]
    if announced and take_back_ends(run, stream, replayed, announced) is JobResult.AGAIN:
        return JobResult.AGAIN
    shares = {stream: replayed, **_siblings(run, siblings, unwritten)}
    result = JobResult.DONE
    now = time.monotonic()
    # Reading a long journal takes long as well, so it must be worth it.
    deadline = now + max(_LONGEST, 3 * (now - began))
    with Databases(run, PATIENCE) as databases:
        for session in left_to_us(replayed):
            path = databases.path_of(replayed, session)
            parts = [
                Part(name, shared, time.time(), life_of(share, shared), living=True)
                for name, share in shares.items()
                if (shared := share.sessions.get(session.id)) is not None
                and databases.path_of(share, shared) == path
            ]
            if not _earlier_lives_are_in(run, path, parts[0]):
                result = JobResult.AGAIN
                continue
            try:
                writer = databases.open(path).write(parts, boot=boot_id(), upto=upto)
                stored = False
                for more in writer.steps():
                    stored = True
                    if more and time.monotonic() > deadline:
                        result = JobResult.MORE
                        break
                if stored:
                    for part in parts:
                        write_down(run, part.stream, shares[part.stream].sessions.values())
            except (StateDbError, OSError):  # OSError: the note of it cannot be written; the
                result = JobResult.AGAIN  # marker has it all the same
    return result


def _siblings(
    run: Run, names: Iterable[str], unwritten: dict[str, Unwritten]
) -> dict[str, ReplayedStream]:
    """The streams that share sessions with the stream that is stored. A stream that lost records
    says nothing reliable about order, and is left out."""
    found = {}
    for name in names:
        try:
            replayed = replay(gather(run.folder, name, unwritten=unwritten.get(name)).frames)
        except OSError:
            continue  # it has just been finished
        idle.mark(run, name, replayed)
        if not replayed.gaps and not stores_itself(replayed):
            found[name] = replayed
    return found


def _earlier_lives_are_in(run: Run, path: str, part: Part) -> bool:
    """False if somebody is still storing the messages of an earlier process in this session."""
    until = time.monotonic() + PATIENCE
    while elsewhere.is_being_finished(run.name, part.session.id, path, part.life):
        if time.monotonic() > until:
            return False
        time.sleep(_ASK_AGAIN)
    return True


def left_to_us(replayed: ReplayedStream) -> list[Session]:
    """The sessions that nobody else stores. An empty session does not even create a file."""
    return [
        session
        for session in replayed.sessions.values()
        if session.about.get("settles") is not True and session.all_items()
    ]


def stores_itself(replayed: ReplayedStream) -> bool:
    """True if the agent stores its sessions itself. One session that it has stored is proof, but a
    session that was announced with `settles` counts only for itself."""
    return registry.of_stream(replayed).stores_itself or any(
        session.settles and session.about.get("settles") is not True
        for session in (*replayed.sessions.values(), *replayed.dropped.values())
    )


class Databases:
    """The databases that the sessions of a run are in, each opened when it is needed."""

    def __init__(self, run: Run, patience: float) -> None:
        self._settings = settings_of(run)
        self._patience = patience
        self._open: dict[str, StateDb] = {}

    def __enter__(self) -> Databases:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for database in self._open.values():
            database.close()

    def path_of(self, replayed: ReplayedStream, session: Session) -> str:
        return database_of(session, replayed, self._settings)

    def open(self, path: str) -> StateDb:
        if path not in self._open:
            self._open[path] = StateDb(path, self._patience)
        return self._open[path]

    def have_the_end_of(self, replayed: ReplayedStream, session: Session) -> bool:
        """True if a session has its end in the database: then it need not be remembered. No end is
        written here: a part of the journal that was not read yet may reopen the session."""
        agent = registry.of_stream(replayed)
        if agent.stores_itself:
            # The agent reports the end once it has written it; its hooks may run after that.
            return not agent.died_closing(session, replayed)
        try:
            return self.open(self.path_of(replayed, session)).is_ended(session.id)
        except StateDbError:
            return False


def write_down(run: Run, stream: str, sessions: Iterable[Session]) -> None:
    """Note what is stored beside the journal: the next checkpoint overwrites the marker."""
    known = [record for session in sessions for record in records_of(session)]
    if not known:
        return
    data = b"".join(frames.encode(frames.HANDSHAKE, records.pack(record)) for record in known)
    new = run.path(f"{stream}.storing")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, run.path(stored_name(stream)))
    sync_folder(run.folder)
