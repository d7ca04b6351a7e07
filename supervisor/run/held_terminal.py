"""What is said while the command has exited and we still hold its terminal: why, and how to leave.

Never says anything within a moment, nor while somebody draws a screen.
"""

from __future__ import annotations

from ..model.text import printable
from ..process.platform import command_line
from .states import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..process.loop import Loop
    from ..process.terminal import Terminal
    from .processes import Processes
    from .recoveries import Recoveries

# How long the terminal may be held before a line says why.
_SILENT_FOR = 1.5
_LONGEST_COMMAND = 60


class HeldTerminal:
    def __init__(
        self,
        loop: Loop,
        terminal: Terminal | None,
        processes: Processes,
        recoveries: Recoveries,
        warn: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._terminal = terminal
        self._processes = processes
        self._recoveries = recoveries
        self._warn = warn
        self._state = State.STARTING
        self._planned: set[State] = set()
        self._said_who = False
        """A line has said who holds the terminal, and that Ctrl-C leaves."""

    def entered(self, state: State) -> None:
        """The run is in this state now. The first time, plan the line that it may need."""
        self._state = state
        say = {State.FOLLOWING: self._say_who, State.RECOVERING: self._say_what_for}.get(state)
        if say is not None and state not in self._planned:
            self._planned.add(state)
            self._loop.after(_SILENT_FOR, say)

    def user_may_leave(self) -> bool:
        """True if the user knows that Ctrl-C leaves what holds the terminal."""
        return self._said_who and self._processes.unknown_holder() is not None

    def _say_who(self) -> None:
        """The command has exited, and left a process on the terminal that never connected. It may
        be the agent behind a launcher, so we wait for it; without a line, if it draws a screen."""
        pid = self._processes.unknown_holder()
        settled = self._terminal is not None and not self._terminal.has_changed()
        if self._state is not State.FOLLOWING or pid is None or not settled:
            return
        self._said_who = True
        words = printable(" ".join(command_line(pid)))[:_LONGEST_COMMAND]
        self._warn(
            f"the command has exited; process {pid} still has this terminal: {words}. "
            "Ctrl-C leaves it running"
        )

    def _say_what_for(self) -> None:
        """The agent is gone and we still hold the terminal: say why, and how to leave."""
        if self._state is not State.RECOVERING:
            return
        leave = "Ctrl-C leaves; nothing is lost, and it continues in the background"
        if self._recoveries.recovering:
            why = "another process may have it locked"
            self._warn(f"still writing the agent's messages to state.db ({why}). {leave}")
        elif self._recoveries.busy and self._recoveries.hook_patience > 2 * _SILENT_FOR:
            self._warn(f"still waiting for hooks or transcripts. {leave}")
