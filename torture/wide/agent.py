"""The agent of the wider campaign: performs the steps of its process, each when its turn has come.

Never knows when it will be killed. Uses the SDK as any agent would.
"""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import subprocess
import sys
from typing import Any

from torture.wide.baton import Baton
from torture.wide.plan import Life, Step, scenario

SESSION = "chat"
TRANSCRIPT = "transcript.jsonl"


class Player:
    def __init__(self, words: list[str], process: int) -> None:
        """`words`: file of the baton, kind, seed, number of the life."""
        path, kind, seed, number = words
        self._words = words
        self._process = process
        self._baton = Baton(path)
        self._life: Life = scenario(kind, seed).lives[int(number)]
        self._session: Any = None
        self._transcript: Any = None
        self.is_worker = False
        """It was started by multiprocessing, and ends as such workers do."""

    def play(self) -> None:
        self._baton.born(self._process)
        for index, step in enumerate(self._life.steps):
            if step.actor == self._process and index >= self._baton.turn:
                self._baton.wait_for(index)
                self._baton.begin(self._process, index)
                if step.do in ("exit", "leave", "become"):
                    self._baton.done(self._process, index)
                getattr(self, "_" + step.do)(step)
                self._baton.done(self._process, index)
        while True:  # it is killed
            self._baton.wait_for(-1)

    @property
    def _chat(self) -> Any:
        if self._session is None:
            from hermes_supervise.agent_shim import session

            self._session = session(SESSION, source="torture", model="m")
        return self._session

    def _user(self, step: Step) -> None:
        self._chat.message("user", step.text)

    def _assistant(self, step: Step) -> None:
        self._chat.message("assistant", step.text)

    def _delta(self, step: Step) -> None:
        self._chat.delta(step.text)

    def _line(self, step: Step) -> None:
        """A message in the transcript, which stays open, as Claude Code and Codex do it."""
        if self._transcript is None:
            self._transcript = open(TRANSCRIPT, "a", buffering=1)  # noqa: SIM115
        line = {"session_id": SESSION, "role": "user", "content": step.text}
        self._transcript.write(json.dumps(line) + "\n")

    def _begin(self, step: Step) -> None:
        if step.text == "fork":
            if os.fork() == 0:
                self._go_on_as(step.number)
        elif step.text == "command":
            subprocess.Popen(_command(self._words, step.number))
        else:
            made = multiprocessing.get_context(step.text)
            worker = made.Process(target=work, args=(self._words, step.number))  # type: ignore[attr-defined]
            worker.start()

    def _go_on_as(self, process: int) -> None:
        """In a forked child, which shares its parent's session."""
        try:
            self._process = process
            self.is_worker = False
            self.play()
        finally:
            os._exit(99)

    def _become(self, step: Step) -> None:
        command = _command(self._words, step.number)
        os.execv(command[0], command)

    def _exit(self, step: Step) -> None:
        if self.is_worker:
            sys.exit(step.number)
        os._exit(step.number)

    def _leave(self, step: Step) -> None:
        atexit._run_exitfuncs()
        os._exit(0)


def _command(words: list[str], process: int) -> list[str]:
    return [sys.executable, os.path.abspath(__file__), *words, str(process)]


def work(words: list[str], process: int) -> None:
    player = Player(words, process)
    player.is_worker = True
    player.play()


if __name__ == "__main__":
    Player(sys.argv[1:5], int(sys.argv[5])).play()
