"""A terminal for programs that a simple emulator cannot draw: a tmux server of the test's own."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from support import World, until


class Tmux:
    """One window. What runs in it has the world's environment."""

    def __init__(
        self, world: World, columns: int = 120, lines: int = 60, name: str = "tmux"
    ) -> None:
        if shutil.which("tmux") is None:
            pytest.skip("tmux is not installed")
        self._world = world
        self._socket = str(Path(world.env["XDG_RUNTIME_DIR"]) / name)
        self._size = ["-x", str(columns), "-y", str(lines)]
        self._status = world.folder / f"{name}.status"

    def start(self, command: list[str], cwd: Path) -> int:
        """Run a command in the window; its pid. The window stays when it has ended."""
        begun = self._world.folder / "begun"
        begun.unlink(missing_ok=True)
        self._status.unlink(missing_ok=True)
        # The shell's child has the window as its controlling terminal, as under a login shell.
        script = (
            f"sh -c 'echo $$ > {begun}.new; mv {begun}.new {begun}; exec \"$@\"' sh "
            f"{shlex.join(command)}; echo $? > {self._status}; exec sleep 600"
        )
        self._call(
            "-f", "/dev/null", "new-session", "-d", *self._size, "-c", str(cwd), script,
            ";", "set-option", "-g", "history-limit", "5000",
        )  # fmt: skip
        until(begun.exists, "the command has begun")
        return int(begun.read_text())

    @property
    def screen(self) -> str:
        """What a person sees, and what has scrolled away above it."""
        return self._call("capture-pane", "-p", "-J", "-S", "-4000")

    def wait_for(self, text: str, deadline: float = 60.0) -> None:
        try:
            until(lambda: text in self.screen, f"{text!r} on the screen", deadline)
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows\n{self.screen}") from None

    def type(self, text: str) -> None:
        self._call("send-keys", "-l", text)

    def press(self, *keys: str) -> None:
        """Keys as tmux names them: Enter, Escape, C-c."""
        self._call("send-keys", *keys)

    def clear(self) -> None:
        """Forget what the screen shows."""
        self._call("send-keys", "-R", ";", "clear-history")

    def has_ended(self) -> bool:
        return self._status.exists()

    def status(self, deadline: float = 60.0) -> int:
        """The exit status of the command, as a shell has it."""
        until(self._status.exists, "the command has ended", deadline)
        return int(until(self._status.read_text, "its status"))

    def close(self) -> None:
        """Close the terminal: what runs in it gets a SIGHUP."""
        try:
            self._call("kill-server")
            # Or a next window would be asked of the server that is leaving.
            until(lambda: not self._call("list-sessions"), "the server has ended", 10)
        except subprocess.CalledProcessError:
            pass  # nobody is left

    def _call(self, *words: str) -> str:
        command = ["tmux", "-S", self._socket, *words]
        env = {**self._world.env, "TERM": "xterm-256color"}
        return subprocess.check_output(command, env=env, text=True, stderr=subprocess.DEVNULL)
