"""Each signal has one owner, and the agent hears each once (G5)."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

import pytest
from support import (
    Supervised,
    World,
    alive,
    child_of,
    children,
    kill,
    short,
    standby_of,
    until,
    wait_dead,
)  # fmt: skip

pytestmark = pytest.mark.both_platforms

UNKNOWN = "exit status unknown"

FORWARDED = ["TERM", "HUP", "INT", "QUIT", "USR1", "USR2"]

# Counts what it hears. SIGRTMIN is the test's own: sent to the agent alone, after everything
# else, it is handled last.
LISTENER = """
names = {signal.Signals[f"SIG{name}"]: name for name in "TERM HUP INT QUIT USR1 USR2".split()}
heard = []
for number in names:
    def note(number, frame):
        heard.append(number)
        os.write(1, f"heard {names[number]}\\n".encode())  # print is not for handlers
    signal.signal(number, note)
def stop(number, frame):
    os.write(1, f"in all {' '.join(names[number] for number in heard)}\\n".encode())
    os._exit(0)
signal.signal(signal.SIGRTMIN, stop)
ready()
forever()
"""


def listening(world: World, *options: str) -> Supervised:
    agent = world.supervise(LISTENER, *options, start_new_session=True)
    agent.wait_for("ready")
    assert agent.agent
    standby_of(agent.pid)
    return agent


def all_that_was_heard(agent: Supervised) -> list[str]:
    kill(agent.agent, signal.SIGRTMIN)
    heard = agent.wait_for("in all").split()[2:]
    assert agent.finish() == 0
    return heard


# A later signal to the supervisor alone is passed on behind every earlier one, so when it is
# heard, whatever would have been heard twice has been.
def nothing_is_on_its_way(agent: Supervised, other_than: str) -> str:
    last = "USR2" if other_than != "USR2" else "USR1"
    kill(agent.pid, signal.Signals[f"SIG{last}"])
    agent.wait_for(f"heard {last}")
    return last


@pytest.mark.parametrize("name", FORWARDED)
def test_a_signal_to_the_supervisor_alone_is_heard_once(world: World, name: str) -> None:
    agent = listening(world)
    kill(agent.pid, signal.Signals[f"SIG{name}"])
    agent.wait_for(f"heard {name}")
    last = nothing_is_on_its_way(agent, name)
    assert all_that_was_heard(agent) == [name, last]


@pytest.mark.parametrize("name", FORWARDED)
def test_a_signal_to_the_whole_group_is_heard_once(world: World, name: str) -> None:
    agent = listening(world)
    os.killpg(agent.pid, signal.Signals[f"SIG{name}"])
    agent.wait_for(f"heard {name}")
    last = nothing_is_on_its_way(agent, name)
    assert all_that_was_heard(agent) == [name, last]


def test_a_signal_to_the_whole_group_is_heard_once_on_a_busy_machine(world: World) -> None:
    """The standby may be the last to run; its answer is waited for, not a time."""
    agent = listening(world)
    standby = standby_of(agent.pid)
    os.setpriority(os.PRIO_PROCESS, standby, 19)
    busy = [subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"]) for _ in range(6)]
    try:
        for _ in range(5):
            os.killpg(agent.pid, signal.SIGUSR1)
            agent.wait_for("heard USR1")
            nothing_is_on_its_way(agent, "USR1")
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert all_that_was_heard(agent) == ["USR1", "USR2"] * 5


def test_every_one_of_several_in_a_row_is_passed_on(world: World) -> None:
    agent = listening(world)
    for _ in range(3):
        kill(agent.pid, signal.SIGTERM)
        agent.wait_for("heard TERM")
    assert all_that_was_heard(agent) == ["TERM"] * 3


def test_a_burst_to_the_whole_group_is_not_passed_on_a_second_time(world: World) -> None:
    """The kernel may make one of several. The agent hears at most as many as were sent."""
    agent = listening(world)
    for _ in range(5):
        os.killpg(agent.pid, signal.SIGUSR1)
    nothing_is_on_its_way(agent, "USR1")
    assert 1 <= all_that_was_heard(agent).count("USR1") <= 5


def test_without_its_standby_the_supervisor_idles_and_still_passes_on(world: World) -> None:
    agent = listening(world)
    standby = standby_of(agent.pid)
    kill(standby)
    until(lambda: not Path(f"/proc/{standby}").exists(), "the standby is reaped")
    before = processor_time(agent.pid)
    kill(agent.pid, signal.SIGTERM)
    agent.wait_for("heard TERM")
    # Long enough for a loop that spins on the closed pipe to be seen.
    time.sleep(0.3)
    assert processor_time(agent.pid) - before < 0.2
    assert all_that_was_heard(agent) == ["TERM"]


NO_PROCESS = """
import errno, os, sys
if "hermes_supervise.supervisor" in sys.orig_argv:
    def fork():
        raise BlockingIOError(errno.EAGAIN, "no more processes")
    os.fork = fork
