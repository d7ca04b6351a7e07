"""A pseudo-terminal with a shell and a supervised agent on it.

The test holds the other side, as a terminal emulator does.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support import DEADLINE, Supervised, World

# A shell with job control, and nothing else: runs one job in a group of its own in the
# foreground, reports what becomes of it, and continues it on request.
SHELL = """
import os, signal, sys
reports, asked = int(sys.argv[1]), int(sys.argv[2])
os.set_inheritable(reports, False)
os.set_inheritable(asked, False)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
background = sys.argv[3] == "background"
job = os.fork()
if job == 0:
    os.setpgid(0, 0)
    if not background:
        os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execvp(sys.argv[4], sys.argv[4:])
os.write(reports, f"job {job}\\n".encode())
while True:
    _, status = os.waitpid(job, os.WUNTRACED)
    os.tcsetpgrp(0, os.getpgrp())
    if not os.WIFSTOPPED(status):
        os.write(reports, f"ended {os.waitstatus_to_exitcode(status)}\\n".encode())
        sys.stdout.write("PROMPT> ")
        sys.stdout.flush()
        os.read(asked, 1)
        break
    os.write(reports, f"stopped {os.WSTOPSIG(status)}\\n".encode())
    os.read(asked, 1)
    os.tcsetpgrp(0, job)
    os.killpg(job, signal.SIGCONT)
"""

# What the agents of these tests share: they print lines, also in signal handlers, on the
# terminal and to a file that outlives it.
LISTENER = """
import termios
def tell(line):
    with open("heard", "a") as file:
        file.write(line + "\\n")
    try:
        os.write(1, (line + "\\r\\n").encode())
    except OSError:
        pass
def hear(name, then=lambda: None):
    def handler(number, frame):
        tell("heard " + name)
        then()
    signal.signal(signal.Signals["SIG" + name], handler)
"""


class Window:
    """A terminal, and a supervised agent on it."""

    def __init__(
        self,
        world: World,
        agent: list[str],
        options: tuple[str, ...] = (),
        *,
        leader: str = "shell",
        background: bool = False,
        **popen: Any,
    ) -> None:
        self.heard = world.folder / "heard"
        self.master, slave = pty.openpty()
        # Its own descriptor, to look at the settings after everybody else has let go.
        self.slave = slave
        self.before = termios.tcgetattr(slave)
        self.text = b""
        reports, theirs = os.pipe()
        asked, self._ask = os.pipe()
        command = [*world.command, *options, "--", *agent]
        if leader == "shell":
            script = world.folder / "shell.py"
            script.write_text(SHELL)
            place = "background" if background else "foreground"
            command = [sys.executable, str(script), str(theirs), str(asked), place, *command]
        self.process = subprocess.Popen(
            command,
            env={"TERM": "xterm-256color", **world.env, **popen.pop("env", {})},
            cwd=world.folder,
            **{"stdin": slave, "stdout": slave, "stderr": slave, **popen},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0),
            pass_fds=[theirs, asked, slave],
        )
        os.close(theirs)
        os.close(asked)
        self._reports = os.fdopen(reports)
        self.pid = self.process.pid
        if leader == "shell":
            self.pid = int(self.shell_says("job"))

    def shell_says(self, word: str) -> str:
        ready, _, _ = select.select([self._reports], [], [], DEADLINE)
        assert ready, f"the shell did not say {word!r}; on the screen: {self.text!r}"
        line = self._reports.readline()
        assert line.startswith(word + " "), f"the shell said {line!r}; on the screen: {self.text!r}"
        return line.split()[1]

    def continue_job(self) -> None:
        os.write(self._ask, b"x")

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def wait_for(self, text: bytes) -> None:
        """Read what appears on the screen, until this does."""
        end = time.monotonic() + DEADLINE
        while text not in self.text:
            left = end - time.monotonic()
            ready, _, _ = select.select([self.master], [], [], max(0, left))
            assert ready, f"{text!r} did not appear; on the screen: {self.text!r}"
            self._read()

    def rest(self) -> bytes:
        """All that was ever written to the terminal, after its users are gone."""
        while select.select([self.master], [], [], 0)[0]:
            self._read()
        return self.text

    def _read(self) -> None:
        try:
            self.text += os.read(self.master, 65536)
        except OSError as error:
            assert error.errno == errno.EIO
            raise AssertionError(f"the terminal's users are gone; it shows {self.text!r}") from None

    @property
    def agent(self) -> int:
        return Supervised.agent.fget(self)  # type: ignore[attr-defined,no-any-return]

    def close(self) -> None:
        """Close the window."""
        if self.slave >= 0:
            os.close(self.slave)
            self.slave = -1
        if self.master >= 0:
            os.close(self.master)
            self.master = -1

    def clean_up(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.close()
        self._reports.close()
        os.close(self._ask)


@contextmanager
def window(world: World, source: str, *options: str, **more: Any) -> Iterator[Window]:
    agent = [sys.executable, world.script(LISTENER + source)]
    opened = Window(world, agent, options, **more)
    try:
        yield opened
    finally:
        opened.clean_up()
