"""The reply in progress of opencode, through a plugin of ours in it (plugin.js).

opencode calls the plugin with each piece of a reply, and before each tool. The plugin is given by
OPENCODE_CONFIG_CONTENT, which opencode merges with the user's own configuration, plugins included;
a value that the user has set is merged here.

    runs/<run>/tap/plugin.js        a copy, so that an upgrade in mid-run does not matter
    runs/<run>/tap/sessions.jsonl   the sessions that this opencode has: two in one folder are kept
                                    apart by it
    runs/<run>/tap/msg_*.jsonl      a message each, removed when the database has it

opencode's database is authoritative for complete messages: what was reported from there is not
pending here (`Tap.pending`).
"""

from __future__ import annotations

import glob
import json
import os

from ..command_line import assignments, parse
from ..live import Live

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from ..command_line import Arguments

_PLUGIN = "plugin.js"
_SESSIONS = "sessions.jsonl"
_VARIABLE = "OPENCODE_CONFIG_CONTENT"
# The kernel's limit for one variable, less what we add.
_LONGEST = 120 * 1024
_WITHOUT = ("--pure", "--version", "-v", "--help", "-h")
# Subcommands that have sessions, beside those that `Arguments.calls` names.
_SERVERS = ("serve", "web", "acp", "pr")
_DEPENDENCY = "@opencode-ai/plugin"


def start_with(
    command: list[str], env: dict[str, str], folder: str
) -> tuple[list[str], dict[str, str]] | None:
    """The command and environment that make opencode load the plugin, which is put into `folder`;
    None if it cannot be added."""
    set_by_env = _VARIABLE in assignments(command)
    given = _given({**env, **assignments(command)})
    plugins = None if given is None else given.setdefault("plugin", [])
    if given is None or not isinstance(plugins, list):
        return None
    from urllib.parse import quote  # not for every launch

    path = os.path.join(folder, _PLUGIN)
    with open(os.path.join(os.path.dirname(__file__), _PLUGIN), "rb") as ours:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(path, flags, 0o600), "wb") as file:
            file.write(ours.read())
    plugins.append("file://" + quote(path))
    text = json.dumps(given, ensure_ascii=False)
    if len(os.fsencode(text)) > _LONGEST:
        return None
    if not set_by_env:
        return command, {**env, _VARIABLE: text}
    start = f"{_VARIABLE}="
    return [start + text if word.startswith(start) else word for word in command], env


def why_not(
    command: list[str], at: int, grammar: Arguments, env: Mapping[str, str], cwd: str
) -> str | None:
    """Why the plugin would not be loaded; None if it would. `at`: where its own arguments begin."""
    words = command[at:]
    for word in words:
        if word in _WITHOUT:
            return f"with {word} it loads no plugin"
    if env.get("OPENCODE_PURE", "").lower() in ("1", "true"):
        return "OPENCODE_PURE keeps plugins out"
    parsed = parse(grammar, command, at)
    if not parsed.has_session and words[:1] not in [[name] for name in _SERVERS]:
        return "this command has no session"
    if _given({**env, **assignments(command)}) is None:
        return f"a plugin cannot be added to the {_VARIABLE} that is set"
    for folder in _config_folders(env, cwd):
        if not _is_installed(folder):
            return (
                "opencode would make you wait for its one-time download of what plugins need into "
                f"{folder}; it does that by itself in the background of its first start"
            )
    return None


def _given(env: Mapping[str, str]) -> dict[str, Any] | None:
    """What the user has set; None: not understood (opencode allows comments in it)."""
    try:
        found = json.loads(env.get(_VARIABLE) or "{}")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _config_folders(env: Mapping[str, str], cwd: str) -> Iterator[str]:
    """The folders whose dependencies opencode installs before it loads a plugin."""
    home = env.get("HOME") or os.path.expanduser("~")
    base = env.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    yield os.path.join(base, "opencode")
    others = [env.get("OPENCODE_CONFIG_DIR") or "", os.path.join(home, ".opencode")]
    above = os.path.realpath(cwd)
    while above != os.path.dirname(above):
        others.append(os.path.join(above, ".opencode"))
        if os.path.exists(os.path.join(above, ".git")):
            break
        above = os.path.dirname(above)
    yield from (folder for folder in others if os.path.isdir(folder))


def _is_installed(folder: str) -> bool:
    if os.path.isdir(folder) and not os.access(folder, os.W_OK):
        return True  # then it does not try
    if not os.path.isdir(os.path.join(folder, "node_modules")):
        return False
    try:
        with open(os.path.join(folder, "package-lock.json"), encoding="utf-8") as file:
            return _DEPENDENCY in json.load(file)["packages"][""]["dependencies"]
    except (OSError, ValueError, LookupError, TypeError):
        return False


class Tap:
    """What the plugin has written so far."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.loaded = False
        """The plugin is in an opencode of this run."""
        self.sessions: set[str] = set()
        self.messages: dict[str, Live] = {}

    def look(self) -> None:
        noted = _sessions_in(os.path.join(self.folder, _SESSIONS))
        self.loaded = noted is not None
        self.sessions = noted or set()
        for name in sorted(os.listdir(self.folder)):
            if name.endswith(".jsonl") and name != _SESSIONS:
                id = name.removesuffix(".jsonl")
                self.messages.setdefault(id, Live(os.path.join(self.folder, name))).look()

    def forget(self, message: str) -> None:
        """The database has the whole message, and it was reported."""
        if (live := self.messages.pop(message, None)) is not None:
            try:
                os.unlink(live.path)
            except OSError:
                pass


def elsewhere(runs: str) -> set[str]:
    """The sessions of opencodes in all runs, as their plugins report them."""
    paths = glob.glob(os.path.join(glob.escape(runs), "*", "tap", _SESSIONS))
    return {session for path in paths for session in _sessions_in(path) or ()}


def _sessions_in(path: str) -> set[str] | None:
    found = set()
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    found.add(str(json.loads(line)["session"]))
                except (ValueError, TypeError, LookupError):
                    continue  # the first line, or a torn one
    except OSError:
        return None
    return found