"""


def test_a_supervisor_that_gets_no_standby_still_passes_on(world: World) -> None:
    (world.folder / "sitecustomize.py").write_text(NO_PROCESS)
    env = {**world.env, "PYTHONPATH": str(world.folder)}
    agent = world.supervise(LISTENER, start_new_session=True, env=env)
    agent.wait_for("ready")
    kill(agent.pid, signal.SIGTERM)
    agent.wait_for("heard TERM")
    assert children(agent.pid) == [agent.agent]
    assert all_that_was_heard(agent) == ["TERM"]


# A loop that is kept busy for longer than a testimony counts otherwise.
BUSY = """
import os, select, signal, time
from hermes_supervise.supervisor.process.loop import Loop
from hermes_supervise.supervisor.process.signals import _REPORT_LIFETIME, Signals, Standby
loop, signals, taken, passed_on = Loop(), Signals(), [], []
standby = Standby()
standby.start(loop, passed_on.append)
def take():
    for number in signals.take():
        taken.append(number)
        standby.check(number)
    loop.after(0, lambda: time.sleep(_REPORT_LIFETIME * 1.2))
loop.when_readable(signals.fileno(), take)
os.killpg(0, signal.SIGUSR1)
for fd in (signals.fileno(), standby._reports):
    select.select([fd], [], [])
loop.run_until(lambda: taken and not standby._unasked and not standby._asked)
standby.stop()
print(taken == [signal.SIGUSR1], passed_on)
"""


def test_a_supervisor_that_is_busy_does_not_forget_what_its_standby_said() -> None:
    result = subprocess.run(
        [sys.executable, "-c", BUSY],
        capture_output=True, text=True, timeout=60, start_new_session=True,
    )  # fmt: skip
    assert (result.stdout, result.stderr) == ("True []\n", "")


def processor_time(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_stopped_standby_does_not_keep_a_signal_back(world: World) -> None:
    agent = listening(world)
    kill(standby_of(agent.pid), signal.SIGSTOP)
    kill(agent.pid, signal.SIGTERM)
    agent.wait_for("heard TERM")
    assert all_that_was_heard(agent) == ["TERM"], "and nothing hangs at the end"


# -- TERM, grace, and the truth about it -------------------------------------------------------


def test_an_agent_that_ignores_term_is_killed_after_the_grace(world: World) -> None:
    agent = world.supervise(
        """
signal.signal(signal.SIGTERM, lambda *_: ready("heard TERM"))
with session("chat") as chat:
    chat.message("user", "hello")
    chat.delta("Hel")
    ready()
    forever()
""",
        "--grace=0.3",
        *world.hook,
    )
    agent.wait_for("ready")
    kill(agent.pid, signal.SIGTERM)
    agent.wait_for("heard TERM")
    assert agent.finish() == -signal.SIGKILL
    assert [row["content"] for row in world.messages("chat")] == ["hello", "Hel"]
    [event] = world.events()
    assert (event["extra"]["reason"], event["extra"]["signal"]) == ("killed by SIGKILL", 9)
    assert "killed by SIGKILL" in agent.errors.decode()


def test_an_agent_that_ends_by_itself_on_term_is_not_called_interrupted(world: World) -> None:
    agent = world.supervise(
        """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with session("chat") as chat:
    chat.message("user", "hello")
    chat.message("assistant", "Hello.")
    ready()
    forever()
