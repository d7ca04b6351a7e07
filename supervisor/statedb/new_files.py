"""The journal mode of a new state.db: the one that Hermes would choose.

Never looks at an existing file: whoever created it has chosen.

Releases of SQLite before 3.51.3 can damage a file in WAL mode that several processes write to
(https://sqlite.org/wal.html#walresetbug). Hermes makes no new file in that mode where its own
SQLite has the fault, or where the user's configuration says so. Which SQLite Hermes has is not
known here; the one of this Python stands for it.
"""

from __future__ import annotations

import os

# The release with the fix, and later releases of older branches that have it.
_MENDED = (3, 51, 3)
_ALSO_MENDED = {(3, 50): 7, (3, 44): 6}


def journal_mode(path: str) -> str:
    """The journal mode of a new file: WAL or DELETE."""
    if _configured(os.path.dirname(os.path.abspath(path))) == "delete":
        return "DELETE"
    return "DELETE" if has_the_wal_fault(_version()) else "WAL"


def has_the_wal_fault(version: tuple[int, int, int]) -> bool:
    mended = _ALSO_MENDED.get(version[:2])
    return version < _MENDED and (mended is None or version[2] < mended)


def _version() -> tuple[int, int, int]:
    """Of the SQLite that Python programs of this machine have."""
    try:
        import sqlite3  # heavy, and needed for a new file only
    except ImportError:
        return _MENDED
    major, minor, patch = sqlite3.sqlite_version_info
    return major, minor, patch


def _configured(home: str) -> str:
    """`database.journal_mode` of Hermes' config.yaml; empty if it does not say."""
    try:
        with open(os.path.join(home, "config.yaml"), encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return ""
    inside = False
    for line in lines:
        name, colon, value = line.partition("#")[0].partition(":")
        if not colon:
            continue
        if not name[:1].isspace():
            inside = name.strip() == "database"
        elif inside and name.strip() == "journal_mode":
            return value.strip().strip("'\"").lower()
    return ""
