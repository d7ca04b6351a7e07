"""Where the replica is: a connection string of libpq, checked before anybody stores it. Pure.

Never holds a password: a command line and `run.json` are read by others. libpq has better places
for it: a service file, a password file, PGPASSWORD.
"""

from __future__ import annotations

from itertools import pairwise

from ...ipc.lightweight.sha256 import sha256

_SCHEMES = ("postgresql://", "postgres://")
_SECRET = ("password", "sslpassword")


def checked(text: str) -> str:
    """The connection string, if it can be used. Raises ValueError with what it should be."""
    if not text.strip():
        raise ValueError("a connection string, as in service=agents")
    if _has_secret(text):
        raise ValueError(
            "a connection string without a password, which other users could read; "
            "put it into ~/.pgpass or a service file (service=NAME)"
        )
    return text


def _has_secret(text: str) -> bool:
    if text.startswith(_SCHEMES):
        rest = text.split("://", 1)[1]
        place, _, query = rest.partition("?")
        user = place.split("/", 1)[0].rpartition("@")[0]
        names = [pair.partition("=")[0].strip().lower() for pair in query.split("&")]
        return ":" in user or any(name in _SECRET for name in names)
    # keyword = 'value' …; a value in quotes may contain anything.
    outside, quoted, escaped = [], False, False
    for letter in text:
        if escaped:
            escaped = False
        elif letter == "\\":
            escaped = True
        elif letter == "'":
            quoted = not quoted
        elif not quoted:
            outside.append(letter)
    words = "".join(outside).replace("=", " = ").split()
    names = [word.lower() for word, after in pairwise(words) if after == "="]
    return any(name in _SECRET for name in names)


def name_of(text: str) -> str:
    """The name of the folder for what goes there."""
    return sha256(text.strip().encode("utf-8", "surrogateescape")).hexdigest()[:12]
