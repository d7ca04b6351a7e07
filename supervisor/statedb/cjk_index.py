"""The index for Chinese, Japanese and Korean text, which needs a tokenizer that is not SQLite's.

Hermes makes it where the user has built that tokenizer, a library in `lib/` of Hermes' folder.
Triggers keep the index, so without the tokenizer no message can be inserted at all.

Never puts the tokens of another tokenizer into it: the user's own library is loaded. If that fails,
the index is left as Hermes itself leaves it: a note in state_meta says that it is stale, and its
triggers are dropped. Hermes then searches by other means until the index is rebuilt.
"""

from __future__ import annotations

import os
import stat

import apsw

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .database import Database

_TABLE = "messages_fts_cjk"
_TRIGGERS = (f"{_TABLE}_insert", f"{_TABLE}_delete", f"{_TABLE}_update")
_STALE = "fts_cjk_stale"
_LIBRARY = os.path.join("lib", "libfts5_cjk.so")
# Of the user's environment, as Hermes reads it.
_VARIABLE = "HERMES_FTS5_CJK_SO"


class CjkIndex:
    """The index of one open state.db."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tried = False
        self._left_behind = False

    def admit_messages(self) -> None:
        """Within a transaction: make sure that messages can be written."""
        triggers = self._triggers()
        if not triggers or self._is_usable():
            return
        self._database.set_meta(_STALE, "1")
        for name in triggers:
            self._database.execute(f"DROP TRIGGER {name}")
        self._left_behind = True

    def take_note(self) -> str | None:
        """What the user has to know about it, returned once."""
        if not self._left_behind:
            return None
        self._left_behind = False
        return (
            "the index for Chinese, Japanese and Korean text is stale: its tokenizer "
            f"({library(self._database.path)}) could not be loaded; "
            "`hermes sessions optimize-storage` rebuilds it"
        )

    def _triggers(self) -> list[str]:
        query = f"SELECT name FROM sqlite_master WHERE type = 'trigger' AND name IN {_TRIGGERS}"
        return [name for [name] in self._database.execute(query)]

    def _is_usable(self) -> bool:
        if not self._tried:
            self._tried = True
            self._load()
        try:
            # Only a question has to be cut into tokens: SQLite looks for the tokenizer then.
            query = f"SELECT 1 FROM {_TABLE} WHERE {_TABLE} MATCH 'a' LIMIT 1"
            self._database.execute(query).fetchall()
        except apsw.SQLError:  # no such tokenizer
            return False
        return True

    def _load(self) -> None:
        path = library(self._database.path)
        connection = self._database.connection
        if not is_trusted(path):
            return
        connection.enable_load_extension(True)
        try:
            connection.load_extension(path)
        except apsw.Error:
            pass  # not one, or not one for this machine
        finally:
            connection.enable_load_extension(False)


def library(db: str) -> str:
    """Where the user's tokenizer is, if there is one."""
    named = os.environ.get(_VARIABLE)
    if named:
        return os.path.expanduser(named)
    return os.path.join(os.path.dirname(os.path.abspath(db)), _LIBRARY)


def is_trusted(path: str) -> bool:
    """True if only the user and root can have written it: it is code, and it will run."""
    try:
        for name in (path, os.path.dirname(os.path.abspath(path))):
            status = os.stat(name)
            if status.st_uid not in (0, os.geteuid()):
                return False
            if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return False
    except OSError:
        return False
    return True
