"""The format of XDG desktop entries: groups and keys, escapes, the quoting of Exec. Pure.

Never drops what it does not know.
"""

from __future__ import annotations

from ...ipc.lightweight.dataclass import dataclass

MAIN = "Desktop Entry"
AUTOSTART = "X-HermesSupervise-Autostart"
# An argument is encoded twice: quoted as part of a command line, then escaped as a value.
_RESERVED = set(" \t\n\r\"'\\><~|&;$*?#()`")
_QUOTED = {character: f"\\{character}" for character in '"`$\\'}
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_UNESCAPED = {"s": " ", "n": "\n", "t": "\t", "r": "\r", "\\": "\\"}
_FIELD_CODES = set("fFuUdDnNickvm")


@dataclass
class Entry:
    """A desktop entry, with its values as they are in the file."""

    id: str
    path: str
    groups: dict[str, list[tuple[str, str]]]

    def raw(self, key: str, group: str = MAIN) -> str | None:
        return dict(self.groups.get(group, [])).get(key)

    def get(self, key: str) -> str:
        return unescaped(self.raw(key) or "")

    def says(self, key: str) -> bool:
        return self.raw(key) == "true"


def parse(id: str, path: str, text: str) -> Entry:
    groups: dict[str, list[tuple[str, str]]] = {}
    current: list[tuple[str, str]] = []
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("[") and line.endswith("]"):
            current = groups.setdefault(line[1:-1], [])
        elif line and not line.startswith("#") and "=" in line:
            key, _, value = line.partition("=")
            current.append((key.rstrip(), value.lstrip()))
    return Entry(id, path, groups)


def escaped(text: str) -> str:
    text = "".join(_ESCAPES.get(character, character) for character in text)
    return f"\\s{text[1:]}" if text.startswith(" ") else text


def unescaped(value: str) -> str:
    text, characters = "", iter(value)
    for character in characters:
        if character == "\\":
            after = next(characters, "")
            text += _UNESCAPED.get(after, "\\" + after)
        else:
            text += character
    return text


def quoted(words: list[str]) -> str:
    """The value of Exec for these arguments."""
    return escaped(" ".join(map(_quoted_word, words)))


def _quoted_word(word: str) -> str:
    word = word.replace("%", "%%")
    if word and not _RESERVED & set(word):
        return word
    return '"' + "".join(_QUOTED.get(character, character) for character in word) + '"'


def arguments(value: str) -> list[str]:
    """The arguments in an Exec value, without field codes (%f and so on).

    Where the specification does not define quotes and backslashes, this does what desktops do.
    """
    words: list[str] = []
    word, quote, begun = "", "", False
    characters = iter(unescaped(value))
    for character in characters:
        if quote:
            if character == quote:
                quote = ""
            elif character == "\\" and quote == '"':
                after = next(characters, "")
                word += after if after in _QUOTED else "\\" + after
            else:
                word += character
        elif character in "\"'":
            quote, begun = character, True
        elif character in " \t\n":
            if begun:
                words.append(word)
            word, begun = "", False
        else:
            word, begun = word + (next(characters, "") if character == "\\" else character), True
    words += [word] if begun else []
    return [plain for plain in map(_without_codes, words) if plain is not None]


def _without_codes(word: str) -> str | None:
    pieces = word.split("%%")
    coded = any(
        piece[i + 1 : i + 2] in _FIELD_CODES
        for piece in pieces
        for i, character in enumerate(piece)
        if character == "%"
    )
    return None if coded else "%".join(pieces)
