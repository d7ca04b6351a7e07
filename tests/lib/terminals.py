"""A real terminal for a test: what runs in it is typed into, read, and has it taken away.

A thread reads all the time, as a terminal does: a program that cannot write stops.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import threading
from typing import Any

import pyte
from support import DEADLINE, Supervised, World, children, until

# What a program asks its terminal, and what any terminal answers.
_ANSWERS = {b"\x1b[6n": b"\x1b[1;1R", b"\x1b[c": b"\x1b[?62;22c", b"\x1b[0c": b"\x1b[?62;22c"}
_ASKED = re.compile(b"|".join(re.escape(question) for question in _ANSWERS))
_SEQUENCE = re.compile(rb"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[\[(][0-?]*[ -/]*[@-~]|\x1b[=>78]")


class Terminal:
    """A pseudo-terminal. `near` is the side that programs see."""

    def __init__(self, columns: int = 120, lines: int = 40) -> None:
        self._far, self.near = os.openpty()
        fcntl.ioctl(self.near, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.before = termios.tcgetattr(self.near)
        self.raw = b""
        self._screen = pyte.Screen(columns, lines)
        self._drawn_by = pyte.ByteStream(self._screen)
        self._drawn = 0
        self._stop, self._stopped = os.pipe()
        self._closed = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        poller = select.poll()
        poller.register(self._far, select.POLLIN)
        poller.register(self._stop, select.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._stop in ready:
                return
            try:
                data = os.read(self._far, 65536)
            except OSError:  # nobody has the near side open
                return
            self.raw += data
            for question in _ASKED.findall(data):
                os.write(self._far, _ANSWERS[question])

    @property
    def text(self) -> str:
        """Everything that was ever shown, without what only moves the cursor or colours it."""
        return _SEQUENCE.sub(b"", self.raw).decode("utf-8", "replace")

    @property
    def screen(self) -> str:
        """What a person would see now."""
        fresh = self.raw[self._drawn :]
        self._drawn += len(fresh)
        self._drawn_by.feed(fresh)
        return "\n".join(line.rstrip() for line in self._screen.display)

    def wait_to_see(self, text: str, deadline: float = DEADLINE * 2) -> None:
        """For a program that draws only the cells that change: its words are nowhere whole in
        what it sends."""
        try:
            until(lambda: text in self.screen, f"{text!r} on the screen", deadline)
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows\n{self.screen}") from None

    def wait_for(self, text: str, since: int = 0, deadline: float = DEADLINE * 2) -> None:
        """Blanks do not count: many are drawn by moving the cursor."""
        wanted = text.replace(" ", "")

        def there() -> bool:
            return wanted in self.text[since:].replace(" ", "")

        try:
            until(there, f"{text!r} on the terminal", deadline)
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows {self.text[-2000:]!r}") from None

    def type(self, text: str) -> None:
        os.write(self._far, text.encode())

    def mode(self, number: int) -> bool:
        """Whether a private mode (2004: bracketed paste) was last switched on."""
        return self.raw.rfind(b"\x1b[?%dh" % number) > self.raw.rfind(b"\x1b[?%dl" % number)

    @property
    def settings(self) -> list[Any]:
        return termios.tcgetattr(self.near)

    def run(self, world: World, command: list[str], *options: str) -> Supervised:
        """A supervised command, the supervisor being the leader of the terminal's session."""
        return self.start(world, [*world.command, *options, "--", *command])

    def start(self, world: World, command: list[str]) -> Supervised:
        near = self.near
        process = subprocess.Popen(
            ["setsid", "--ctty", *command],
            env={**world.env, "TERM": "xterm-256color"}, cwd=world.folder,
            stdin=near, stdout=near, stderr=near,
        )  # fmt: skip
        world._started.append(process)
        return Supervised(process)

    def run_in_shell(self, world: World, command: list[str]) -> tuple[Supervised, int]:
        """The same as a shell's foreground job; the shell, and the supervisor's pid."""
        shell = self.start(world, ["bash", "--norc", "--noprofile", "-i"])
        self.wait_for("bash-")
        line = " ".join(f"'{word}'" for word in [*world.command, "--", *command])
        self.type(line + "\n")
        return shell, int(until(lambda: children(shell.pid), "the shell's job")[0])

    def close(self) -> None:
        """Take it away: what runs in it is hung up."""
        if not self._closed:
            self._closed = True
            os.close(self.near)
            os.close(self._stopped)
            self._reader.join()
            os.close(self._stop)
            os.close(self._far)


def belonging_to(world: World) -> list[int]:
    """Every living process with this world's Hermes home in its environment."""
    mark = f"HERMES_HOME={world.home}\0".encode()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if mark in file.read() + b"\0":
                    found.append(int(name))
        except OSError:
            continue
    return found
