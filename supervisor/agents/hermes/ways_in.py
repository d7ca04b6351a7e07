"""The ways into Hermes, in order, and the reason why each is taken or not.

Never starts anything.

    PYTHONPATH    the shim is a `sitecustomize` on it. Python reads it unless it is cleared on the
                  way, or Python is started in isolation (`-I`, `-E`, `-S`)
    launcher      an installer's script that does one of these is bypassed: what it would
                  start is started, so that the shim is in it. Two kinds are known:
                      up to 0.20   bash: unset PYTHONPATH; unset PYTHONHOME;
                                   exec <python> <entry point> "$@"
                      from 0.21    sh: exec <root>/.hermes/bin/hermes "$@", and that one is
                                   sh: exec <python> -I -c '<bootstrap>' "$@"
                  A script that `ipc/launchers.py` does not understand runs untouched
    children      a Hermes that Hermes starts: the shim in the parent passes itself on
                  (agent_shim/children.py)

Processes that somebody else starts (a service, the desktop) would need a fourth way.
"""

from __future__ import annotations

import os

from ....ipc import endpoint, isolation, launchers
from ...process.platform import below, command_line
from ..protocol import WayIn

NAMES = ("hermes", "hermes-agent", "hermes-acp")
MODULES = ("hermes_cli", "run_agent", "acp_adapter", "tui_gateway")
# What the code that a 0.21 launcher passes to Python imports before anything else of Hermes.
BOOTSTRAP = "import hermes_bootstrap"

_NOTHING = "nothing that Hermes says will be captured"
OUT_OF_REACH = "Hermes could not be captured, so nothing would have been recovered"
_MORE = "run `hermes-supervise doctor -- COMMAND` to see why"


def ways_in(command: list[str], env: dict[str, str], folder: str) -> list[WayIn]:
    """All ways in; the first that is taken counts. `env` has the shim on PYTHONPATH already."""
    if env.get(endpoint.SWITCH_VARIABLE) == "0":
        return [WayIn("PYTHONPATH", "HERMES_SUPERVISE=0 switches the shim off", None, env)]
    ways = _by_path(command, env) or _by_launcher(command, env, folder)
    inside = any(way.taken for way in ways)
    reason = "the shim in their parent passes itself on" if inside else "no shim in their parent"
    children = WayIn("children", reason, command if inside else None, env)
    return [*ways, children]


def _by_path(command: list[str], env: dict[str, str]) -> list[WayIn] | None:
    """None if a launcher script or a switch is in the way."""
    if launchers.is_python(command[0]):
        reason = None if isolation.switches(command) else "this Python reads it"
    else:
        found = launchers.followed(command)
        reason = "the program is started as it is" if found is None else None
        if isinstance(found, launchers.Launcher) and not found.keeps_us_out:
            reason = "the launcher script leaves it alone"
        if found is None and (own := isolation.switches(_interpreter(command))):
            why = f"the first line of {command[0]} starts Python with {_spelled(own)}"
            return [WayIn("PYTHONPATH", why, None, env), WayIn("launcher", "none", None, env)]
    if reason is None:
        return None
    not_needed = WayIn("launcher", "not needed", None, env)
    return [WayIn("PYTHONPATH", reason, command, env), not_needed]


def _interpreter(command: list[str]) -> list[str]:
    words = launchers.first_line(launchers.on_path(command[0]))
    return words if words and launchers.is_python(words[0]) else []


def _by_launcher(command: list[str], env: dict[str, str], folder: str) -> list[WayIn]:
    found = None if launchers.is_python(command[0]) else launchers.followed(command)
    if isinstance(found, str):
        reason = f"{found}: it may clear PYTHONPATH, and only its processes can show that"
        by_path = WayIn("PYTHONPATH", reason, None, env)
        by_path.uncertain = True
        unread = "not understood, so the script runs untouched"
        return [by_path, WayIn("launcher", unread, None, env)]
    behind = command if found is None else found.command
    isolated = _spelled(isolation.switches(behind)) if launchers.is_python(behind[0]) else ""
    reason = f"Python is started with {isolated} and ignores it"
    if found is not None and "PYTHONPATH" in found.unset:
        reason = "the launcher script clears it"
    by_path = WayIn("PYTHONPATH", reason, None, env)
    if found is None and not is_bootstrap(command):
        return [by_path, WayIn("launcher", "none; the switch is your own", None, env)]
    words, changed = launchers.admitting(command, env, folder)
    if launchers.is_python(words[0]) and isolation.switches(words):
        reason = f"understood, but {_spelled(isolation.switches(words))} cannot be replaced"
        return [by_path, WayIn("launcher", reason, None, env)]
    how = f"without {isolated}, whose effects are kept" if isolated else "with PYTHONPATH"
    shown = " ".join(words[: isolation.start_of(words)] if isolated else behind[:2])
    return [by_path, WayIn("launcher", f"bypassed: {shown}, {how}", words, changed)]


