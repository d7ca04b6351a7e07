"""On a real terminal: job control, a closed window, and the state it is left in (G4, G5, G8).

The test holds the other side of a pseudo-terminal, as a terminal emulator does.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support import DEADLINE, SlowDisk, Supervised, World, alive, kill, until, wait_dead
from terminals import Terminal
from tmux import Tmux
from window import LISTENER, Window, window

pytestmark = pytest.mark.both_platforms

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
        assert shown.heard.read_text().split("\n").count(f"heard {name}") == 1
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
        assert shown.heard.read_text().split("\n").count("heard INT") == 1
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


def test_an_agent_that_takes_long_to_tidy_up_still_gives_the_terminal_back(world: World) -> None:
    source = """
def suspend(number, frame):
    tell("tidying up")
    time.sleep(1.5)  # longer than a Ctrl-Z was once remembered
    os.kill(os.getpid(), signal.SIGSTOP)
    tell("back again")
signal.signal(signal.SIGTSTP, suspend)
tell("ready")
forever()
"""
    with window(world, source) as shown:
        shown.wait_for(b"ready")
        shown.type(b"\x1a")
        assert shown.shell_says("stopped") == str(int(signal.SIGSTOP))
        shown.continue_job()
        shown.wait_for(b"back again")
        kill(shown.agent)
        assert shown.shell_says("ended") == str(-signal.SIGKILL)


def test_an_agent_in_raw_mode_that_stops_itself_gives_the_terminal_back(world: World) -> None:
    """It reads Ctrl-Z as a key: no signal tells anybody."""
    source = """
import tty
before = termios.tcgetattr(0)
tty.setraw(0)
tell("ready")
assert os.read(0, 1) == b"\\x1a"
termios.tcsetattr(0, termios.TCSANOW, before)
os.kill(os.getpid(), signal.SIGSTOP)
tell("back again")
forever()
"""
    with window(world, source) as shown:
        shown.wait_for(b"ready")
        shown.type(b"\x1a")
        assert shown.shell_says("stopped") == str(int(signal.SIGSTOP))
        assert state(shown.pid) == "T"
        shown.continue_job()
        shown.wait_for(b"back again")
        kill(shown.agent)
        assert shown.shell_says("ended") == str(-signal.SIGKILL)


def test_where_no_shell_waits_somebody_elses_stop_does_not_stop_us(world: World) -> None:
    """Nobody would be there to continue us."""
    with window(world, 'hear("USR1"); tell("ready"); forever()', leader="supervisor") as shown:
        shown.wait_for(b"ready")
        agent = shown.agent
        kill(agent, signal.SIGSTOP)
        until(lambda: state(agent) == "T", "it is stopped")
        kill(agent, signal.SIGCONT)
        kill(shown.pid, signal.SIGUSR1)
        shown.wait_for(b"heard USR1")  # forwarded, so we run
        kill(agent)
        wait_dead(shown.pid)


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
        assert shown.heard.read_text() == "ready\nheard HUP\n"
    assert world.events() == [], "a clean exit is not an interruption"
    [report] = world.reports()
    assert report["outcome"] != "interrupted"
    assert report["cause"] == "exited with code 0 after the terminal was closed"


def test_closed_window_and_an_agent_that_stays_is_left_to_itself(world: World) -> None:
    """The shell led the session, so the kernel has signalled the agent: it may stay."""
    with window(world, 'hear("HUP")' + SPEAKS, "--grace=0.1", *world.hook) as shown:
        shown.wait_for(b"ready")
        agent = shown.agent
        shown.close()
        until(lambda: "heard HUP" in shown.heard.read_text(), "the agent hears of it")
        assert shown.process.wait(DEADLINE) == -signal.SIGHUP
        # More than the grace: had it been passed on, the agent would be dead.
        time.sleep(0.4)
        assert alive(shown.pid)
        kill(agent)
        wait_dead(shown.pid)
        assert shown.heard.read_text() == "ready\nheard HUP\n"
    [event] = world.events()
    assert event["extra"]["reason"] == "killed by SIGKILL after the terminal was closed"


def test_closed_window_and_an_agent_that_stays_is_killed_where_only_we_got_the_signal(
    world: World,
) -> None:
    options = ("--grace=0.3", *world.hook)
    with window(world, 'hear("HUP")' + SPEAKS, *options, leader="supervisor") as shown:
        shown.wait_for(b"ready")
        shown.close()
        assert shown.process.wait(DEADLINE) == -signal.SIGKILL
        assert shown.heard.read_text() == "ready\nheard HUP\n", "once, then SIGKILL"
    [event] = world.events()
    assert event["extra"]["reason"] == "killed by SIGKILL after the terminal was closed"
    assert [row["content"] for row in world.messages("chat")] == ["hello", "Hello."]


def test_closed_window_kills_what_stays_of_an_agent_whose_launcher_died_of_it(
    world: World,
) -> None:
    """Except a process in another group, which the kernel would not have signalled either."""
    stays = world.script(LISTENER + 'hear("HUP")' + SPEAKS.replace("ready", "stays"), "stays.py")
    daemon = world.script(
        "os.setsid()\n" + LISTENER + SPEAKS.replace("ready", "daemon"), "daemon.py"
    )
    launcher = f"""
