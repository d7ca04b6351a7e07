"""On a real terminal: job control, a closed window, and the state it is left in (G4, G5, G8).

The test holds the other side of a pseudo-terminal, as a terminal emulator does.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import DEADLINE, SlowDisk, Supervised, World, alive, kill, until, wait_dead

# A shell with job control, and nothing else: runs one job in a group of its own in the
# foreground, tells what becomes of it, and continues it on request.
SHELL = """
import os, signal, sys
told, asked = int(sys.argv[1]), int(sys.argv[2])
os.set_inheritable(told, False)
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
os.write(told, f"job {job}\\n".encode())
while True:
    _, status = os.waitpid(job, os.WUNTRACED)
    os.tcsetpgrp(0, os.getpgrp())
    if not os.WIFSTOPPED(status):
        os.write(told, f"ended {os.waitstatus_to_exitcode(status)}\\n".encode())
        sys.stdout.write("PROMPT> ")
        sys.stdout.flush()
        os.read(asked, 1)
        break
    os.write(told, f"stopped {os.WSTOPSIG(status)}\\n".encode())
    os.read(asked, 1)
    os.tcsetpgrp(0, job)
    os.killpg(job, signal.SIGCONT)
"""

# What the agents of these tests share: they tell by lines that work in handlers, too, on the
# terminal and in a file that outlives it.
LISTENER = """
import termios
def tell(line):
    with open("told", "a") as file:
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
        self.told = world.folder / "told"
        self.master, slave = pty.openpty()
        # Its own descriptor, to look at the settings after everybody else has let go.
        self.slave = slave
        self.before = termios.tcgetattr(slave)
        self.text = b""
        told, theirs = os.pipe()
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
        self._told = os.fdopen(told)
        self.pid = self.process.pid
        if leader == "shell":
            self.pid = int(self.shell_says("job"))

    def shell_says(self, word: str) -> str:
        ready, _, _ = select.select([self._told], [], [], DEADLINE)
        assert ready, f"the shell did not say {word!r}; on the screen: {self.text!r}"
        line = self._told.readline()
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
        self._told.close()
        os.close(self._ask)


@contextmanager
def window(world: World, source: str, *options: str, **more: Any) -> Iterator[Window]:
    agent = [sys.executable, world.script(LISTENER + source)]
    opened = Window(world, agent, options, **more)
    try:
        yield opened
    finally:
        opened.clean_up()


# -- keys and size -----------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "name"), [(b"\x03", "INT"), (b"\x1c", "QUIT")])
@pytest.mark.parametrize("leader", ["shell", "supervisor"])
def test_ctrl_c_is_heard_once(world: World, leader: str, key: bytes, name: str) -> None:
    source = f'hear("{name}"); hear("USR2"); tell("ready"); forever()'
    with window(world, source, leader=leader) as shown:
        shown.wait_for(b"ready")
        shown.type(key)
        shown.wait_for(b"heard " + name.encode())
        # Passed on behind whatever would have been passed on for the key.
        kill(shown.pid, signal.SIGUSR2)
        shown.wait_for(b"heard USR2")
        assert shown.told.read_text().split("\n").count(f"heard {name}") == 1
        kill(shown.agent)
        wait_dead(shown.pid)


def test_ctrl_c_is_heard_once_however_slowly_we_start(world: World) -> None:
    disk = SlowDisk(world)
    source = 'hear("INT"); hear("USR2"); tell("ready"); forever()'
    with window(world, source, env=disk.env) as shown:
        shown.wait_for(b"ready")
        shown.type(b"\x03")
        shown.wait_for(b"heard INT")
        disk.read_on()
        kill(shown.pid, signal.SIGUSR2)
        shown.wait_for(b"heard USR2")
        assert shown.told.read_text().split("\n").count("heard INT") == 1
        kill(shown.agent)
        wait_dead(shown.pid)


def test_ctrl_c_kills_agent_and_supervisor_as_one(world: World) -> None:
    with window(
        world, 'signal.signal(signal.SIGINT, signal.SIG_DFL); tell("ready"); forever()'
    ) as shown:
        shown.wait_for(b"ready")
        shown.type(b"\x03")
        assert shown.shell_says("ended") == str(-signal.SIGINT)


