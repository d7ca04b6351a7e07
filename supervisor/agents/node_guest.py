"""Puts our guest into a Node agent (agent_shim/node): where its files lie, and the variables.

Never changes the agent's command, and leaves the user's own NODE_OPTIONS in force.

A file that NODE_OPTIONS names must exist wherever Node starts, or Node ends with status 1. So the
guest is copied into the state folder, under a name made from its contents, and never removed: an
agent that still runs after an upgrade or an uninstall may name it.

    <state folder>/node-guest/<checksum>/guest.js and what it loads
"""

from __future__ import annotations

import os
import zlib

from ...ipc import endpoint
from ..process.package import NODE_FOLDER
from .protocol import Agent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .protocol import Place

_OPTIONS = "NODE_OPTIONS"
_FOLDER = "HERMES_SUPERVISE_TAP"
_ENTRY = "guest.js"
# With these, Node reads only files that are named on its command line.
_PERMISSIONS = ("--permission", "--experimental-permission")
_OWN_NAME, _HEX_DIGITS = 12, "0123456789abcdef"
_OFF = ("", "0", "false", "no", "none")


class NodeAgent(Agent):
    """An agent that Node runs, with the guest as its live tap."""

    tap_sees = "each piece of a reply, and each call before it runs, by a guest in its Node"
    sandbox_variables: tuple[str, ...] = ()
    """What puts it into a container, into which our files do not reach."""

    def settings_files(self, env: Mapping[str, str], cwd: str) -> list[str]:
        """The agent's own settings, which may put it into a container."""
        return []

    def tapped(
        self, command: list[str], env: dict[str, str], folder: str
    ) -> tuple[list[str], dict[str, str]] | None:
        at = self.recognise(command)
        if at is None or self._sandbox(command[at:], env, os.getcwd()) is not None:
            return None
        return start_with(command, env, folder)

    def knows_session(self, name: str) -> bool:
        start, _, rest = name.rpartition("-")
        return start != self.name or len(rest) != _OWN_NAME or bool(rest.strip(_HEX_DIGITS))

    def why_not_tapped(self, place: Place) -> str | None:
        return self._sandbox(place.arguments, place.env, place.cwd) or restricted([], place.env)

    def _sandbox(self, arguments: list[str], env: Mapping[str, str], cwd: str) -> str | None:
        if not self.sandbox_variables:
            return None
        files = self.settings_files(env, cwd)
        return sandbox_of(arguments, env, self.sandbox_variables, files)


def own_session(agent: str, stream: str) -> str:
    """The name of a session that its agent had not stored when it died."""
    return f"{agent}-{stream[:_OWN_NAME]}"


def restricted(command: list[str], env: Mapping[str, str]) -> str | None:
    """What keeps Node from reading our files, so that it would end with status 1; None: nothing."""
    from .command_line import assignments  # only when a Node program is started

    options = {**env, **assignments(command)}.get(_OPTIONS, "").split()
    for word in (*command, *options):
        if word in _PERMISSIONS:
            return f"{word} keeps Node from reading files of ours"
    return None


def start_with(
    command: list[str], env: dict[str, str], folder: str | None
) -> tuple[list[str], dict[str, str]] | None:
    """The command and environment that start the same agent with the guest in it, which writes
    into `folder`; without one, it reports the conversations of a program that nobody knows. None:
    Node would not start."""
    from .command_line import assignments  # only when a Node program is started

    if restricted(command, env) is not None:
        return None
    path = os.path.join(installed(), _ENTRY)
    quoted = path.replace("\\", "\\\\").replace('"', '\\"')
    load = f'--require "{quoted}"'
    given = assignments(command).get(_OPTIONS)
    before = env.get(_OPTIONS) if given is None else given
    value = f"{before} {load}" if before else load
    if given is not None:
        changed = f"{_OPTIONS}={given}"
        command = [f"{_OPTIONS}={value}" if word == changed else word for word in command]
    env = {name: text for name, text in env.items() if name != _FOLDER}  # of a run around us
    return command, {**env, _OPTIONS: value, **({_FOLDER: folder} if folder else {})}


def installed() -> str:
    """The folder with our copy of the guest."""
    files = {}
    for name in sorted(os.listdir(NODE_FOLDER)):
        if name.endswith(".js"):
            with open(os.path.join(NODE_FOLDER, name), "rb") as file:
                files[name] = file.read()
    checksum = 0
    for name, data in files.items():
        checksum = zlib.crc32(name.encode() + b"\0" + data, checksum)
    base = endpoint.private_folder(os.path.join(endpoint.state_folder(), "node-guest"))
    folder = endpoint.private_folder(os.path.join(base, f"{checksum:08x}"))
    # The entry last: where it is, the others are.
    for name in sorted(files, key=lambda name: name == _ENTRY):
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            temporary = f"{path}.{os.getpid()}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            with open(os.open(temporary, flags, 0o600), "wb") as target:
                target.write(files[name])
            os.replace(temporary, path)
    return folder


def sandbox_of(
    arguments: list[str], env: Mapping[str, str], variables: Iterable[str], files: Iterable[str]
) -> str | None:
    """What configures a container for the agent, into which our files do not reach; None: nothing.
    `files`: the agent's own settings."""
    for word in arguments:
        if word == "--":
            break
        name, _, value = word.partition("=")
        if name in ("-s", "--sandbox", "--sandbox-image") and value.lower() not in _OFF[1:]:
            return f"{word} puts it into a sandbox"
    for variable in variables:
        if env.get(variable, "").strip().lower() not in _OFF:
            return f"{variable} puts it into a sandbox"
    for path in files:
        found = _settings(path)
        tools = found.get("tools")
        chosen = tools.get("sandbox") if isinstance(tools, dict) else found.get("sandbox")
        if isinstance(chosen, dict):
            chosen = chosen.get("enabled")
        if chosen not in (None, False) and str(chosen).lower() not in _OFF:
            return f"{path} puts it into a sandbox"
    return None


def _settings(path: str) -> dict[str, object]:
    import json  # only when such an agent is started

    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
