"""What Hermes makes of a session's row beside its messages: who is hidden, who is locked.

Never begins or ends a transaction: the caller's covers what is done here.
"""

from __future__ import annotations

from .. import text

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
    """Let a session be compressed again whose lock the dead process took with it."""
    # The pid may be somebody else's by now, but nobody else took the lock before the death.
    db.execute(
        "DELETE FROM compression_locks WHERE session_id = ? AND holder GLOB ? AND acquired_at <= ?",
        (session_id, f"pid={owner}:*", died_at),
    )
