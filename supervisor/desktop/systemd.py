"""pure: a launcher as a unit of systemd's, for an agent that runs as a service of the user.

Never lets systemd end those whom we end, nor end us for what became of the agent.
"""

from __future__ import annotations

from .launcher import CannotWrite, Launcher, storable

# Nobody waits at a terminal: hooks are given the time they need before we leave.
_HOOK_WAIT = 60
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "%": "%%", "$": "$$"}
_PLAIN = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=:,@%$")


def unit(launcher: Launcher) -> str:
    words = launcher.words("--hook-wait", str(_HOOK_WAIT))
    storable([launcher.name, launcher.folder, *words])
    if any(ord(character) < 32 for character in launcher.name + launcher.folder):
        raise CannotWrite("a name is one line of text")
    folder = f"WorkingDirectory={_specified(launcher.folder)}\n" if launcher.folder else ""
    return f"""\
[Unit]
Description={_specified(launcher.name)}, supervised

[Service]
Type=exec
ExecStart={" ".join(map(quoted, words))}
{folder}\
# Ask the supervisor alone: it passes the signal on, once, and recovers what was in progress.
KillMode=mixed
TimeoutStopSec={_HOOK_WAIT + 30}
# The agent ran out of memory: let the supervisor live, which writes down what it had said.
OOMPolicy=continue

[Install]
WantedBy=default.target
"""


def quoted(word: str) -> str:
    told = "".join(_ESCAPES.get(character, character) for character in word)
    return told if word and set(word) <= _PLAIN else f'"{told}"'


def _specified(text: str) -> str:
    return text.replace("%", "%%")
