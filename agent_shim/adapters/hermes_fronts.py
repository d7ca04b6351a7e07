"""Hermes' front ends: what they keep of a session themselves, and whom they start.

Never writes anything of theirs. A title that the user gave before the session had a row is
in no list of messages: the classic front end keeps it in its own object, the TUI in its
table of sessions. And a child that is to own the agent is told apart from a tool.
"""

from __future__ import annotations

import os
import sys

from .. import environment
from .taps import replace, with_before

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from .taps import Arguments, Named

# Methods of the classic front end that it hands to its agent: one of them is always set.
_CALLBACKS = ("tool_progress_callback", "stream_delta_callback", "thinking_callback")

_ours: dict[str, str] = {}


def pending_title(agent: Any) -> str | None:
    """The title that waits for the session's row, if any does."""
    kept = [
        getattr(getattr(getattr(agent, name, None), "__self__", None), "_pending_title", None)
        for name in _CALLBACKS
    ]
    for session in list(getattr(sys.modules.get("tui_gateway.server"), "_sessions", {}).values()):
        if session.get("session_key") == agent.session_id:
            kept.append(session.get("pending_title"))
    return next((title for title in kept if isinstance(title, str) and title), None)


def loaded(module: ModuleType) -> None:
    """The front ends' module that starts a process to own the agent has been imported."""
    for found in list(vars(module).values()):
        if isinstance(found, type) and "_spawn_locked" in vars(found):
            replace(found, "_spawn_locked", lambda original: with_before(_carry_on, original))


def _carry_on(host: Any, args: Arguments, named: Named) -> None:
    host.env = {**(host.env or {}), **(_ours or environment.carrying())}


def hermes_variables() -> dict[str, str]:
    """What the hooks will need to find the same Hermes home, whoever runs them."""
    return {name: value for name, value in os.environ.items() if name.startswith("HERMES_")}


def hide_from_tools() -> None:
    """From here on children are tools: they get the environment they would have without us.

    An exec of the agent itself (Hermes relaunches so) gets ours back.
    """
    _ours.update(environment.carrying())
    for name, value in environment.without_us().items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

    def rearmed_execv(path: Any, args: Any) -> Any:
        os.environ.update(_ours)
        return execv(path, args)

    def rearmed_execve(path: Any, args: Any, env: Any) -> Any:
        return execve(path, args, {**env, **_ours})

    # os.execvp and its kind call these two by name.
    execv, execve = os.execv, os.execve
    vars(os).update(execv=rearmed_execv, execve=rearmed_execve)