def test_ctrl_z_stops_the_job_and_fg_continues_it(world: World) -> None:
    source = """
hear("CONT")
with session("chat") as chat:
    chat.message("user", "hello")
    tell("ready")
    line = sys.stdin.readline()
    tell("read " + line.strip())
    chat.delta("after")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    with window(world, source) as shown:
        shown.wait_for(b"ready")
        agent = shown.agent
        for _ in range(2):
            shown.type(b"\x1a")
            assert shown.shell_says("stopped") == str(int(signal.SIGTSTP))
            assert state(agent) == "T"
            assert state(shown.pid) == "T"
            shown.continue_job()
            until(lambda: state(agent) == "S" and state(shown.pid) == "S", "both go on")
            shown.wait_for(b"heard CONT")
            shown.text = b""
        shown.type(b"go\n")
        shown.wait_for(b"read go")
        assert shown.shell_says("ended") == str(-signal.SIGKILL)
    assert [row["content"] for row in world.messages("chat")] == ["hello", "after"]


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


@pytest.mark.parametrize(
    "stop",
    [
        "os.kill(os.getpid(), signal.SIGSTOP)",
        "signal.signal(signal.SIGTSTP, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGTSTP)",
    ],
    ids=["SIGSTOP", "SIGTSTP"],
)
def test_an_agent_that_tidies_up_before_it_stops_is_waited_for(world: World, stop: str) -> None:
    """As full-screen programs do: leave the screen, then stop."""
    source = f"""
def suspend(number, frame):
    tell("tidied up")
    {stop}
    tell("back again")
signal.signal(signal.SIGTSTP, suspend)
tell("ready")
forever()
"""
    with window(world, source) as shown:
        shown.wait_for(b"ready")
        shown.type(b"\x1a")
        shown.shell_says("stopped")
        shown.wait_for(b"tidied up")
        assert b"back again" not in shown.rest()
        shown.continue_job()
        shown.wait_for(b"back again")
        kill(shown.agent)
        assert shown.shell_says("ended") == str(-signal.SIGKILL)


def test_an_agent_that_ignores_ctrl_z_is_not_left_alone_by_us(world: World) -> None:
    source = 'signal.signal(signal.SIGTSTP, signal.SIG_IGN); hear("USR1"); tell("ready"); forever()'
    with window(world, source) as shown:
        shown.wait_for(b"ready")
        shown.type(b"\x1a")
        kill(shown.pid, signal.SIGUSR1)
        shown.wait_for(b"heard USR1")  # passed on, so we run
        kill(shown.agent)
        assert shown.shell_says("ended") == str(-signal.SIGKILL)


def test_continuing_the_supervisor_alone_continues_the_agent(world: World) -> None:
    with window(world, 'hear("CONT"); tell("ready"); forever()') as shown:
        shown.wait_for(b"ready")
        shown.type(b"\x1a")
        shown.shell_says("stopped")
        os.kill(shown.pid, signal.SIGCONT)
        shown.wait_for(b"heard CONT")
        kill(shown.agent)
        wait_dead(shown.pid)


def test_reading_in_the_background_stops_the_job_until_it_is_in_front(world: World) -> None:
    source = 'tell("ready"); tell("read " + sys.stdin.readline())'
    with window(world, source, background=True) as shown:
        shown.wait_for(b"ready")
        assert shown.shell_says("stopped") == str(int(signal.SIGTTIN))
        shown.continue_job()
        shown.type(b"line\n")
        shown.wait_for(b"read line")
        assert shown.shell_says("ended") == "0"


def test_the_size_of_the_window_reaches_the_agent(world: World) -> None:
    source = """
def resized(*_):
    size = os.get_terminal_size(0)
    tell(f"size {size.columns}x{size.lines}")
signal.signal(signal.SIGWINCH, resized)
tell("ready")
forever()
"""
    with window(world, source) as shown:
        shown.wait_for(b"ready")
        fcntl.ioctl(shown.master, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 111, 0, 0))
        shown.wait_for(b"size 111x33")
        kill(shown.agent)
        wait_dead(shown.pid)


# -- the window is closed ----------------------------------------------------------------------

SPEAKS = """
with session("chat") as chat:
    chat.message("user", "hello")
    chat.message("assistant", "Hello.")
    tell("ready")
    forever()
