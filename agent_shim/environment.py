"""The variables that carry us into an agent, and the environment without them.

Never changes anything: it only tells what would have to change.
"""

from __future__ import annotations

import os

from ..ipc import endpoint

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inject")
_OURS = (
    endpoint.SOCKET_VARIABLE,
    endpoint.SPOOL_VARIABLE,
    endpoint.RUN_VARIABLE,
    endpoint.RESUMED_VARIABLE,
)


def carrying() -> dict[str, str]:
    """The variables as they are now, to be given to a process that is to be followed."""
    return {name: os.environ[name] for name in (*_OURS, "PYTHONPATH") if name in os.environ}


def without_us() -> dict[str, str | None]:
    """What these variables would be had we never been here; None: not set."""
    changed: dict[str, str | None] = dict.fromkeys(_OURS)
    path = os.environ.get("PYTHONPATH")
    if path is not None:
        kept = [part for part in path.split(os.pathsep) if os.path.abspath(part or ".") != _FOLDER]
        changed["PYTHONPATH"] = os.pathsep.join(kept) or None
    return changed
