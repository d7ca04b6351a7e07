"""Starts a real agent under supervision in a scratch home, kills it, and looks at what is stored.

Never touches anything of the user's: home, state, sockets and work folder are in a temporary
folder, the model is on loopback, and every process that was started for a trial is ended.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from typing import TYPE_CHECKING, Any

from ....ipc.endpoint import RUN_VARIABLE
from ...agents import registry
from ...agents.protocol import BAD, NOTE, OK
from ...process import platform
from ...statedb.database import Database
from .scripted_model import WORD, ScriptedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...agents.protocol import Agent, Finding

_WORDS, _HELD = 60, 40
_MARK = "HERMES_SUPERVISE_PROOF"
# Seconds: until the agent asks the model, for the screen to show what it got, until all is stored.
_START, _SETTLE, _END = 180.0, 5.0, 90.0
_TRIES = 6
# As a model that is not on this machine: seconds to the first word, and between words.
_DELAY, _PACE = 2.0, 0.05
_COLUMNS, _LINES = 120, 50
_ESCAPES = re.compile(r"\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)|[\[(?][0-9;?<>=]*[ -/]*[@-~]|.)")
# What a terminal is asked, and answers.
_QUERIES = {b"\x1b[6n": b"\x1b[1;1R", b"\x1b[c": b"\x1b[?62;c", b"\x1b[0c": b"\x1b[?62;c"}
_FOREIGN = (
    "ANTHROPIC_", "CLAUDE", "CODEX_", "GEMINI_", "GOOGLE_", "NODE_", "OPENAI_", "OPENCODE",
    "QWEN_", "PI_", "HERMES_", "OPENROUTER_", "XDG_",
)  # fmt: skip


class DidNotAsk(Exception):
    """The agent did not ask the scripted model. The text is the end of what it showed."""


def prove(command: list[str]) -> Iterator[Finding]:
    """Both trials of an agent, as findings of `doctor`."""
    agent = registry.recognised(command)
    at = agent.recognise(command) if agent.name else None
    if at is None:
        yield "proof", NOTE, "only an agent that is known by its command can be tried out"
        return
    for name, run in (("a reply", _reply), ("a tool", _tool)):
        with_proof = Trial(agent, [_from_anywhere(word) for word in command[:at]])
        try:
            yield run(with_proof)
        except DidNotAsk as error:
            text = f"in the middle of {name}: it ended or did not get there within {_START:.0f} s"
            yield "proof", BAD, f"{text}; the last it showed: {error}"
            return
        except NotKnown:
            yield "proof", NOTE, f"how to try {agent.title} out is not known"
            return
        finally:
            with_proof.close()


class NotKnown(Exception):
    """Nobody has said how to try this agent out."""


def _from_anywhere(word: str) -> str:
    """A program that is named from this folder, as it is named from the folder of the trial."""
    named = "/" in word and "=" not in word and os.path.exists(word)
    return os.path.abspath(word) if named else word


def _reply(trial: Trial) -> Finding:
    """Kill it in the middle of a reply."""
    trial.model.hold_after(_HELD)
    trial.start(f"WORDS {_WORDS}")
    trial.until(lambda: trial.model.sent >= _HELD)
    trial.settle()
    shown = trial.shown()
    trial.kill()
    rows = trial.rows()
    stored = set(WORD.findall("".join(row["content"] for row in rows if row["role"] != "user")))
    asked = any(row["role"] == "user" and "WORDS" in row["content"] for row in rows)
    lost = len(shown - stored)
    text = (
        f"killed in the middle of a reply: {len(shown)} words were on the screen, {len(stored)} "
        f"are stored, the question {'too' if asked else 'not'}"
    )
    if not asked or lost:
        return "proof", BAD, f"{text}; {lost} words of the reply are lost"
    if not shown:
        return "proof", OK, f"{text}; it shows a reply when it is complete"
    return "proof", OK, text


def _tool(trial: Trial) -> Finding:
    """Kill it while a tool runs."""
    begun = os.path.join(trial.folder, "begun")
    trial.start(f"CALL touch {begun}; sleep 300")
    trial.until(lambda: os.path.exists(begun))
    trial.settle()  # some agents write a call down a moment after it has begun
    trial.kill()
    rows = trial.rows()
    made = [row for row in rows if row["tool_calls"] and begun in row["tool_calls"]]
    answered = [row for row in rows if row["role"] == "tool"]
    text = "killed in the middle of a tool call"
    if not made:
        return "proof", BAD, f"{text}: the call is lost"
    if not answered:
        return "proof", BAD, f"{text}: the call is stored, and nothing says how it ended"
    return "proof", OK, f"{text}: the call is stored, and closed as unknown"


class Trial:
    """One start of one agent."""

    def __init__(self, agent: Agent, program: list[str]) -> None:
        self._agent, self._program = agent, program
        self.folder = os.path.realpath(tempfile.mkdtemp(prefix="hermes-supervise-proof-"))
        for name in ("home", "work", "state", "run"):
            os.mkdir(os.path.join(self.folder, name), 0o700)
        self.model = ScriptedModel()
        self.model.delay, self.model.pace = _DELAY, _PACE
        self.model.only_with_tools = True
        self._output = b""
        self._terminal = -1
        self._supervisor: subprocess.Popen[bytes] | None = None

    def start(self, prompt: str) -> None:
        home, work = (os.path.join(self.folder, name) for name in ("home", "work"))
        made = self._agent.trial(self._program, home, work, self.model.url, prompt)
        if made is None:
            raise NotKnown
        command, more = made
        env = self._environment(home, work) | more
        self._db = os.path.join(self.folder, "state.db")
        if "HERMES_HOME" in more:
            self._db = os.path.join(more["HERMES_HOME"], "state.db")
        ours = [sys.executable, "-P", "-m", "hermes_supervise.supervisor", "--db", self._db]
        self._terminal, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, _COLUMNS, 0, 0))
        self._supervisor = subprocess.Popen(
            [*ours, "--", *command], env=env, cwd=work, stdin=inner, stdout=inner, stderr=inner,
            start_new_session=True, preexec_fn=_take_terminal,
        )  # fmt: skip
        os.close(inner)
        ready = self._agent.trial_ready
        if ready:
            self.until(lambda: ready in self.text)
            self._type(prompt)

    def _type(self, prompt: str) -> None:
        """Ask. Keys that are pressed before the agent listens are dropped."""

        def try_until(keys: str, seen: Callable[[], bool]) -> None:
            for _ in range(_TRIES):
                os.write(self._terminal, keys.encode())
                if self._wait(seen):
                    return

        try_until(prompt, lambda: prompt in self.text)
        # Then only Enter: what is typed at once after a text may be taken for a part of a paste.
        try_until("\r", lambda: any(body.get("tools") for _, body in self.model.requests))

    def _wait(self, condition: Callable[[], bool]) -> bool:
        end = time.monotonic() + _SETTLE
        while not condition() and time.monotonic() < end and self._read(0.1):
            pass
        return condition()

    def _environment(self, home: str, work: str) -> dict[str, str]:
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_FOREIGN) and "proxy" not in name.lower()
        }
        return env | {
            "HOME": home, "PWD": work, "TERM": "xterm-256color", _MARK: self.folder,
            "XDG_STATE_HOME": os.path.join(self.folder, "state"),
            "XDG_RUNTIME_DIR": os.path.join(self.folder, "run"),
            "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost",
        }  # fmt: skip

    # -- what it shows -------------------------------------------------------------------------

    def shown(self) -> set[str]:
        return set(WORD.findall(self.text))

    @property
    def text(self) -> str:
        return _ESCAPES.sub("", self._output.decode("utf-8", "replace"))

    def until(self, condition: Callable[[], bool]) -> None:
        """Read what it shows until something has happened. Raises DidNotAsk."""
        end = time.monotonic() + _START
        while not condition():
            if time.monotonic() > end or not self._read(0.1):
                lines = [line.strip() for line in self.text.splitlines() if line.strip()]
                raise DidNotAsk(" | ".join(lines[-6:])[-600:] or "nothing")

    def settle(self) -> None:
        """Give the screen time to show what the agent has. It may have asked more than once."""
        last, end = (-1, -1), 0.0
        while len(self.shown()) < _HELD:
            now = len(self.shown()), self.model.spoken
            if now != last:
                last, end = now, time.monotonic() + _SETTLE
            if time.monotonic() > end or not self._read(0.1):
                return

    def _read(self, seconds: float) -> bool:
        """False if the terminal was closed at the other end."""
        if not select.select([self._terminal], [], [], seconds)[0]:
            return True
        try:
            piece = os.read(self._terminal, 65536)
        except OSError:
            return False
        self._output += piece
        for query, answer in _QUERIES.items():
            if query in piece:
                os.write(self._terminal, answer)
        return bool(piece)

    # -- its end -------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill the agent with all its processes, and wait until the supervisor has recovered it."""
        assert self._supervisor is not None
        for number in (signal.SIGSTOP, signal.SIGKILL):  # so that none of them sees another die
            for pid in self._processes(of_agent=True):
                _send(pid, number)
        end = time.monotonic() + _END
        while self._supervisor.poll() is None and time.monotonic() < end:
            self._read(0.1)

    def _processes(self, *, of_agent: bool) -> list[int]:
        """The living processes of this trial: all, or without the supervisor's own."""
        entry = os.fsencode(f"{_MARK}={self.folder}")
        table = [process for process in platform.process_table() if process.alive]
        found = {
            process.pid: process.parent
            for process in table
            if entry in platform.environment(process.pid)
        }
        if self._supervisor is not None:
            found.setdefault(self._supervisor.pid, os.getpid())
        if not of_agent:
            return list(found)
        # What the supervisor starts for itself has no run in its environment.
        run = os.fsencode(f"{RUN_VARIABLE}=")
        return [
            pid
            for pid in found
            if any(variable.startswith(run) for variable in platform.environment(pid))
        ]

    def rows(self) -> list[dict[str, Any]]:
        """The messages that are stored, of all sessions, in order."""
        if not os.path.exists(self._db):
            return []
        database = Database(self._db, read_only=True)
        try:
            with database.errors():
                found = database.dicts("SELECT role, content, tool_calls FROM messages ORDER BY id")
        finally:
            database.close()
        return [{**row, "content": row["content"] or ""} for row in found]

    def close(self) -> None:
        self.model.close()
        for pid in self._processes(of_agent=False):
            _send(pid, signal.SIGKILL)
        if self._supervisor is not None:
            self._supervisor.wait()
            os.close(self._terminal)
        shutil.rmtree(self.folder, ignore_errors=True)


def _take_terminal() -> None:
    """In the child: the terminal on its standard input is its own."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass  # it has ended
