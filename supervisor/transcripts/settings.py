"""What a run notes about the transcripts to follow, in its run.json.

Light to import: every launch does.
"""

from __future__ import annotations

import os

from ..agents import registry
from ..agents.protocol import Place
from ..storage import run_folder as runs
from ..storage.run_notes import TAP_FOLDER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..agents.protocol import Database, LineFiles
    from ..model.options import Options


# The status of a transcript process that has seen the end of the turn that a daemon went on with.
IDLE = 3


def agent_to_follow(command: list[str], options: Options) -> str | None:
    """The agent whose transcripts are read: the one that the user names, or that is recognised."""
    if options.agent is not None:
        return None if options.agent == registry.NONE else options.agent
    agent = registry.recognised(command)
    return agent.name if agent.writes_transcripts else None


def what_to_follow(command: list[str], options: Options) -> dict[str, object]:
    """The fields of run.json; none if there is nothing to follow."""
    agent = agent_to_follow(command, options)
    if agent is None and not options.watch:
        return {}
    paths = [os.path.abspath(os.path.expanduser(path)) for path in options.watch]
    return {
        "watcher": os.urandom(16).hex(),
        "agent": agent,
        "watch": paths,
        "stood": {name: size for path in paths for name, size in _sizes(path)},
    }


def _sizes(path: str) -> list[tuple[str, int]]:
    """How long the files are now: what they hold so far was not said in this run."""
    try:
        if not os.path.isdir(path):
            return [(path, os.path.getsize(path))]
        sizes = []
        for folder, _, names in os.walk(path):
            for name in names:
                file = os.path.join(folder, name)
                sizes.append((file, os.path.getsize(file)))
        return sizes
    except OSError:
        return []


class Settings:
    """The fields of run.json, read again by the process that follows the transcripts."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.agent: str | None = settings.get("agent")
        self.command: list[str] = settings["command"]
        self.cwd = str(settings["cwd"])
        self.launched = float(settings["started"])
        self.stream = str(settings["watcher"])
        self.paths: list[str] = [str(path) for path in settings.get("watch") or []]
        self.stood: dict[str, int] = settings.get("stood") or {}
        self.runs: str | None = None
        self.tap: str | None = None
        """The folder that a live tap reports into, if the agent was launched with one."""

    @property
    def name(self) -> str:
        """The `agent` in the hello. Not the program that was started: an agent that reports
        messages itself is handled in its own way, and this is a stream beside it."""
        return self.agent or "a transcript"

    @staticmethod
    def read(folder: str) -> Settings:
        settings = Settings(runs.settings(runs.Run(folder, -1)))
        settings.runs = os.path.dirname(os.path.abspath(folder))
        if os.path.isdir(tap := os.path.join(folder, TAP_FOLDER)):
            settings.tap = tap
        return settings

    def place(
        self,
        claim: Callable[[str], bool] = lambda name: True,
        announced: Callable[[str], bool] = lambda session: True,
    ) -> Place:
        from ..agents.command_line import assignments  # only where transcripts are followed

        agent = registry.named(self.agent)
        arguments = self.command[agent.recognise(self.command) or 1 :]
        return Place(
            cwd=os.path.normpath(agent.work_folder(arguments, self.cwd)),
            env={**os.environ, **assignments(self.command)},
            arguments=arguments,
            started_in=self.cwd,
            launched=self.launched,
            paths=self.paths,
            tap=self.tap,
            runs=self.runs,
            claim=claim,
            announced=announced,
        )

    def sources(
        self, claim: Callable[[str], bool], announced: Callable[[str], bool]
    ) -> list[LineFiles | Database]:
        place = self.place(claim, announced)
        return registry.plain_lines().sources(place) + registry.named(self.agent).sources(place)
