"""Commands whose program is Node, but which start no agent that is known.

Our guest in Node (agent_shim/node) reports what such a program asks its model. Light to import:
every launch of an unknown command asks.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_WRAPPERS = frozenset(("env", "nice", "ionice", "nohup", "setsid", "stdbuf", "timeout", "time"))
_NODE = ("node", "nodejs", "npx", "pnpx", "tsx", "ts-node")
# These are Node programs as well; what they start is the user's only with one of these words.
_PACKAGE_MANAGERS = ("npm", "pnpm", "yarn")
_STARTS = ("start", "run", "run-script", "exec", "x", "dlx")
_FIRST_LINE = 128


def is_node(command: list[str], env: Mapping[str, str]) -> bool:
    at, name = 0, os.path.basename(command[0])
    if name in _WRAPPERS:
        from .command_line import runtime_of  # start-up: only for such a command

        at, name = runtime_of(command) or (0, name)
    if name in _PACKAGE_MANAGERS:
        return next((word for word in command[at + 1 :] if word[:1] != "-"), "") in _STARTS
    return name in _NODE or _is_script(command[at], env)


def _is_script(program: str, env: Mapping[str, str]) -> bool:
    """True for a file whose first line names Node."""
    folders = [""] if "/" in program else env.get("PATH", "").split(os.pathsep)
    for folder in folders:
        try:
            with open(os.path.join(folder, program), "rb", buffering=0) as file:
                first = (file.read(_FIRST_LINE) or b"").partition(b"\n")[0]
        except OSError:
            continue
        words = first[2:].split() if first.startswith(b"#!") else []
        return any(os.path.basename(word) in (b"node", b"nodejs") for word in words)
    return False
