"""Texts that came from an agent, made fit for where they go: a database, a terminal.

Never changes what is fit already.
"""

from __future__ import annotations

import re

_SURROGATES = "[\ud800-\udfff]"
# Everything a terminal might obey: C0 but for tab and newline, DEL, C1, and the characters
# that turn the direction of what follows or hide it.
_COMMANDS = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
_INVISIBLE = "[\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffc]"

LONGEST_TITLE = 100


def storable(text: str) -> str:
    """Lone surrogates, which UTF-8 cannot hold, become the replacement character."""
    return text if text.isascii() else re.sub(_SURROGATES, "\ufffd", text)


def printable(text: str) -> str:
    """Safe to show: a message must not move the reader's cursor or retitle the window."""
    return re.sub(_COMMANDS, lambda m: f"\\x{ord(m[0]):02x}", storable(text))


def title(text: str) -> str | None:
    """A title that Hermes accepts, or None if nothing is left of it."""
    text = "".join(c if c >= " " or c.isspace() else "" for c in storable(text))
    kept = re.sub(_INVISIBLE, "", text)
    kept = " ".join(kept.replace("\x7f", "").split())
    return kept[:LONGEST_TITLE].rstrip() or None