""",
        *world.hook,
    )
    agent.wait_for("ready")
    kill(agent.pid, signal.SIGTERM)
    assert agent.finish() == 0
    assert agent.notices == b""
    assert world.events() == []
    ended = world.session("chat")
    assert ended is not None
    assert ended["end_reason"] != "interrupted"


def test_an_agent_that_dies_of_term_is_recovered_and_so_do_we(world: World) -> None:
    agent = world.supervise(
        """
with session("chat") as chat:
    chat.delta("Hel")
    ready()
    forever()
"""
    )
    agent.wait_for("ready")
    kill(agent.pid, signal.SIGTERM)
    assert agent.finish() == -signal.SIGTERM
    ended = world.session("chat")
    assert ended is not None
    assert ended["end_reason"] == "interrupted"


GRANDCHILD = """
# The launcher goes and leaves the agent behind, which has a session by then.
reading, writing = os.pipe()
launcher = os.getpid()
if os.fork():
    os.read(reading, 1)
    os._exit(5)
def on_term(*_):
    ready("heard TERM")
    {then}
signal.signal(signal.SIGTERM, on_term)
with session("chat") as chat:
    chat.message("user", "hello")
    chat.delta("Hel")
    os.write(writing, b"x")
    ready(f"ready {{os.getpid()}} {{launcher}}")
    forever()
"""


@pytest.mark.parametrize(
    ("then", "cause"),
    [("os._exit(3)", "exited with code 3"), ("pass", "killed by SIGKILL")],
    ids=["it ends", "it stays"],
)
def test_term_reaches_the_agent_that_its_launcher_left_behind(
    world: World, then: str, cause: str
) -> None:
    agent = world.supervise(GRANDCHILD.format(then=then), "--grace=0.3", *world.hook)
    _, pid, launcher = agent.wait_for("ready").split()
    until(lambda: parent_of(int(pid)) != int(launcher), "the launcher is gone")
    assert agent.process.poll() is None, "the run lasts as long as who owns a session"
    kill(agent.pid, signal.SIGTERM)
    agent.wait_for("heard TERM")
    assert agent.finish() == 5, "the status is that of the command that was run"
    [event] = world.events()
    # Elsewhere only a parent learns how a process ended.
    assert event["extra"]["reason"] == (cause if world.platform == "linux" else UNKNOWN)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def test_who_was_not_asked_to_end_is_asked_before_it_is_killed(world: World) -> None:
    """TERM ends the launcher at once and never reaches what it started."""
    agent = world.supervise(
        """
if os.fork():
    forever()
signal.signal(signal.SIGTERM, lambda *_: (ready("heard TERM"), os._exit(3)))
with session("chat") as chat:
    chat.delta("Hel")
    ready(f"ready {os.getpid()}")
    forever()
""",
        "--grace=0.3",
    )
    agent.wait_for("ready")
    kill(agent.pid, signal.SIGTERM)
    agent.wait_for("heard TERM")
    assert agent.finish() == -signal.SIGTERM


def opened_by_the_hook(gate: Path) -> TextIO:
    """The writing end of a fifo, once the hook reads from it."""

    def opened() -> int | None:
        try:
            return os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return None

    return os.fdopen(until(opened, "the hook runs"), "w")


def test_a_locked_database_does_not_hold_the_terminal_in_silence(world: World) -> None:
    source = 'chat = session("{}")\nchat.message("user", "x")\nready()\nforever()\n'
    earlier = world.supervise(source.format("earlier"))
    earlier.wait_for("ready")
    earlier.kill_agent()
    earlier.finish()
    lock = sqlite3.connect(world.db, isolation_level=None)
    try:
        lock.execute("BEGIN IMMEDIATE")
        agent = world.supervise(
            source.format("chat"), "--checkpoint", "0", stderr=subprocess.STDOUT
        )
        agent.wait_for("ready")
        agent.kill_agent()
        said = agent.wait_for("hermes-supervise: ")
        assert "state.db" in said and "Ctrl-C" in said, "what for, and how to leave"
        kill(agent.pid, signal.SIGINT)
        assert agent.finish() == -signal.SIGKILL, "as the agent ended"
        assert world.messages("chat") == []
    finally:
        lock.close()
    until(lambda: short(world.messages("chat")) == [("user", "x")], "it continued without us")
    until(lambda: world.call("recover").returncode == 0 and world.runs() == [], "and is over")


def killed_with_a_hook_at_a_gate(world: World) -> tuple[Supervised, Path]:
    """A killed agent whose hook waits until somebody writes a line to the gate, a named pipe."""
    gate = world.folder / "gate"
    os.mkfifo(gate)
    agent = world.supervise(
        """
