"""Texts that came from an agent, made fit for where they go: a database, a terminal.

Never changes what is fit already.
"""

from __future__ import annotations


def _through(*ends: tuple[str, str]) -> list[int]:
    return [code for first, last in ends for code in range(ord(first), ord(last) + 1)]


# Everything a terminal might obey: C0 but for tab and newline, DEL, C1, and the characters
# that turn the direction of what follows or hide it.
_COMMANDS = _through(
    ("\x00", "\x08"), ("\x0b", "\x1f"), ("\x7f", "\x9f"), ("\u200e", "\u200f"),
    ("\u202a", "\u202e"), ("\u2066", "\u2069"),
)  # fmt: skip
_INVISIBLE = _through(
    ("\u200b", "\u200f"), ("\u2028", "\u202e"), ("\u2060", "\u2069"), ("\ufeff", "\ufeff"),
    ("\ufff9", "\ufffc"),
)  # fmt: skip
_SHOWN = {code: f"\\x{code:02x}" for code in _COMMANDS}
_LEFT_OUT = dict.fromkeys(_INVISIBLE)

LONGEST_TITLE = 100


def storable(text: str) -> str:
    """Lone surrogates, which UTF-8 cannot hold, become the replacement character."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)
    return text


def printable(text: str) -> str:
    """Safe to show: a message must not move the reader's cursor or retitle the window."""
    return storable(text).translate(_SHOWN)


def title(text: str) -> str | None:
    """A title that Hermes accepts, or None if nothing is left of it."""
    text = "".join(c if c >= " " or c.isspace() else "" for c in storable(text))
    kept = text.translate(_LEFT_OUT)
    kept = " ".join(kept.replace("\x7f", "").split())
    return kept[:LONGEST_TITLE].rstrip() or None
