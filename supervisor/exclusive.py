"""One owner a session: `--exclusive` refuses to start a second agent on it, and says who is first.

Never kills anybody, and keeps no lease that could outlive its owner: who holds a session is read
off the runs that live, from what their agents have said, or, before the first word, from the
command line that names the session. Two starts at once are put in order by a lock, held from the
look at the others until there is a run for the next one to see.

A session that an agent opens later, by itself, cannot be refused: that is said once.
"""

from __future__ import annotations

import fcntl
import os

from ..ipc import endpoint
from . import launch
from . import run as runs
from .client import QUESTION
from .watch import lives

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .client import Stream
    from .recovery.told import Told
    from .run import Run
    from .workshop import Job, Workshop

_FOUND = 3
_NOTE = "elsewhere"


def admit(command: list[str], db: str) -> int | None:
    """Before a run is created: a lock to be closed once it is there. Raises CannotLaunch if
    another run holds the session that the command takes up."""
    session = _session_in(command)
    if session is None:
        return None
    path = os.path.join(endpoint.state_folder(), "exclusive.lock")
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (held := _holder(session, db)) is not None:
            why = f"session {session} is open in {held}; --exclusive starts no second agent on it"
            raise launch.CannotLaunch(command[0], launch.OUR_FAILURE, why)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _session_in(command: list[str]) -> str | None:
    from .adapters import resume

    read = resume.read(command)
    return read.session if read is not None else None


def _holder(session: str, db: str, own: str = "") -> str | None:
    """The run that holds a session, in words."""
    others = [folder for folder in runs.left_behind() if os.path.basename(folder) != own]
    if not others:
        return None
    from .recovery.finish import open_in_another_run, settings_of

    # Who has not spoken yet is looked for first: it may speak between the two looks, and who has
    # spoken is seen by the second.
    for folder in others:
        other = runs.Run(folder, -1)
        about = settings_of(other)
        if about.get("db") == db and _is_about_to_open(other, about, session):
            return _described(other, about)
    found = open_in_another_run(own, session, db)
    return _described(found, settings_of(found)) if found is not None else None


def _is_about_to_open(other: Run, about: dict[str, Any], session: str) -> bool:
    """Whether it lives, was started on this session, and has not said so far which it is in."""
    command = about.get("command")
    if not isinstance(command, list) or _session_in([str(word) for word in command]) != session:
        return False
    try:
        if any(_replayed(other, stream).sessions for stream in other.streams()):
            return False
        starting = not os.path.exists(other.path("agent"))
    except OSError:
        return False  # just put away
    if not starting:
        return runs.living_agent(other) is not None
    pid, start = (about.get(name) for name in ("supervisor", "supervisor_start"))
    return isinstance(pid, int) and isinstance(start, int) and lives(pid, start)


def _replayed(run: Run, stream: str) -> Told:
    from .recovery.gather import gather
    from .recovery.replay import replay

    return replay(gather(run.folder, stream).frames)


def _described(other: Run, about: dict[str, Any]) -> str:
    from time import localtime, strftime

    agent = runs.living_agent(other)
    parts = [f"process {agent[0]}"] if agent is not None else []
    if isinstance(started := about.get("started"), int | float):
        parts.append(strftime("since %Y-%m-%d %H:%M:%S", localtime(started)))
    if terminal := about.get("terminal"):
        parts.append(f"on {terminal}")
    return f"run {other.name} ({', '.join(parts)})"


class Lookout:
    """Looks who else has the sessions open that our agent says it is in: when it first speaks,
    and whenever its user does."""

    def __init__(
        self,
        workshop: Workshop,
        run: Run,
        say: Callable[[str], None],
        then: Callable[[Stream], None],
    ) -> None:
        """`then`: who else listens for words."""
        self._then = then
        self._workshop = workshop
        self._run = run
        self._say = say
        self._seen: set[str] = set()
        self._job: Job | None = None

    def spoke(self, stream: Stream) -> None:
        due = stream.name not in self._seen or stream.news == QUESTION
        self._seen.add(stream.name)
        self._then(stream)
        if due and not self._workshop.waits(self._job):
            self._job = self._workshop.add(lambda: self._look(stream.name), done=self._looked)

    def _look(self, stream: str) -> int:
        """In a process of its own, whose words nobody hears: it leaves them in a file."""
        from .recovery.finish import database_of, settings_of

        told = _replayed(self._run, stream)
        found = []
        for session in told.sessions.values():
            if session.ended is None:
                db = database_of(session, told, settings_of(self._run))
                held = _holder(session.id, db, self._run.name)
                if held is not None:
                    found.append(f"session {session.id} is also open in {held}: two agents in it")
        if not found:
            return 0
        with open(self._run.path(_NOTE), "w", encoding="utf-8") as file:
            file.write("\n".join(found))
        return _FOUND

    def _looked(self, code: int) -> None:
        if code == _FOUND:
            from .text import printable

            with open(self._run.path(_NOTE), encoding="utf-8") as file:
                for line in file.read().splitlines():
                    self._say(printable(line))
