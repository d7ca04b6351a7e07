"""The agent is whoever goes on in place of the command that was started: launchers, daemons."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import World, alive, child_of, kill, short, until, wait_dead

# Sends nothing until it is asked to: the process that started it is long gone by then.
LATE = """
ready(f"agent {os.getpid()}")
while not os.path.exists("speak"):
    time.sleep(0.01)
with session("late") as chat:
    chat.message("user", "are you there?")
    chat.delta("Yes, I")
    ready("spoke")
    forever()
"""


def speak(world: World) -> None:
    (world.folder / "speak").touch()


def test_an_agent_that_a_script_puts_into_the_background_is_followed_before_it_speaks(
    world: World,
) -> None:
    script = world.script(LATE)
    agent = world.run(["sh", "-c", f"{sys.executable} {script} & exit 3"], *world.hook)
    pid = int(agent.wait_for("agent").split()[1])
    until(lambda: parent_of(pid) == agent.pid, "the launcher is gone")
    assert agent.process.poll() is None, "the run goes on with the agent"
    speak(world)
    agent.wait_for("spoke")
    kill(pid)
    assert agent.finish() == 3, "the status of the command that was run"
    assert short(world.messages("late"))[-1] == ("assistant", "Yes, I")
    [event] = world.events()
    assert event["extra"]["reason"] == "killed by SIGKILL"
    assert "interrupted: killed by SIGKILL" in agent.errors.decode(), "not how the launcher ended"
    assert world.runs() == []


def test_an_agent_that_never_speaks_is_followed_to_its_end_and_hears_signals(
    world: World,
) -> None:
    line = "trap 'echo heard; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    agent = world.run(["sh", "-c", f'sh -c "{line}" & exit 0'])
    agent.wait_for("ready")
    assert agent.process.poll() is None
    kill(agent.pid, signal.SIGTERM)
    agent.wait_for("heard")
    assert agent.finish() == 0
    # Its last `sleep` may outlive it by a moment.
    until(lambda: world.call("recover").returncode == 0 and not world.runs(), "all is over")


def test_a_command_that_becomes_another_and_another_stays_the_same_process(world: World) -> None:
    script = world.script(LATE)
    again = f"exec {sys.executable} {script}"
    agent = world.run(["sh", "-c", f'exec sh -c "{again}"'])
    pid = int(agent.wait_for("agent").split()[1])
    assert pid == agent.agent
    speak(world)
    agent.wait_for("spoke")
    kill(pid)
    assert agent.finish() == -signal.SIGKILL
    assert short(world.messages("late"))[-1] == ("assistant", "Yes, I")


def test_a_launcher_in_node_that_is_killed_leaves_the_agent_and_the_run_goes_on(
    world: World,
) -> None:
    node = shutil.which("node")
    assert node is not None, "Node.js is needed here"
    script = world.script(LATE)
    launcher = world.folder / "launcher.js"
    launcher.write_text(
        "require('child_process').spawn(process.argv[2], [process.argv[3]], {stdio: 'inherit'})\n"
    )
    agent = world.run([node, str(launcher), sys.executable, script], *world.hook)
    pid = int(agent.wait_for("agent").split()[1])
    assert parent_of(pid) == agent.agent
    agent.kill_agent()
    until(lambda: parent_of(pid) == agent.pid, "the agent is ours now")
    speak(world)
    agent.wait_for("spoke")
    assert agent.process.poll() is None
    kill(pid, signal.SIGTERM)
    assert agent.finish() == -signal.SIGKILL, "as whoever waits for the launcher would have seen"
    assert short(world.messages("late"))[-1] == ("assistant", "Yes, I")
    [event] = world.events()
    assert event["extra"]["reason"] == "killed by SIGTERM"


def test_a_launcher_that_starts_itself_again_and_again_is_followed(world: World) -> None:
    """Each leaves its successor behind and ends, as programs do that update themselves."""
    script = world.script(
        """
import subprocess
left = int(sys.argv[1])
if left:
    subprocess.Popen([sys.executable, __file__, str(left - 1)])
    os._exit(0)
"""
        + LATE
    )
    agent = world.run([sys.executable, script, "3"])
    pid = int(agent.wait_for("agent").split()[1])
    until(lambda: parent_of(pid) == agent.pid, "all before it are gone")
    speak(world)
    agent.wait_for("spoke")
    kill(pid)
    assert agent.finish() == 0
    assert short(world.messages("late"))[-1] == ("assistant", "Yes, I")


# Leaves two processes behind. Before the second, the pids begin again at the bottom, as they do on
# every machine that runs for long, and the clock by which the kernel dates processes ticks.
WRAPS = """
import subprocess
stay = ["/bin/sh", "-c", "read line"]
older = subprocess.Popen(stay)
with open(f"/proc/{older.pid}/stat") as file:
    began = int(file.read().rpartition(")")[2].split()[19])
while time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK") < began + 1:
    pass
with open("/proc/sys/kernel/ns_last_pid", "w") as file:
    file.write(sys.argv[1])