"""


@pytest.mark.parametrize("leader", ["shell", "supervisor"])
def test_closed_window_and_an_agent_that_dies_of_it(world: World, leader: str) -> None:
    with window(world, SPEAKS, *world.hook, leader=leader) as shown:
        shown.wait_for(b"ready")
        agent = shown.agent
        shown.close()
        wait_dead(agent)
        wait_dead(shown.pid)
        if leader == "supervisor":
            assert shown.process.wait() == -signal.SIGHUP
    [event] = world.events()
    extra = event["extra"]
    assert extra["reason"] == "killed by SIGHUP: the terminal was closed"
    assert (extra["signal"], extra["terminal_closed"]) == (signal.SIGHUP, True)
    [report] = world.reports()
    assert (report["outcome"], report["cause"]) == ("interrupted", extra["reason"])
    assert world.runs() == []


@pytest.mark.parametrize("leader", ["shell", "supervisor"])
def test_closed_window_and_an_agent_that_cleans_up_by_itself(world: World, leader: str) -> None:
    source = 'hear("HUP", lambda: sys.exit(0))' + SPEAKS
    with window(world, source, *world.hook, leader=leader) as shown:
        shown.wait_for(b"ready")
        shown.close()
        wait_dead(shown.pid)
        if leader == "supervisor":
            assert shown.process.wait() == 0
        assert shown.told.read_text() == "ready\nheard HUP\n"
    assert world.events() == [], "a clean exit is not an interruption"
    [report] = world.reports()
    assert report["outcome"] != "interrupted"
    assert report["cause"] == "exited with code 0 after the terminal was closed"


def test_closed_window_and_an_agent_that_stays_is_left_to_itself(world: World) -> None:
    """The shell led the session, so the kernel has told the agent: it may stay, as without us."""
    with window(world, 'hear("HUP")' + SPEAKS, "--grace=0.1", *world.hook) as shown:
        shown.wait_for(b"ready")
        agent = shown.agent
        shown.close()
        until(lambda: "heard HUP" in shown.told.read_text(), "the agent hears of it")
        assert shown.process.wait(DEADLINE) == -signal.SIGHUP
        # More than the grace: had it been passed on, the agent would be dead.
        time.sleep(0.4)
        assert alive(shown.pid)
        kill(agent)
        wait_dead(shown.pid)
        assert shown.told.read_text() == "ready\nheard HUP\n"
    [event] = world.events()
    assert event["extra"]["reason"] == "killed by SIGKILL after the terminal was closed"


def test_closed_window_and_an_agent_that_stays_is_killed_where_only_we_were_told(
    world: World,
) -> None:
    options = ("--grace=0.3", *world.hook)
    with window(world, 'hear("HUP")' + SPEAKS, *options, leader="supervisor") as shown:
        shown.wait_for(b"ready")
        shown.close()
        assert shown.process.wait(DEADLINE) == -signal.SIGKILL
        assert shown.told.read_text() == "ready\nheard HUP\n", "once, then SIGKILL"
    [event] = world.events()
    assert event["extra"]["reason"] == "killed by SIGKILL after the terminal was closed"
    assert [row["content"] for row in world.messages("chat")] == ["hello", "Hello."]


# -- what is left on the screen ----------------------------------------------------------------

MESSY = """
import tty
with session("chat") as chat:
    chat.message("user", "my secret")
    chat.delta("secret reply")
    tty.setraw(0)
    os.write(1, b"\\x1b[?1049h\\x1b[?1000h\\x1b[?1006h\\x1b[?2004h\\x1b[?25l")
    tell("ready")
    forever()
"""
RESET = b"\x1b[?1049l"


def test_after_a_crash_the_terminal_is_as_before(world: World) -> None:
    with window(world, MESSY) as shown:
        shown.wait_for(b"ready")
        assert termios.tcgetattr(shown.slave) != shown.before
        kill(shown.agent)
        assert shown.shell_says("ended") == str(-signal.SIGKILL)
        shown.wait_for(b"PROMPT> ")
        assert termios.tcgetattr(shown.slave) == shown.before
        after = shown.text.split(b"ready", 1)[1]
        for mode in (b"1049", b"1000", b"1002", b"1003", b"1006", b"1004", b"2004"):
            assert b"\x1b[?" + mode + b"l" in after
        assert b"\x1b[?25h" in after
        assert after.index(RESET) < after.index(b"hermes-supervise:"), "then our own words"


@pytest.mark.parametrize("code", [0, 3])
def test_an_agent_that_exits_and_left_the_terminal_in_order_is_not_tidied_after(
    world: World, code: int
) -> None:
    source = f"""
with session("chat") as chat:
    chat.message("user", "hello")
    chat.message("assistant", "Hello.")
    tell("ready")
