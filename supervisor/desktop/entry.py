"""XDG desktop entries: parsing and writing of groups and keys, escapes, the quoting of Exec. Pure.

Never changes what it does not know. A wrapped launcher keeps all its keys, except those that would
start the agent without supervision.
"""

from __future__ import annotations

from ...ipc.lightweight.dataclass import dataclass
from .launcher import MARK, CannotWrite, Launcher, signed, storable

MAIN = "Desktop Entry"
AUTOSTART = "X-HermesSupervise-Autostart"
_OURS = "X-HermesSupervise-"
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
    storable(words)
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


# -- rendering -------------------------------------------------------------------------------


def render(launcher: Launcher) -> str:
    """A launcher as a desktop entry, with the marker of hermes-supervise."""
    if "\0" in launcher.name or any(ord(character) < 32 for character in launcher.name):
        raise CannotWrite("a name must be one line of text")
    storable([launcher.name, launcher.icon, launcher.folder])
    front = quoted([*launcher.supervisor, "--notify", "--"])
    groups = _groups_of(launcher, front)
    main = _with(
        groups.pop(MAIN),
        {
            "Name": escaped(launcher.name),
            "Icon": escaped(launcher.icon),
            "Exec": f"{front} {_agent_command(launcher)}",
            "Terminal": "true" if launcher.terminal else "false",
            "Path": escaped(launcher.folder),
            AUTOSTART: "true" if launcher.autostart else "",
        },
    )
    main.append((MARK[:-1], ""))
    return _text({MAIN: main, **groups})


def render_autostart(supervisor: list[str]) -> str:
    """An entry that runs `recover` at login."""
    main = [
        ("Type", "Application"),
        ("Name", "Recover interrupted agents"),
        ("Comment", "Recover agents that died with the machine or the desktop session"),
        ("Exec", quoted([*supervisor, "recover", "--notify"])),
        ("Terminal", "false"),
        ("NoDisplay", "true"),
        (MARK[:-1], ""),
    ]
    return _text({MAIN: main})


def _agent_command(launcher: Launcher) -> str:
    """The agent's part of Exec. For a wrapped launcher, its own value, including field codes."""
    wrapped = launcher.wraps.raw("Exec") if launcher.wraps is not None else None
    return wrapped or quoted(launcher.command)


def _groups_of(launcher: Launcher, front: str) -> dict[str, list[tuple[str, str]]]:
    if launcher.wraps is None:
        return {
            MAIN: [
                ("Type", "Application"),
                ("Name", ""),
                ("Comment", "Supervised: nothing is lost when it dies"),
                ("Exec", ""),
                ("Categories", "Utility;"),
            ]
        }
    kept: dict[str, list[tuple[str, str]]] = {}
    for group, pairs in launcher.wraps.groups.items():
        # A service that D-Bus activates would not be started through Exec.
        pairs = [
            (key, value)
            for key, value in pairs
            if key != "DBusActivatable" and not key.startswith(_OURS)
        ]
        if group != MAIN:
            pairs = [(k, f"{front} {v}" if k == "Exec" and v else v) for k, v in pairs]
        kept[group] = pairs
    for key, mine, theirs in (
        ("Name", launcher.name, launcher.wraps.get("Name")),
        ("Icon", launcher.icon, launcher.wraps.get("Icon")),
    ):
        if mine != theirs:  # translations of the old value no longer fit
            kept[MAIN] = [pair for pair in kept[MAIN] if not pair[0].startswith(f"{key}[")]
    return kept


def _with(pairs: list[tuple[str, str]], changes: dict[str, str]) -> list[tuple[str, str]]:
    """The pairs with these changes; empty values are left out."""
    updated = [(key, changes.pop(key, value)) for key, value in pairs]
    return [(key, value) for key, value in [*updated, *changes.items()] if value]


def _text(groups: dict[str, list[tuple[str, str]]]) -> str:
    sections = [
        f"[{group}]\n" + "".join(f"{key}={value}\n" for key, value in pairs)
        for group, pairs in groups.items()
    ]
    return signed("\n".join(sections))
