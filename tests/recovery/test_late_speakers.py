"""A process of the agent that speaks for the first time when the agent is gone: nothing is lost.

The folder of a run stays as long as anybody lives who was started in the run.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator

import pytest
from support import Supervised, World, alive, kill, short, standby_of, until, wait_dead

# The parent has sent records. The child sends nothing until it is asked to.
AGENT = """
import subprocess
chat = session("chat")
chat.message("user", "hello")

def late():
    while not os.path.exists("speak"):
        time.sleep(0.01)
    chat.message("user", "late")
    chat.delta("Yes, I")
    open("spoke", "w").close()
    forever()

{begin}
os.read(0, 1)
os._exit(0)
"""

FORKED = """
if (child := os.fork()) == 0:
    late()
ready(f"child {child}")
"""
IN_ITS_OWN_SESSION = """
if (child := os.fork()) == 0:
    os.setsid()
    ready(f"child {os.getpid()}")
    late()
"""
OF_A_CHILD_THAT_IS_GONE = """
if (child := os.fork()) == 0:
    if os.fork() == 0:
        ready(f"child {os.getpid()}")
        late()
    os._exit(0)
os.waitpid(child, 0)
"""
ANOTHER_INTERPRETER = """
source = open(sys.argv[0]).read()
late = source[: source.index("import subprocess")] + '''
while not os.path.exists("speak"):
    time.sleep(0.01)
chat = session("chat")
chat.message("user", "late")
chat.delta("Yes, I")
open("spoke", "w").close()
forever()
'''
null = subprocess.DEVNULL
child = subprocess.Popen([sys.executable, "-c", late], stdin=null, stdout=null)
ready(f"child {child.pid}")
"""
BEGINNINGS = {
    "forked": FORKED,
    "in its own session": IN_ITS_OWN_SESSION,
    "of a child that is gone": OF_A_CHILD_THAT_IS_GONE,
    "another interpreter": ANOTHER_INTERPRETER,
}


def start(world: World, begin: str, *options: str) -> tuple[Supervised, int]:
    agent = world.supervise(AGENT.format(begin=begin), *options, stdin=subprocess.PIPE)
    return agent, int(agent.wait_for("child").split()[1])


def end(agent: Supervised, how: str) -> None:
    """Not `finish`: the child has the output open as well."""
    if how == "killed":
        agent.kill_agent()
        assert agent.process.wait(30) == -signal.SIGKILL
    else:
        assert agent.process.stdin is not None
        agent.process.stdin.write(b".")
        agent.process.stdin.flush()
        assert agent.process.wait(30) == 0


def speak_and_die(world: World, child: int) -> None:
    (world.folder / "speak").touch()
    until((world.folder / "spoke").exists, "the child has spoken")
    kill(child)
    wait_dead(child)


def texts(world: World) -> list[str | None]:
    return [content for _, content in short(world.messages("chat"))]


@pytest.fixture(params=BEGINNINGS)
def begin(request: pytest.FixtureRequest) -> Iterator[str]:
    yield BEGINNINGS[request.param]


@pytest.mark.parametrize("how", ["killed", "exited"])
def test_what_a_child_says_after_its_parents_end_is_recovered(
    world: World, begin: str, how: str
) -> None:
    agent, child = start(world, begin)
    end(agent, how)
    assert alive(child)
    [run] = world.runs()
    assert json.loads(world.call("recover", "--json").stdout)["running"] == [run.name]
    assert texts(world) == ["hello"], "the parent's messages do not wait"
    speak_and_die(world, child)
    assert json.loads(world.call("ps", "--json").stdout)["left_behind"] == [run.name]
    assert world.call("recover").returncode == 0
    assert texts(world) == ["hello", "late", "Yes, I"]
    assert world.runs() == []


def test_what_a_child_says_after_a_takeover_and_its_parents_end_is_recovered(world: World) -> None:
    agent, child = start(world, FORKED)
    parent = agent.agent
    successor = standby_of(agent.pid)
    kill(agent.pid)
    agent.process.wait()
    until(world.successors, "a successor")
    kill(parent)
    wait_dead(successor)
    assert alive(child)
    assert texts(world) == ["hello"]
    speak_and_die(world, child)
    assert world.call("recover").returncode == 0
    assert texts(world) == ["hello", "late", "Yes, I"]
    assert world.runs() == []


def test_what_a_child_says_when_nobody_supervises_any_more_is_recovered(world: World) -> None:
    """Supervisor and agent are killed; the next start finishes the run, and must not remove it."""
    agent, child = start(world, FORKED, "--no-adopt")
    parent = agent.agent
    kill(agent.pid)
    agent.process.wait()
    kill(parent)
    wait_dead(parent)
    assert world.call("--", "true").returncode == 0
    until(lambda: texts(world) == ["hello"], "the next start has finished the parent")
    speak_and_die(world, child)
    assert world.call("recover").returncode == 0
    assert texts(world) == ["hello", "late", "Yes, I"]
    assert world.runs() == []


def test_a_tool_that_is_left_running_makes_nobody_wait_and_no_noise(world: World) -> None:
    agent, tool = start(
        world,
        "tool = subprocess.Popen(['sleep', '307'])\nready(f'child {tool.pid}')\n",
        "--orphans",
        "leave",
    )
    end(agent, "killed")
    [run] = world.runs()
    assert json.loads(world.call("ps", "--json").stdout)["runs"] == []
    assert "to be recovered" not in world.call("sessions").stdout
    assert world.call("--exclusive", "--", "true").returncode == 0
    assert world.runs() == [run]
    kill(tool)
    wait_dead(tool)
    assert "to be recovered" not in world.call("sessions").stdout, "nor once the tool has ended"
    assert json.loads(world.call("ps", "--json").stdout) == {"runs": [], "left_behind": []}
    checks = json.loads(world.call("doctor", "--json").stdout)["checks"]
    assert [check["state"] for check in checks if check["name"] == "leftovers"] == ["ok"]
    assert world.call("--", "true").returncode == 0
    until(lambda: world.runs() == [], "the next start has removed it")
    assert [report["outcome"] for report in world.reports()] == ["interrupted"]