os._exit({code})
"""
    with window(world, source) as shown:
        assert shown.shell_says("ended") == str(code)
        shown.wait_for(b"PROMPT> ")
        assert RESET not in shown.text
        if code == 0:
            assert shown.text.split() == [b"ready", b"PROMPT>"], "no word of ours"


def test_an_agent_that_fails_and_leaves_the_terminal_raw_is_tidied_after(world: World) -> None:
    """An uncaught error in a full-screen program is a crash, too, though no signal."""
    with window(world, MESSY.replace("forever()", "os._exit(1)")) as shown:
        assert shown.shell_says("ended") == "1"
        shown.wait_for(b"PROMPT> ")
        assert RESET in shown.text
        assert termios.tcgetattr(shown.slave) == shown.before


def test_a_launcher_that_dies_leaves_the_terminal_to_the_agent_that_lives(world: World) -> None:
    source = """
reading, writing = os.pipe()
if os.fork():
    os.read(reading, 1)
    os.kill(os.getpid(), signal.SIGKILL)
hear("USR1")
""" + MESSY.replace('tell("ready")', 'os.write(writing, b"x"); tell("ready " + str(os.getpid()))')
    with window(world, source) as shown:
        shown.wait_for(b"ready")
        until(lambda: "ready" in shown.told.read_text())
        agent = int(shown.told.read_text().split()[1])
        until(lambda: f"PPid:\t{shown.pid}\n" in Path(f"/proc/{agent}/status").read_text())
        # Passed on to the agent, so we know that its launcher is dead.
        until(lambda: not other_children(shown.pid, agent), "the launcher is reaped")
        kill(shown.pid, signal.SIGUSR1)
        shown.wait_for(b"heard USR1")
        assert RESET not in shown.text
        assert termios.tcgetattr(shown.slave) != shown.before
        kill(agent)
        assert shown.shell_says("ended") == str(-signal.SIGKILL)
        shown.wait_for(b"PROMPT> ")
        assert RESET in shown.text
        assert termios.tcgetattr(shown.slave) == shown.before


def other_children(pid: int, known: int) -> list[int]:
    """Children that run something else than we do (the witness is a fork of ours)."""
    ours = Path(f"/proc/{pid}/cmdline").read_bytes()
    words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    others = [int(word) for word in words if int(word) != known]
    return [one for one in others if Path(f"/proc/{one}/cmdline").read_bytes() != ours]


def test_in_the_background_the_terminal_is_somebody_elses(world: World) -> None:
    source = """
with session("chat") as chat:
    chat.delta("Hel")
    tell("ready")
    forever()
"""
    with window(world, source, background=True) as shown:
        shown.wait_for(b"ready")
        changed = termios.tcgetattr(shown.slave)
        changed[3] &= ~termios.ECHO  # as an editor in the foreground would
        termios.tcsetattr(shown.slave, termios.TCSANOW, changed)
        kill(shown.agent)
        assert shown.shell_says("ended") == str(-signal.SIGKILL)
        shown.wait_for(b"PROMPT> ")
        assert RESET not in shown.text
        assert termios.tcgetattr(shown.slave) == changed


def test_a_terminal_that_understands_no_sequences_gets_none(world: World) -> None:
    with window(world, MESSY, env={"TERM": "dumb"}) as shown:
        shown.wait_for(b"ready")
        kill(shown.agent)
        shown.shell_says("ended")
        shown.wait_for(b"PROMPT> ")
        assert b"\x1b" not in shown.text.split(b"ready", 1)[1]
        assert termios.tcgetattr(shown.slave) == shown.before


def test_a_terminal_that_is_held_does_not_hold_up_recovery(world: World) -> None:
    """Ctrl-S: nothing can be written until Ctrl-Q."""
    source = """
with session("chat") as chat:
    chat.delta("Hel")
    tell("ready")
    forever()
"""
    with window(world, source, "--quiet", *world.hook) as shown:
        shown.wait_for(b"ready")
        shown.type(b"\x13")
        kill(shown.agent)
        assert shown.shell_says("ended") == str(-signal.SIGKILL)
        assert len(world.events()) == 1
        shown.type(b"\x11")


# -- the notice --------------------------------------------------------------------------------


def test_the_notice_is_short_and_says_nothing_of_what_was_said(world: World) -> None:
    with window(world, MESSY) as shown:
        shown.wait_for(b"ready")
        kill(shown.agent)
        shown.shell_says("ended")
        shown.wait_for(b"PROMPT> ")
        notice = shown.text[shown.text.index(b"hermes-supervise:") :].split(b"PROMPT")[0].decode()
    lines = notice.split("\r\n")[:-1]
    assert 2 <= len(lines) <= 4
    assert "killed by SIGKILL" in lines[0]
    assert "recovered 2 messages" in notice
    assert "hermes-supervise show chat" in lines[-1]
    assert "secret" not in notice


def test_the_notice_does_not_go_on_in_the_line_that_the_agent_was_writing(world: World) -> None:
    source = """
