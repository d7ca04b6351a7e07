"""A launcher as a systemd user unit, for an agent that runs as a service. Pure.

Never lets systemd signal the agent directly, or end the supervisor because the agent died.
"""

from __future__ import annotations

from .launcher import CannotWrite, Launcher, storable

# Nobody waits at a terminal, so the supervisor waits longer for hooks before it exits.
_HOOK_WAIT = 60
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "%": "%%", "$": "$$"}
_PLAIN = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=:,@%$")


def unit(launcher: Launcher) -> str:
    words = launcher.words("--hook-wait", str(_HOOK_WAIT))
    storable([launcher.name, launcher.folder, *words])
    if any(ord(character) < 32 for character in launcher.name + launcher.folder):
        raise CannotWrite("a name must be one line of text")
    folder = f"WorkingDirectory={_specified(launcher.folder)}\n" if launcher.folder else ""
    return f"""\
[Unit]
Description={_specified(launcher.name)}, supervised

[Service]
Type=exec
ExecStart={" ".join(map(quoted, words))}
{folder}\
# Signal only the supervisor: it forwards the signal once, and recovers what was in progress.
KillMode=mixed
TimeoutStopSec={_HOOK_WAIT + 30}
# If the agent runs out of memory, keep the supervisor alive: it writes the agent's messages.
OOMPolicy=continue

[Install]
WantedBy=default.target
"""


def quoted(word: str) -> str:
    escaped = "".join(_ESCAPES.get(character, character) for character in word)
    return escaped if word and set(word) <= _PLAIN else f'"{escaped}"'


def _specified(text: str) -> str:
    return text.replace("%", "%%")