younger = subprocess.Popen(stay)
ready(f"left {older.pid} {younger.pid}")
os._exit(0)
"""


def test_the_older_of_two_that_are_left_is_the_one_that_began_first(world: World) -> None:
    low = 300
    program = shlex.join([sys.executable, world.script(WRAPS), str(low)])
    line = f"echo {low + 1000} > /proc/sys/kernel/ns_last_pid; exec {shlex.join(world.command)}"
    inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]
    if subprocess.run([*inside, "echo 400 > /proc/sys/kernel/ns_last_pid"]).returncode:
        pytest.skip("no pid namespace can be made here")
    agent = world.shell(f"exec {shlex.join(inside)} {shlex.quote(f'{line} -- {program}')}")
    older, younger = map(int, agent.wait_for("left").split()[1:])
    assert younger < older
    [run] = until(world.runs, "the run")

    def noted() -> str:
        return (run / "agent").read_text().split()[0]

    until(lambda: noted() in (str(older), str(younger)), "the command has gone, others are left")
    assert noted() == str(older)


# -- who is let go -----------------------------------------------------------------------------

DAEMON = """
# The book's way: fork, a session of its own, fork again.
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
with open("daemon.pid.new", "w") as file:
    file.write(str(os.getpid()))
os.rename("daemon.pid.new", "daemon.pid")
{before}
forever()
"""


def daemon_of(world: World) -> int:
    path = world.folder / "daemon.pid"
    until(path.exists, "the daemon's pid")
    return int(path.read_text())


def test_a_daemon_does_not_keep_us_from_returning(world: World) -> None:
    nothing = "null = os.open(os.devnull, os.O_RDWR); [os.dup2(null, fd) for fd in (0, 1, 2)]"
    agent = world.supervise(DAEMON.format(before=nothing))
    pid = daemon_of(world)
    try:
        assert agent.finish() == 0
        assert alive(pid)
        assert len(world.runs()) == 1, "it may still speak, and has a place for that"
    finally:
        os.kill(pid, signal.SIGKILL)
    wait_dead(pid)
    assert world.call("recover").stdout == "nothing to recover\n"
    assert world.runs() == []


def test_one_that_leaves_our_session_after_its_launcher_ended_is_let_go(world: World) -> None:
    """Nobody reports a setsid: it is seen by looking once more."""
    source = """
if os.fork():
    os._exit(0)
with open("daemon.pid.new", "w") as file:
    file.write(str(os.getpid()))
os.rename("daemon.pid.new", "daemon.pid")
while os.path.exists("stay"):
    time.sleep(0.001)
os.setsid()
null = os.open(os.devnull, os.O_RDWR)
for fd in (0, 1, 2):
    os.dup2(null, fd)
forever()
"""
    (world.folder / "stay").touch()
    agent = world.supervise(source)
    pid = daemon_of(world)
    try:
        until(lambda: parent_of(pid) == agent.pid, "the launcher is gone")
        (world.folder / "stay").unlink()
        assert agent.finish() == 0
        assert alive(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_daemon_that_speaks_before_its_launcher_ends_is_an_agent(world: World) -> None:
    source = """
reading, writing = os.pipe()
if os.fork():
    os.read(reading, 1)
    os._exit(0)
os.setsid()
chat = session("daemon")
chat.message("user", "hello")
chat.delta("Hel")
os.write(writing, b"x")
ready(f"agent {os.getpid()}")
forever()
"""
    agent = world.supervise(source)
    pid = int(agent.wait_for("agent").split()[1])
    until(lambda: parent_of(pid) == agent.pid, "the launcher is gone")
    assert agent.process.poll() is None
    kill(pid)
    assert agent.finish() == 0
    assert short(world.messages("daemon"))[-1] == ("assistant", "Hel")


def test_what_an_agent_that_spoke_leaves_at_its_output_is_a_tool_and_not_waited_for(
    world: World,
) -> None:
    agent = world.supervise(
        """
import subprocess
chat = session("chat")
chat.message("user", "hello")
tool = subprocess.Popen(["sleep", "307"])
ready(f"tool {tool.pid}")
forever()
"""
    )
    pid = int(agent.wait_for("tool").split()[1])
    try:
        agent.kill_agent()
        assert agent.process.wait(30) == -signal.SIGKILL
        assert alive(pid)
        assert world.session("chat")["end_reason"] == "interrupted"  # type: ignore[index]
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.both_platforms
def test_one_that_let_go_of_its_output_is_not_waited_for_and_loses_nothing(world: World) -> None:
    """`nohup agent >log &`: it may speak for the first time when we are gone, into its spool."""
    script = world.script(LATE)
    line = f"nohup {sys.executable} {script} >log 2>&1 & echo $!"
    agent = world.run(["sh", "-c", line])
    pid = int(agent.wait_for(""))
    assert agent.finish() == 0
    assert alive(pid)
    [run] = world.runs()
    speak(world)
    until(lambda: "spoke" in (world.folder / "log").read_text(), "it has spoken")
    kill(pid)
    wait_dead(pid)
    assert world.call("recover").returncode == 0
    assert short(world.messages("late")) == [
        ("user", "are you there?"),
        ("assistant", "Yes, I"),
    ]
    assert not run.exists()


def test_the_successor_of_a_killed_supervisor_follows_whom_it_followed(world: World) -> None:
    script = world.script(LATE)
    agent = world.run(["sh", "-c", f"{sys.executable} {script} & exit 0"], *world.hook)
    pid = int(agent.wait_for("agent").split()[1])
    until(lambda: parent_of(pid) == agent.pid, "the launcher is gone")
    [run] = world.runs()
    until(lambda: (run / "agent").read_text().startswith(f"{pid} "), "it is written down")
    kill(agent.pid)
    [successor] = until(world.successors, "a successor")
    child_of(successor)  # its standby: it is at work
    speak(world)
    agent.wait_for("spoke")
    kill(pid)
    [event] = until(world.events, "the hook")
    assert event["session_id"] == "late"
    wait_dead(successor)
    assert short(world.messages("late"))[-1] == ("assistant", "Yes, I")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