with session("chat") as chat:
    chat.delta("half a line")
    os.write(1, b"half a line")
    forever()
"""
    with window(world, source) as shown:
        shown.wait_for(b"half a line")
        kill(shown.agent)
        shown.shell_says("ended")
        shown.wait_for(b"PROMPT> ")
        assert b"\r\nhermes-supervise: the agent was interrupted" in shown.text


def test_a_session_id_cannot_play_with_the_terminal(world: World) -> None:
    source = """
with session("\\x1b]0;owned\\x07\\x9b2J\\r\\u202eevil") as chat:
    chat.delta("Hel")
    tell("ready")
    forever()
"""
    with window(world, source) as shown:
        shown.wait_for(b"ready")
        kill(shown.agent)
        shown.shell_says("ended")
        shown.wait_for(b"PROMPT> ")
        notice = shown.text[shown.text.index(b"hermes-supervise:") :].split(b"PROMPT")[0].decode()
    assert "\\x1b]0;owned\\x07" in notice
    assert not [c for c in notice if c != "\n" and c != "\r" and not c.isprintable()]
    assert notice.count("\r") == notice.count("\n")


def test_quiet_says_nothing_but_still_tidies(world: World) -> None:
    with window(world, MESSY, "--quiet") as shown:
        shown.wait_for(b"ready")
        kill(shown.agent)
        shown.shell_says("ended")
        shown.wait_for(b"PROMPT> ")
        assert b"hermes-supervise" not in shown.text
        assert RESET in shown.text


def test_standard_error_that_is_gone_is_not_an_error(world: World) -> None:
    """The agent dies first, and the window is closed while its session is being finished."""
    gate = world.folder / "gate"
    os.mkfifo(gate)
    hook = ("--on-session-end", f"/bin/sh -c 'read line < {gate}; echo $line > {gate}.passed'")
    source = """
with session("chat") as chat:
    chat.delta("Hel")
    tell("ready")
    forever()
"""
    with window(world, source, *hook, leader="supervisor") as shown:
        shown.wait_for(b"ready")
        kill(shown.agent)

        def opened() -> int | None:
            try:
                return os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                return None

        writing = until(opened, "the hook runs")
        shown.close()
        os.write(writing, b"through\n")
        os.close(writing)
        assert shown.process.wait(DEADLINE) == -signal.SIGKILL
    assert Path(f"{gate}.passed").read_text() == "through\n"
    [report] = world.reports()
    assert report["cause"] == "killed by SIGKILL", "the window was closed after that"
    assert world.runs() == []


# -- in a terminal emulator --------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_in_a_terminal_emulator_the_screen_is_as_before(world: World) -> None:
    """Main screen, no mouse, cursor visible, and what comes next stands below what was there."""
    socket = ["tmux", "-S", str(Path(world.env["XDG_RUNTIME_DIR"]) / "tmux"), "-f", "/dev/null"]

    def tmux(*words: str) -> str:
        done = subprocess.run([*socket, *words], env=world.env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    agent = world.script(LISTENER + MESSY)
    command = " ".join([*world.command, "--quiet", "--", sys.executable, agent])
    script = world.folder / "job.sh"
    script.write_text(
        f"echo above\necho $$ > {world.folder}/shell\n{command}\necho below\nread x\n"
    )
    tmux("new-session", "-d", "-x", "80", "-y", "24", "-c", str(world.folder), f"sh {script}")
    try:
        flags = "#{alternate_on} #{mouse_any_flag} #{cursor_flag}"

        def shows() -> str:
            return tmux("display-message", "-p", flags).strip()

        until(lambda: (world.folder / "told").exists() and shows() == "1 1 0", "the agent's screen")
        shell = int((world.folder / "shell").read_text())
        supervisor = next(int(c) for c in children_of(shell))
        finder = Supervised.__new__(Supervised)
        finder.pid = supervisor
        kill(finder.agent)
        until(lambda: "below" in tmux("capture-pane", "-p"), "the shell goes on")
        assert shows() == "0 0 1"
        # The shell's own word for the death stands between the two.
        lines = [line for line in tmux("capture-pane", "-p").split("\n") if line]
        assert (lines[0], lines[-1]) == ("above", "below")
        assert len(lines) <= 3
        assert "secret" not in "".join(lines)
    finally:
        subprocess.run([*socket, "kill-server"], env=world.env, capture_output=True)


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
