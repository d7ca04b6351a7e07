"""A launcher as an XDG desktop entry. Pure.

Never changes what it does not know. A wrapped launcher keeps all its keys, except those that would
start the agent without supervision.
"""

from __future__ import annotations

from .entry import AUTOSTART, MAIN, escaped, quoted
from .launcher import MARK, CannotWrite, Launcher, signed, storable

_OURS = "X-HermesSupervise-"


def render(launcher: Launcher) -> str:
    """A launcher as a desktop entry, with the marker of hermes-supervise."""
    if "\0" in launcher.name or any(ord(character) < 32 for character in launcher.name):
        raise CannotWrite("a name must be one line of text")
    storable([launcher.name, launcher.icon, launcher.folder])
    front = _exec([*launcher.supervisor, "--notify", "--"])
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
        ("Exec", _exec([*supervisor, "recover", "--notify"])),
        ("Terminal", "false"),
        ("NoDisplay", "true"),
        (MARK[:-1], ""),
    ]
    return _text({MAIN: main})


def _exec(words: list[str]) -> str:
    storable(words)
    return quoted(words)


def _agent_command(launcher: Launcher) -> str:
    """The agent's part of Exec. For a wrapped launcher, its own value, including field codes."""
    wrapped = launcher.wraps.raw("Exec") if launcher.wraps is not None else None
    return wrapped or _exec(launcher.command)


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
