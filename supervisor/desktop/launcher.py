"""A launcher as data, and the marker that identifies files we wrote. Pure.

Never depends on a system: `xdg`, `mac` and `systemd` write it for each one.
"""

from __future__ import annotations

import re
from hashlib import sha256

from ...ipc.lightweight.dataclass import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .entry import Entry

MARK = "X-HermesSupervise-Digest="
_MARKED = re.compile(rf"^.*{MARK}([0-9a-f]*).*\n", re.M)

# The state of a file: as we wrote it, edited since, or not ours.
OURS, CHANGED, FOREIGN = "ours", "changed", "foreign"


class CannotWrite(Exception):
    """A launcher cannot be written; the text says why."""


@dataclass
class Launcher:
    name: str
    supervisor: list[str]
    """The command that runs hermes-supervise; options and the agent's command follow."""
    command: list[str]
    icon: str = ""
    """A name from the theme, or a path."""
    terminal: bool = True
    folder: str = ""
    """Where it is started; empty: the system chooses."""
    autostart: bool = False
    """Whether it asked for `recover` at login."""
    wraps: Entry | None = None
    """The launcher that it wraps: its other keys are kept."""

    def words(self, *options: str) -> list[str]:
        return [*self.supervisor, *options, "--", *self.command]


@dataclass
class File:
    """A file to write."""

    path: str
    text: str
    mode: int = 0o644


def signed(text: str) -> str:
    """The text with its digest in the one line that has the marker."""
    if len(_MARKED.findall(text)) != 1:
        raise CannotWrite("the text contains the marker of hermes-supervise")
    return text.replace(MARK, MARK + _digest(text), 1)


def state_of(text: str) -> str:
    """Whether we wrote this text, and whether somebody has edited it since."""
    digests = _MARKED.findall(text)
    if not digests:
        return FOREIGN
    return OURS if digests == [_digest(text)] else CHANGED


def _digest(text: str) -> str:
    return sha256(_MARKED.sub("", text).encode("utf-8")).hexdigest()[:32]


def storable(words: list[str]) -> None:
    """Raises CannotWrite for words that a UTF-8 file cannot contain."""
    for word in words:
        try:
            word.encode("utf-8")
        except UnicodeEncodeError:
            raise CannotWrite(f"{word!r} is not valid text") from None
