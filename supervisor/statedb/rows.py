"""What a session has in state.db beside its messages: a title, a lock, the lease of a turn.

Never begins or ends a transaction: the caller's covers what is done here.
"""

from __future__ import annotations

from ..model import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    import apsw

# Upgrading a file older than this, Hermes takes an untitled session with a tool in it for a
# subagent's that lost its parent, and hides it.
FIRST_SCHEMA_WITH_UNTITLED_SESSIONS = 16
_LONGEST_TITLE = 80
_TRIES = 1000


def title_from_first_words(db: apsw.Connection, session_id: str) -> None:
    """Title a session that nobody titled, and that continues no other, by how it begins."""
    row = db.execute(
        "SELECT content FROM messages WHERE session_id = ?1 AND role = 'user' "
        "AND EXISTS (SELECT 1 FROM sessions WHERE id = ?1 AND title IS NULL "
        "AND parent_session_id IS NULL) ORDER BY id LIMIT 1",
        (session_id,),
    ).fetchone()
    if row is None:
        return
    said = row[0] if isinstance(row[0], str) and not row[0].startswith("\x00") else ""
    words = text.title(said) or "Recovered session"
    for number in range(1, _TRIES):
        # Not "#2": by that Hermes knows the continuation of another session.
        mark = f" ({number})" if number > 1 else ""
        title = words[: _LONGEST_TITLE - len(mark)].rstrip() + mark
        taken = db.execute("SELECT 1 FROM sessions WHERE title = ?", (title,)).fetchone()
        if taken is None:
            db.execute("UPDATE sessions SET title = ? WHERE id = ?", (title, session_id))
            return


def unlock(db: apsw.Connection, session_id: str, owner: int, died_at: float) -> None:
    """Release the compression lock that a dead process still has on a session."""
    # The pid may be somebody else's by now, but nobody else took the lock before the death.
    db.execute(
        "DELETE FROM compression_locks WHERE session_id = ? AND holder GLOB ? AND acquired_at <= ?",
        (session_id, f"pid={owner}:*", died_at),
    )


def end_turn_lease(
    db: apsw.Connection, session_id: str, owner: int, namespace: str, died_at: float
) -> None:
    """Release the lease that a dead process still has on a turn, so that the next turn starts at
    once.

    Hermes' holder is `pid=N:turn=SESSION:…`, in later releases `pid=N:pidns=INODE:turn=SESSION:…`.
    One with a namespace that is not the dead process' is somebody else's with the same pid.
    """
    begins = [f"pid={owner}:turn={session_id}:"]
    if namespace:
        begins.append(f"pid={owner}:pidns={namespace}:turn={session_id}:")
    for begin in begins:
        db.execute(
            "DELETE FROM session_turn_leases "
            "WHERE substr(holder, 1, length(?1)) = ?1 AND acquired_at <= ?2",
            (begin, died_at),
        )
