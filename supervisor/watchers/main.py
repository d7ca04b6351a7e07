"""The watcher's process: follows the agent's transcripts, and tells the run's supervisor of them.

Never outlives its supervisor, and never acts on the agent. Standard input is its life: a word on
it, or its end, means that no process of the agent is left, or that our supervisor is dead. Then
everything is read to its end once more, told if there is anybody to tell, and that is all.

    runs/<run>/watched    what was acknowledged (see teller): a watcher that comes after us says
                          nothing twice
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import time
from io import FileIO

from ...ipc import endpoint, frames, records
from .. import recognise
from ..speaker import Speaker, Unheard
from .claude import Claude
from .codex import Codex
from .follow import Follower
from .gemini import Gemini
from .jsonl import Jsonl
from .opencode import Opencode
from .ours import Ours
from .teller import Known, Teller

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .follow import Adapter, Database
    from .messages import Record
    from .teller import Mark

# Seconds between two looks that nothing asked for: a folder that is not there yet cannot be
# watched, and on some file systems nobody says that a file has changed.
_SOON, _LATER = 0.5, 5.0
_AT_A_TIME = 256
_LIFE = 0


class Settings:
    """What the run says of itself."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.agent: str | None = told.get("agent")
        self.command: list[str] = told["command"]
        self.cwd = str(told["cwd"])
        self.launched = float(told["started"])
        self.stream = str(told["watcher"])
        self.paths: list[str] = [str(path) for path in told.get("watch") or []]
        self.stood: dict[str, int] = told.get("stood") or {}

    @property
    def name(self) -> str:
        """Whose words these are. Not what was started: a Hermes is treated in its own way."""
        return self.agent or "a transcript"

    @staticmethod
    def read(folder: str) -> Settings:
        with open(os.path.join(folder, "run.json"), encoding="utf-8") as file:
            return Settings(json.load(file))

    def sources(self, ours: Ours) -> tuple[list[Adapter], list[Database]]:
        env = {**os.environ, **recognise.assignments(self.command)}
        adapters: list[Adapter] = [Jsonl(path) for path in self.paths]
        databases: list[Database] = []
        if self.agent == "claude":
            adapters.append(Claude(env, self.cwd))
        elif self.agent == "codex":
            adapters.append(Codex(env, self.cwd))
        elif self.agent == "gemini":
            adapters.append(Gemini(env, self.cwd))
        elif self.agent == "opencode":
            databases.append(Opencode(env, self.cwd, self.launched, ours))
        return adapters, databases


def watch(folder: str) -> int:
    """A watcher's whole life; its exit status."""
    settings = Settings.read(folder)
    speaker = Speaker(
        endpoint.socket_path(os.path.basename(folder)),
        stream=settings.stream,
        about={"speaks_for": folder, "agent": settings.name},
    )
    ours = Ours(os.getppid())
    with _ledger(folder) as marks:
        # The watcher before us may be about to say its last words.
        fcntl.flock(marks, fcntl.LOCK_EX)

        def say(told: list[tuple[Mark, Record]]) -> None:
            for start in range(0, len(told), _AT_A_TIME):
                some = told[start : start + _AT_A_TIME]
                _until_heard(speaker, [record for _, record in some])
                os.write(marks.fileno(), b"".join(mark for mark, _ in some))

        follower = _follower(settings, ours, marks.read(), say)
        try:
            _follow(follower)
            follower.look(final=True)
        except Unheard:
            return 1  # whoever takes our place reads on from what was acknowledged
        finally:
            speaker.close()
            ours.close()
    return 0


def _ledger(folder: str) -> FileIO:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    return FileIO(os.open(os.path.join(folder, "watched"), flags, 0o600), "r+")


def _follower(
    settings: Settings,
    ours: Ours,
    marks: bytes,
    say: Callable[[list[tuple[Mark, Record]]], None],
) -> Follower:
    adapters, databases = settings.sources(ours)
    teller = Teller(Known(marks), settings.cwd)
    return Follower(
        adapters, databases, settings.launched, settings.stood, ours, teller, say, time.time
    )


def _until_heard(speaker: Speaker, said: list[Record]) -> None:
    """Say this, however busy the supervisor is. Raises Unheard when there is none any more."""
    while True:
        try:
            speaker.say(*said)
            return
        except Unheard:
            said = []  # it is kept, and said again on the next line
            if _is_over(_SOON):
                speaker.say()
                return


def _is_over(seconds: float) -> bool:
    return bool(select.select([_LIFE], [], [], seconds)[0])


def _follow(follower: Follower) -> None:
    """Look whenever something has changed, until our time is over."""
    follower.look()
    if _is_over(0):
        return
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    from .changes import Changes

    changes = Changes(lambda: _write(wake))
    looked, complete = 0.0, False
    while True:
        # What stands in a folder that is watched only now was told by nobody.
        before, complete = complete, changes.watch(follower.folders())
        patience = _LATER if complete else _SOON
        if (now := time.monotonic()) - looked >= patience or not before:
            follower.look()
            looked = now
        ready, _, _ = select.select([_LIFE, woken], [], [], patience)
        if _LIFE in ready:
            return
        if woken in ready:
            os.read(woken, 65536)
            follower.look(changes.take())


def _write(wake: int) -> None:
    try:
        os.write(wake, b".")
    except OSError:
        pass  # full: it is awake


def catch_up(folder: str) -> None:
    """For a run whose agent, watcher and supervisor are dead: what the transcripts hold beyond
    what the journal has goes into the stream's spool, as if it had been said in time."""
    from ..recovery.gather import gather
    from ..recovery.replay import replay

    settings = Settings.read(folder)
    told = replay(gather(folder, settings.stream).frames)
    with _ledger(folder) as marks:
        fcntl.flock(marks, fcntl.LOCK_EX | fcntl.LOCK_NB)  # or else one still lives, and tells
        known = marks.read()
    path = os.path.join(folder, settings.stream + ".spool")
    number = told.last

    def say(said: list[tuple[Mark, Record]]) -> None:
        nonlocal number
        hello: dict[str, Any] = {
            "kind": "hello", "version": records.VERSION, "oldest": records.OLDEST,
            "stream": settings.stream, "pid": 0, "cwd": settings.cwd,
            "speaks_for": folder, "agent": settings.name,
        }  # fmt: skip
        out = b"" if told.hello or number else frames.encode(0, records.pack(hello))
        for _, record in said:
            number += 1
            out += frames.encode(number, records.fit(record))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        if said:
            with open(os.open(path, flags, 0o600), "ab") as file:
                file.write(out)

    ours = Ours(None)
    try:
        _follower(settings, ours, known, say).look(final=True)
    finally:
        ours.close()
