"""pure: XDG desktop entries, read and written: groups and keys, escapes, the quoting of Exec.

Never changes what it does not understand: of a launcher that is wrapped all keys stay, but for
those that would start the agent without us.
"""

from __future__ import annotations

from ..plain import dataclass
from .launcher import MARK, CannotWrite, Launcher, signed, storable

MAIN = "Desktop Entry"
AUTOSTART = "X-HermesSupervise-Autostart"
_OURS = "X-HermesSupervise-"
# Between an argument and its form in a file stand two layers: the quoting of a command line, and
# the escapes of any value.
_RESERVED = set(" \t\n\r\"'\\><~|&;$*?#()`")
_QUOTED = {character: f"\\{character}" for character in '"`$\\'}
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_MEANT = {"s": " ", "n": "\n", "t": "\t", "r": "\r", "\\": "\\"}
_FIELD_CODES = set("fFuUdDnNickvm")


@dataclass
class Entry:
    """A desktop entry, its values as they stand in the file."""

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
    found, characters = "", iter(value)
    for character in characters:
        if character == "\\":
            after = next(characters, "")
            found += _MEANT.get(after, "\\" + after)
        else:
            found += character
    return found


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
    """The arguments that an Exec gives, without those that stand for files and the like. What
    desktops do with quotes and backslashes where the specification is silent is done here, too."""
    found: list[str] = []
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
                found.append(word)
            word, begun = "", False
        else:
            word, begun = word + (next(characters, "") if character == "\\" else character), True
    found += [word] if begun else []
    return [one for one in map(_without_codes, found) if one is not None]


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
    """A launcher as a desktop entry, with our mark."""
    if "\0" in launcher.name or any(ord(character) < 32 for character in launcher.name):
        raise CannotWrite("a name is one line of text")
    storable([launcher.name, launcher.icon, launcher.folder])
    front = quoted([*launcher.supervisor, "--notify", "--"])
    groups = _groups_of(launcher, front)
    main = _with(
        groups.pop(MAIN),
        {
            "Name": escaped(launcher.name),
            "Icon": escaped(launcher.icon),
            "Exec": f"{front} {_behind(launcher)}",
            "Terminal": "true" if launcher.terminal else "false",
            "Path": escaped(launcher.folder),
            AUTOSTART: "true" if launcher.autostart else "",
        },
    )
    main.append((MARK[:-1], ""))
    return _text({MAIN: main, **groups})


def render_autostart(supervisor: list[str]) -> str:
    """At login: finish what an earlier session of the desktop left."""
    main = [
        ("Type", "Application"),
        ("Name", "Recover interrupted agents"),
        ("Comment", "Finish what agents left that died with the machine or the session"),
        ("Exec", quoted([*supervisor, "recover", "--notify"])),
        ("Terminal", "false"),
        ("NoDisplay", "true"),
        (MARK[:-1], ""),
    ]
    return _text({MAIN: main})


def _behind(launcher: Launcher) -> str:
    """The agent's part of Exec: as it was, files to open and all, where a launcher is wrapped."""
    before = launcher.wraps.raw("Exec") if launcher.wraps is not None else None
    return before or quoted(launcher.command)


def _groups_of(launcher: Launcher, front: str) -> dict[str, list[tuple[str, str]]]:
    if launcher.wraps is None:
        return {
            MAIN: [
                ("Type", "Application"),
                ("Name", ""),
                ("Comment", "Under supervision: nothing is lost when it dies"),
                ("Exec", ""),
                ("Categories", "Utility;"),
            ]
        }
    kept: dict[str, list[tuple[str, str]]] = {}
    for group, pairs in launcher.wraps.groups.items():
        # A service that is started over D-Bus would not be started by Exec.
        known = [
            (key, value)
            for key, value in pairs
            if key != "DBusActivatable" and not key.startswith(_OURS)
        ]
        if group != MAIN:
            known = [(k, f"{front} {v}" if k == "Exec" and v else v) for k, v in known]
        kept[group] = known
    for key, mine, theirs in (
        ("Name", launcher.name, launcher.wraps.get("Name")),
        ("Icon", launcher.icon, launcher.wraps.get("Icon")),
    ):
        if mine != theirs:  # what it is called elsewhere is no longer true
            kept[MAIN] = [pair for pair in kept[MAIN] if not pair[0].startswith(f"{key}[")]
    return kept


def _with(pairs: list[tuple[str, str]], said: dict[str, str]) -> list[tuple[str, str]]:
    """`said` in place of what was there; what is empty is left out."""
    found = [(key, said.pop(key, value)) for key, value in pairs]
    return [(key, value) for key, value in [*found, *said.items()] if value]


def _text(groups: dict[str, list[tuple[str, str]]]) -> str:
    told = [
        f"[{group}]\n" + "".join(f"{key}={value}\n" for key, value in pairs)
        for group, pairs in groups.items()
    ]
    return signed("\n".join(told))
