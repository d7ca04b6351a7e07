"""Commands that start no agent whose sessions can be read.

Some are agents all the same, known by name, so that one line can say that they are not captured.
Never guesses: a name that other programs have as well counts only with the agent's own arguments.
An agent in Python is not listed, because the shim may see its requests to the model.

Some are Node programs: our guest in Node (agent_shim/node) reports what these ask their model.

Light to import: every launch of such a command asks.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# By program: what people call it, and the first arguments with which it is the agent; without a
# list, any.
_AGENTS: dict[str, tuple[str, tuple[str, ...] | None]] = {
    "agy": ("Antigravity CLI", None),
    "amp": ("Amp", ("threads", "login")),
    "auggie": ("Auggie", None),
    "cline": ("Cline", None),
    "crush": ("Crush", ("run",)),
    "cursor-agent": ("Cursor CLI", None),
    "droid": ("Droid", ("exec",)),
    "goose": ("Goose", ("session", "run")),
    "kilocode": ("Kilo Code", None),
}
_WRAPPERS = frozenset(("env", "nice", "ionice", "nohup", "setsid", "stdbuf", "timeout", "time"))
_NODE = ("node", "nodejs", "npx", "pnpx", "tsx", "ts-node")
# These are Node programs as well; what they start is the user's only with one of these words.
_PACKAGE_MANAGERS = ("npm", "pnpm", "yarn")
_STARTS = ("start", "run", "run-script", "exec", "x", "dlx")
_FIRST_LINE = 128


def title_of(command: list[str]) -> str | None:
    """What people call the agent that a command line starts, if it is one of these."""
    if not any(name in word for name in _AGENTS for word in command):
        return None
    from .command_line import program_of  # only for a command line that contains such a name

    found = program_of(command)
    if found is None or found[1] not in _AGENTS:
        return None
    title, arguments = _AGENTS[found[1]]
    first = command[found[0] + 1 : found[0] + 2]
    is_agent = arguments is None or not first or first[0].startswith("-") or first[0] in arguments
    return title if is_agent else None


def why(title: str, *, has_guest: bool) -> str:
    """`has_guest`: it is a Node program, so that our guest may see its requests to the model."""
    if has_guest:
        return (
            f"it is not known how to read {title}'s sessions: only what it asks its model through "
            "Node's fetch or http will be captured; --watch reads a transcript of JSON lines"
        )
    return (
        f"nothing that {title} says will be captured: it is not known how to read its sessions; "
        "--watch reads a transcript of JSON lines"
    )


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
