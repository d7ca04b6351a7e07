"""The environment variables that carry the shim into an agent, and the environment without them.

Never changes anything: it only computes the changes.
"""

from __future__ import annotations

import os

from ..ipc import endpoint, launchers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inject")
_OURS = (
    endpoint.SOCKET_VARIABLE,
    endpoint.SPOOL_VARIABLE,
    endpoint.RUN_VARIABLE,
    endpoint.RESUMED_VARIABLE,
    endpoint.DEPTH_VARIABLE,
)


def ours() -> dict[str, str]:
    """Our variables as they are now, for a process that is to be supervised as well."""
    return {name: os.environ[name] for name in _OURS if name in os.environ}


def carrying(env: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """An environment with our variables in it and the shim first on PYTHONPATH."""
    path = [_FOLDER, *_without_folder(env.get("PYTHONPATH"))]
    return {**env, **variables, "PYTHONPATH": os.pathsep.join(path)}


def admitting(
    words: list[str], env: Mapping[str, str], variables: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The same start with the shim in it: the command line and its environment."""
    return launchers.admitting(words, carrying(env, variables), _FOLDER)


def without_us() -> dict[str, str | None]:
    """The values of these variables without supervision. None: not set."""
    changed: dict[str, str | None] = dict.fromkeys(_OURS)
    path = os.environ.get("PYTHONPATH")
    if path is not None:
        changed["PYTHONPATH"] = os.pathsep.join(_without_folder(path)) or None
    return changed


def _without_folder(path: str | None) -> list[str]:
    parts = path.split(os.pathsep) if path else []
    return [part for part in parts if os.path.abspath(part or ".") != _FOLDER]