with session("chat") as chat:
    chat.delta("Hel")
    ready()
    forever()
""",
        "--on-session-end",
        f"/bin/sh -c 'read line < {gate}; echo $line > {world.folder}/passed'",
        start_new_session=True,
    )
    agent.wait_for("ready")
    agent.kill_agent()
    return agent, gate


def test_signals_during_recovery_do_not_cut_it_off(world: World) -> None:
    """The agent is gone, a hook still runs: TERM and HUP are nobody's any more."""
    agent, gate = killed_with_a_hook_at_a_gate(world)
    with opened_by_the_hook(gate) as opened:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT):
            os.killpg(agent.pid, number)
        opened.write("through\n")
    assert agent.finish() == -signal.SIGKILL
    assert (world.folder / "passed").read_text() == "through\n"


def test_ctrl_c_during_recovery_gives_the_terminal_back_and_recovery_goes_on(world: World) -> None:
    agent, gate = killed_with_a_hook_at_a_gate(world)
    with opened_by_the_hook(gate) as opened:
        helper = next(pid for pid in children(agent.pid) if children(pid))
        os.killpg(agent.pid, signal.SIGINT)
        assert agent.process.wait(30) == -signal.SIGKILL
        assert alive(helper)
        opened.write("through\n")
    wait_dead(helper)
    assert (world.folder / "passed").read_text() == "through\n"
    answer = world.call("recover", "--json")
    assert answer.returncode == 0, answer.stderr
    assert world.runs() == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_signal_that_cannot_be_forwarded_is_reported_and_harms_nothing(world: World) -> None:
    """As with `hermes-supervise sudo agent`: the agent runs as a user whom we may not signal."""
    setpriv = shutil.which("setpriv")
    assert setpriv is not None
    process = subprocess.Popen(
        [setpriv, "--bounding-set=-kill", "--inh-caps=-kill", *world.command, "--",
         setpriv, "--reuid=12345", "--clear-groups", "/bin/sh", "-c", "echo ready; read line"],
        env=world.env, cwd=world.folder,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        assert b"12345" in process.stderr.readline(), "it is not captured, as a line says"
        kill(process.pid, signal.SIGUSR1)
        line = process.stderr.readline()
        assert b"SIGUSR1" in line and b"Operation not permitted" in line
        process.communicate(b"go on\n", timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0


def test_ctrl_c_before_the_agent_is_started_ends_us_without_a_trace(world: World) -> None:
    """While leftovers of an earlier crash are being finished."""
    gate = world.folder / "gate"
    os.mkfifo(gate)
    crashed = world.supervise(
        """
with session("chat") as chat:
    chat.delta("Hel")
    ready()
    forever()
""",
        "--no-adopt",
        "--on-session-end",
        f"/bin/sh -c 'read line < {gate}'",
    )
    crashed.wait_for("ready")
    child = crashed.agent
    journals = world.runs()[0]
    until(lambda: any(b"Hel" in f.read_bytes() for f in journals.glob("*log")), "the journal")
    crashed.process.kill()
    crashed.process.wait()
    os.kill(child, signal.SIGKILL)
    wait_dead(child)
    agent = world.run([sys.executable, "-c", "print('ran')"])
    child_of(agent.pid)  # finishes the leftovers; the start waits for it, but not for ever
    kill(agent.pid, signal.SIGINT)
    assert agent.finish() == -signal.SIGINT
    assert (agent.output, agent.errors) == (b"", b"")
    opened_by_the_hook(gate).close()
