"""What `doctor` says of an agent that is followed by what it writes itself.

Never changes anything, and reads no transcript.
"""

from __future__ import annotations

import os

from .. import recognise
from .main import Settings
from .ours import Ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..options import Options

_NAMES = {
    "claude": "Claude Code",
    "codex": "Codex CLI",
    "gemini": "Gemini CLI",
    "opencode": "opencode",
}
Told = tuple[str, str, str]
"""A name, ok or note or bad, and a text."""


def checks(command: list[str], options: Options) -> list[Told]:
    """What would be read of this command; nothing if nothing would."""
    about = recognise.to_watch(command, options)
    if not about:
        left_alone = recognise.agent_of(command) is not None
        return (
            [("agent", "note", "its transcripts are not read: --agent none")] if left_alone else []
        )
    settings = Settings({"command": command, "cwd": os.getcwd(), "started": 0.0, **about})
    agent = settings.agent
    told: list[Told] = []
    if agent is not None:
        text = f"{_NAMES[agent]}, followed by what it writes itself (docs/watchers.md)"
        told.append(("agent", "ok", text))
    adapters, databases = settings.sources(Ours(None))
    places = [place for adapter in adapters for place in adapter.folders()]
    places += [place for database in databases for place in database.folders()]
    for place in places:
        missing = "" if os.path.exists(place) else ", which is not there yet"
        told.append(("transcripts", "ok", f"read from {place}{missing}"))
    if databases and (wrong := _not_as_known(databases[0].folders()[0])):
        told.append(("transcripts", "bad", wrong))
    told.append(_watching())
    text = "messages are captured once they are complete; a reply in progress is in no transcript"
    return [*told, ("in progress", "note", text)]


def _not_as_known(folder: str) -> str | None:
    path = os.path.join(folder, "opencode.db")
    if not os.path.exists(path):
        return None
    import apsw

    from ..recovery import connection

    try:
        db = connection.to_read(path, connection.Patience(2.0))
        try:
            query = "SELECT count(*) FROM sqlite_master WHERE name IN ('session','message','part')"
            found = db.execute(query).fetchone()
        finally:
            db.close()
    except apsw.Error as error:
        return f"{path} cannot be read: {error}"
    known = found is not None and found[0] == 3
    return None if known else f"{path} has other tables than those we know; nothing is captured"


def _watching() -> Told:
    from importlib.metadata import version

    from watchdog.observers import Observer
    from watchdog.observers.polling import PollingObserver

    name = f"watchdog {version('watchdog')}"
    if Observer is PollingObserver:
        return "watching files", "note", f"{name}, by looking once a second"
    return "watching files", "ok", f"{name}, told by the kernel"