import subprocess
children = [subprocess.Popen([sys.executable, path]) for path in ({stays!r}, {daemon!r})]
tell("pids " + " ".join(str(child.pid) for child in children))
forever()
"""
    with window(world, launcher, "--grace=0.3", leader="supervisor") as shown:
        for word in (b"pids", b"stays", b"daemon"):
            shown.wait_for(word)
        [line] = [line for line in shown.heard.read_text().split("\n") if "pids" in line]
        in_group, elsewhere = map(int, line.split()[1:])
        shown.close()
        wait_dead(in_group)
        assert alive(elsewhere)
        kill(elsewhere)
        wait_dead(shown.pid)
        assert "heard HUP" in shown.heard.read_text(), "it was asked before it was killed"


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
        until(lambda: "ready" in shown.heard.read_text())
        agent = int(shown.heard.read_text().split()[1])
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
    """Children that run something else than we do (the standby is a fork of ours)."""
    ours = Path(f"/proc/{pid}/cmdline").read_bytes()
    words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    others = [int(word) for word in words if int(word) != known]
    return [other for other in others if Path(f"/proc/{other}/cmdline").read_bytes() != ours]


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
        assert b"\r\n\x1b[Jhermes-supervise: " in shown.text


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


@pytest.mark.needs_linux("elsewhere a process is followed only once it has connected")
def test_a_process_left_on_the_terminal_is_named_and_can_be_left(world: World) -> None:
    pid_file = world.folder / "pid"
    agent = ["sh", "-c", f"sleep 300 & echo $! > {pid_file}; exit 3"]
    shown = Window(world, agent)
    left = 0
    try:
        left = int(until(lambda: pid_file.exists() and pid_file.read_text(), "the child"))
        shown.wait_for(f"process {left} ".encode())
        shown.wait_for(b": sleep 300")
        shown.type(b"\x03")
        assert shown.shell_says("ended") == "3"
        os.kill(left, 0)  # it ignores the key, and is left running
        # Its user left it. No supervisor was killed, and no shell took the terminal from it.
        [run] = json.loads(world.call("ps", "--json").stdout)["runs"]
        assert (run["pid"], run["out_of_reach"]) == (left, None)
        assert str(left) not in world.call("sessions").stdout
    finally:
        if left:
            os.kill(left, signal.SIGKILL)
        shown.clean_up()


@pytest.mark.needs_linux("the foreground of a terminal is not known elsewhere")
@pytest.mark.parametrize("more", ["--resume some-id", ""])
def test_an_agent_out_of_reach_that_has_said_nothing_is_resumed_as_it_was_started(
    world: World, more: str
) -> None:
    silent = world.folder / "hermes"
    silent.write_text("#!/bin/sh\nexec sleep 300\n")
    silent.chmod(0o755)
    terminal = Terminal()
    agent = 0
    try:
        _, supervisor = terminal.run_in_shell(world, [str(silent), *more.split()])

        def the_run() -> dict[str, Any] | None:
            runs = json.loads(world.call("ps", "--json").stdout)["runs"]
            return runs[0] if runs and runs[0]["pid"] else None

        agent = until(the_run, "the run")["pid"]
        kill(supervisor)
        ending = f"kill {agent}"
        resume = f"; hermes-supervise -- {silent} {more}" if more else ""
        until(
            lambda: (run := the_run()) and run["out_of_reach"] == ending + resume,
            "it is named with what ends and resumes it",
        )
    finally:
        if agent:
            os.kill(agent, signal.SIGKILL)
        until(lambda: world.runs() == [], "the successor has finished it", 60)
        terminal.close()


def test_a_recovery_that_waits_for_a_lock_says_so_at_the_terminal(world: World) -> None:
    source = 'chat = session("chat")\nchat.message("user", "x")\nready("ready")\nforever()'
    world.supervise('session("first").message("user", "x")').finish()  # makes the file
    agent = world.supervise(source, "--no-adopt")
    agent.wait_for("ready")
    agent.abandon()
    with closing(sqlite3.connect(world.db, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        terminal = Terminal()
        try:
            recovering = terminal.start(world, [*world.command, "recover"])
            terminal.wait_for("Ctrl-C leaves")
            terminal.type("\x03")
            assert recovering.process.wait(DEADLINE) == -signal.SIGINT
        finally:
            terminal.close()
        db.execute("ROLLBACK")
    assert world.call("recover").returncode == 0
    assert [row["content"] for row in world.messages("chat")] == ["x"]


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

        until(
            lambda: (world.folder / "heard").exists() and shows() == "1 1 0", "the agent's screen"
        )
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


FRAME = """
import tty
with session("chat") as chat:
    chat.delta("half")
    tty.setraw(0)
    rows = (f"\\x1b[{row};1H| row {row} of the frame |" for row in range(1, 23))
    frame = "".join(row.ljust(60, "#") for row in rows)
    os.write(1, ("\\x1b[5;20r" + frame + "\\x1b[12;5H\\x1b]0;a title that never en").encode())
    open("drawn", "w").close()
    forever()
"""


def test_the_notice_stands_on_lines_of_its_own_below_a_frame_that_fills_the_screen(
    world: World,
) -> None:
    """The cursor was in the middle of the frame, in the middle of a sequence."""
    screen = Tmux(world, 80, 24)
    pid = screen.start(
        [*world.command, "--", sys.executable, world.script(LISTENER + FRAME)], world.folder
    )
    try:
        until((world.folder / "drawn").exists, "the frame is drawn")
        screen.wait_for("row 22 of the frame")
        finder = Supervised.__new__(Supervised)
        finder.pid = pid
        kill(finder.agent)
        screen.wait_for("read it: hermes-supervise show chat")
        lines = screen.screen.split("\n")
        first = next(at for at, line in enumerate(lines) if line.startswith("hermes-supervise: "))
        assert lines[first - 1].startswith("| row 12 of the frame")
        assert "#" not in "".join(lines[first:])
        assert "row 1 of the frame" in lines[0], "what stood above it is still there"
    finally:
        screen.close()


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
