"""Agents that their user cannot reach any more: the supervisor was killed, and the shell, which had
waited for it, took the terminal back. The agent continues below a successor, in the background.

Never signals anyone: it says what happened, and the command that ends the agent and resumes its
session.
"""

from __future__ import annotations

from ...ipc.lightweight.dataclass import dataclass
from ..process.death import lives
from ..process.platform import process_table
from ..recovery.reading import settings_of
from ..storage import run_folder as runs
from ..storage.run_notes import living_agent, was_left


@dataclass
class OutOfReach:
    run: str
    pid: int
    terminal: str
    command: str
    """What ends the agent and resumes its session."""

    def __str__(self) -> str:
        goal = "end it and resume" if "; " in self.command else "end it"
        return (
            f"process {self.pid} is out of reach: its supervisor was killed, and the shell took "
            f"{self.terminal} back; in another terminal, {goal}:\n  {self.command}"
        )


def find() -> list[OutOfReach]:
    agents = (look(folder) for folder in runs.left_behind())
    return [agent for agent in agents if agent is not None]


def look(folder: str) -> OutOfReach | None:
    run = runs.Run(folder, -1)
    if was_left(folder):
        return None  # its user knows: nobody took the terminal
    settings = settings_of(run)
    terminal = settings.get("terminal")
    if not isinstance(terminal, str) or _supervisor_lives(settings):
        return None
    agent = living_agent(run.folder)
    if agent is None:
        return None
    about = process_table([agent[0]])
    # 0: not known on this platform; then the shell is taken to have its terminal back.
    if not about or about[0].foreground in (-1, about[0].group):
        return None
    ending = f"kill {agent[0]}"
    resume = _resume(run)
    return OutOfReach(run.name, agent[0], terminal, f"{ending}; {resume}" if resume else ending)


def _supervisor_lives(settings: dict[str, object]) -> bool:
    pid, start = settings.get("supervisor"), settings.get("supervisor_start")
    if not isinstance(pid, int) or not isinstance(start, int):
        return True  # not known, so nothing is said
    return lives(pid, start)


def _resume(run: runs.Run) -> str | None:
    """The command that resumes the one session that a user has in it."""
    from ..agents import registry  # only for an agent that is out of reach
    from ..recovery.gather import gather
    from ..recovery.reading import is_alive
    from ..recovery.replay import replay
    from . import notice

    command = settings_of(run).get("command")
    hints = []
    try:
        for stream in run.streams():
            replayed = replay(gather(run.folder, stream).frames)
            agent = registry.of_stream(replayed)
            for session in replayed.sessions.values():
                if is_alive(replayed) and session.ended is None and agent.is_the_users(session):
                    hint = agent.resume_hint(session)
                    hints.append(registry.resumed_with_options(command, agent, hint) or hint)
    except OSError:
        return None  # it is being compacted, or has just been finished
    if not hints:
        hints = [_named_in(command)]
    return notice.supervised(hints[0]) if len(hints) == 1 and hints[0] else None


def _named_in(command: object) -> str | None:
    """The command that resumes the session which the user named to the agent. An agent that has not
    said anything yet may not have opened it."""
    from shlex import join  # only for an agent that is out of reach

    from ..agents import registry

    if not isinstance(command, list) or (parsed := registry.parsed(command)) is None:
        return None
    agent = registry.recognised(command)
    grammar = agent.arguments()
    if grammar is None or parsed.session is None:
        return None
    plain = join([*parsed.program, *grammar.resume, parsed.session])
    return registry.resumed_with_options(command, agent, plain) or plain
