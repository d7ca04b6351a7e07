"""pure: a launcher as data, and the mark by which we know what we wrote.

Never depends on a system: what it looks like there is for `entry`, `mac` and `systemd`.
"""

from __future__ import annotations

import re
from hashlib import sha256

from ..plain import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .entry import Entry

MARK = "X-HermesSupervise-Digest="
_MARKED = re.compile(rf"^.*{MARK}([0-9a-f]*).*\n", re.M)

# What became of a file since we wrote it.
OURS, CHANGED, FOREIGN = "ours", "changed", "foreign"


class CannotWrite(Exception):
    """The text says why."""


@dataclass
class Launcher:
    name: str
    supervisor: list[str]
    """The words that run us; options and the agent's command follow."""
    command: list[str]
    icon: str = ""
    """A name from the theme, or a path."""
    terminal: bool = True
    folder: str = ""
    """Where it is started; the system's choice where it is not said."""
    autostart: bool = False
    """Whether it asked for leftovers to be finished at login."""
    wraps: Entry | None = None
    """The launcher whose place it takes: all that is not said here stays as it is there."""

    def words(self, *options: str) -> list[str]:
        return [*self.supervisor, *options, "--", *self.command]


@dataclass
class File:
    """What is to be written."""

    path: str
    text: str
    mode: int = 0o644


def signed(text: str) -> str:
    """A text that has one line with the mark in it, with the digest of all the others."""
    if len(_MARKED.findall(text)) != 1:
        raise CannotWrite("it speaks of our own mark")
    return text.replace(MARK, MARK + _digest(text), 1)


def state_of(text: str) -> str:
    """Whether we wrote this, and nobody has changed it since."""
    found = _MARKED.findall(text)
    if not found:
        return FOREIGN
    return OURS if found == [_digest(text)] else CHANGED


def _digest(text: str) -> str:
    return sha256(_MARKED.sub("", text).encode("utf-8")).hexdigest()[:32]


def storable(words: list[str]) -> None:
    """Raises CannotWrite for what no text file can hold."""
    for word in words:
        try:
            word.encode("utf-8")
        except UnicodeEncodeError:
            raise CannotWrite(f"{word!r} is not text") from None
