"""Agents that are known by name but cannot be captured, so that one line can say so.

Never guesses: a name that other programs have as well counts only with the agent's own arguments.
An agent in Python is not listed, because the shim may see its requests to the model.
"""

from __future__ import annotations

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
