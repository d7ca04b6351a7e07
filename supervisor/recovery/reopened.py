"""A session that was opened again and left without a message: its end is restored.

Never ends a session that has new messages, or that anybody may still have open: it applies the
rules of `sweep` to this one session.

An agent that resumes a session removes its end mark at once, before the user has said anything. If
the user then leaves, nobody ends it, and it would look open for ever.
"""

from __future__ import annotations

import time

from .reading import settings_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..storage.run_folder import Run


def close_again(run: Run, session: str) -> None:
    """After the end of the run's last process."""
    from ..statedb.sweep import OpenSessions  # only for a run that was started on a session
    from ..statedb.writer import StateDbError
    from .stale_sessions import evidence, judge

    path = str(settings_of(run)["db"])

    def stale(rows: list[dict[str, Any]]) -> list[tuple[str, float, str]]:
        opened = [row for row in rows if row["id"] == session]
        found = judge(opened, evidence(path), time.time())[0] if opened else []
        return [(leaked.session, leaked.at, leaked.reason) for leaked in found]

    try:
        database = OpenSessions(path)
    except StateDbError:
        return  # then it stays open, and `sweep` can end it
    try:
        if stale(database.rows()):  # checked first, so that the lock is not taken in vain
            database.end(stale)
    except StateDbError:
        pass
    finally:
        database.close()