def _spelled(switches: str) -> str:
    return " ".join(f"-{letter}" for letter in switches)


def lost_from_the_start(ways: list[WayIn]) -> str:
    if os.environ.get(endpoint.SWITCH_VARIABLE) == "0":
        return ""  # as the user wants it
    if (handed_over := container()) is not None:
        return f"{_NOTHING}: it runs in the container {handed_over}"
    if any(way.taken or way.uncertain for way in ways):
        return ""
    return f"{_NOTHING}: {ways[0].reason}"


def why_not_captured(pid: int) -> str | None:
    """What in the processes of a running Hermes keeps the shim out."""
    for process in (pid, *(child for child, _ in below(pid))):
        words = command_line(process)
        if words and launchers.is_python(words[0]) and (found := isolation.switches(words)):
            return f"its Python was started with {_spelled(found)} and ignores PYTHONPATH"
    return None


def out_of_reach(sign: str, why: str | None) -> str | None:
    """The notice for the user if Hermes ran where the shim could not get in. `sign` is the file
    that the shim makes once it is inside."""
    if os.environ.get(endpoint.SWITCH_VARIABLE) == "0":
        return None
    handed_over = container()
    if handed_over is not None:
        why = f"it runs in the container {handed_over}"
    elif os.path.exists(sign):
        return None
    return f"{OUT_OF_REACH}: {why}" if why else f"{OUT_OF_REACH}; {_MORE}"


def bootstrap(words: list[str]) -> str | None:
    """The part of a 0.21 start after which Hermes can be imported."""
    if not launchers.is_python(words[0]) or not is_bootstrap(words):
        return None
    code = words[isolation.start_of(words) + 1]
    return code[: code.index(BOOTSTRAP) + len(BOOTSTRAP)]


def is_bootstrap(command: list[str]) -> bool:
    """Whether this is the start of Hermes that a 0.21 launcher ends in, and prints if asked to."""
    index = isolation.start_of(command)
    code = command[index + 1 : index + 2]
    return command[index : index + 1] == ["-c"] and BOOTSTRAP in "".join(code)


def arguments_at(command: list[str]) -> int | None:
    """Where Hermes' own arguments begin, if a command line says by itself that it runs Hermes."""
    words = [os.path.basename(word) for word in command]
    if not words:
        return None
    if words[0] in NAMES:
        return 1
    if not words[0].startswith(("python", "pypy")):
        return None
    if is_bootstrap(command):
        return isolation.start_of(command) + 2
    for index, word in enumerate(words[1:], 1):
        if word == "-m":
            module = "".join(command[index + 1 : index + 2]).split(".")[0]
            return index + 2 if module in MODULES else None
        if not word.startswith("-"):
            return index + 1 if word in NAMES else None
    return None


def container() -> str | None:
    """The container that Hermes hands over to instead of running here, by name."""
    inside = os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv")
    if inside or os.environ.get("HERMES_DEV") == "1":
        return None
    home = os.environ.get("HERMES_HOME") or os.path.expanduser("~/.hermes")
    try:
        with open(os.path.join(home, ".container-mode"), encoding="utf-8") as file:
            fields = dict(line.strip().split("=", 1) for line in file if "=" in line)
    except (OSError, ValueError):
        return None
    return fields.get("container_name", "hermes-agent")


def installed_here() -> dict[str, object]:
    """The interpreter of the Hermes that the shell would start here, and its variables."""
    found = launchers.followed(["hermes"])
    words = found.command if isinstance(found, launchers.Launcher) else _interpreter(["hermes"])
    if not words or not launchers.is_python(words[0]):
        return {}
    env = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("HERMES_") and not name.startswith("HERMES_SUPERVISE")
    }
    return {"executable": words[0], "env": env}
