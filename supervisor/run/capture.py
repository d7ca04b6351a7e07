"""Warns about an agent that is not captured, or not as a whole: before, during and after the run.

Never prints while the agent has the terminal: what it finds then is kept for `ps` and for the
notice at the end, and noted for the next start (storage/installs.py).
"""

from __future__ import annotations

import os

from ...ipc import launchers
from ..process import launch
from ..storage import installs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..agents.protocol import Agent, WayIn
    from ..storage.run_folder import Run
    from .supervision import Supervision

# Seconds. By the first look, a launcher has executed its Python, if the machine is not busy; by the
# second, an agent has imported what the shim waits for, or never will.
_LOOKS = (1.0, 10.0)


def start_of(agent: Agent, command: list[str]) -> list[str]:
    """What runs the agent, without its arguments."""
    at = agent.recognise(command) or 1
    return [os.path.abspath(launchers.on_path(command[0])), *command[1:at]]


def say_before(agent: Agent, command: list[str], ways: list[WayIn]) -> None:
    """Warn before the start, while the terminal is still ours."""
    lost = agent.lost_from_the_start(ways) or installs.known(start_of(agent, command))
    if lost:
        launch.say(lost)


class Lookout:
    """Looks at the processes of an agent that the shim has not got into, while they live:
    afterwards nothing shows why."""

    def __init__(self, agent: Agent, command: list[str], run: Run) -> None:
        self._agent = agent
        self._command = command
        self._sign = run.path("reached")
        self._why: str | None = None

    def begin(self, supervision: Supervision) -> None:
        for seconds in _LOOKS:
            supervision.look_after(seconds, self._look)
        supervision.look_after(_LOOKS[-1], lambda pid: self._ask_doctor(supervision))

    def _look(self, pid: int) -> None:
        if self._why is not None or os.path.exists(self._sign):
            return
        self._why = self._agent.why_not_captured(pid)
        if self._why is not None:
            text = f"nothing that {self._agent.title} says will be captured: {self._why}"
            start = start_of(self._agent, self._command)
            # Another release of ours may understand the launcher.
            installs.remember(start, [start[0], launchers.__file__], text)

    def _ask_doctor(self, supervision: Supervision) -> None:
        """In the first run of an install that nobody has checked: run `doctor` in the background,
        which notes what it finds."""
        known = installs.known(start_of(self._agent, self._command)) is not None
        if not known and os.path.exists(self._sign):
            supervision.start_helper(["doctor", "--json", "--", *self._command])

    def what_to_tell(self) -> str | None:
        """The notice after a run in which nothing was captured."""
        return self._agent.out_of_reach(self._command, self._sign, self._why)
