"""What a dead agent leaves running is found, described, and ended only where it should be."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hermes_world import Hermes, Model, call, say
from support import Supervised, World, alive, until, wait_dead

# A tool as Hermes starts one: a shell, leader of its own session, that reads the dump first.
AGENT = """
import json, subprocess
from pathlib import Path

def start(words):
    null = subprocess.DEVNULL
    return subprocess.Popen(words, start_new_session=True, stdout=null, stderr=null).pid

dump = Path("hermes-snap-abc.sh").absolute()
dump.write_text("export SECRET=1\\n")
tool = start(["bash", "-c", f"source {dump}; {STUBBORN} sleep 300 & echo $! > inner; wait; wait"])
while not (os.path.exists("inner") and open("inner").read().strip()):
    time.sleep(0.01)
job = start(["bash", "-c", f"source {dump}; sleep 301; true"])
other = start(["sleep", "302"])
home = Path(os.environ["HERMES_HOME"])
home.mkdir(exist_ok=True)
(home / "processes.json").write_text(json.dumps([{"pid": job, "command": "sleep 301"}]))
chat = session("chat", source="cli")
chat.message("user", "hi")
pids = [tool, int(open("inner").read()), job, other]
ready("left " + json.dumps(pids))
"""


class Left:
    """An agent that has started a tool, a job and another process, and will be killed."""

    def __init__(self, world: World, *options: str, stubborn: bool = False, end: str = "") -> None:
        trap = "trap '' TERM;" if stubborn else ""
        source = AGENT.replace("{STUBBORN}", trap) + (end or "forever()")
        self.agent: Supervised = world.supervise(source, *options)
        said = self.agent.wait_for("left ")
        self.tool, self.inner, self.job, self.other = json.loads(said[5:])
        self.pids = [self.tool, self.inner, self.job, self.other]

    def clear(self) -> None:
        for pid in self.pids:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def left(world: World) -> Iterator[Any]:
    made: list[Left] = []

    def make(*options: str, **more: Any) -> Left:
        made.append(Left(world, *options, **more))
        return made[-1]

    yield make
    for known in made:
        known.clear()


def reported(world: World) -> dict[int, dict[str, Any]]:
    [report] = world.reports()
    return {orphan["pid"]: orphan for orphan in report["orphans"]}


def test_the_tool_of_a_killed_hermes_is_ended_and_all_else_is_reported(
    world: World, left: Any
) -> None:
    it = left()
    it.agent.kill_agent()
    assert it.agent.finish() == -signal.SIGKILL
    for pid in (it.tool, it.inner):
        assert not alive(pid), "the tool, and what it had started"
    for pid in (it.job, it.other):
        assert alive(pid), "not ours to end"
    orphans = reported(world)
    assert {pid: (orphan["kind"], orphan["done"]) for pid, orphan in orphans.items()} == {
        it.tool: ("tool", "told to end"),
        it.job: ("background job", "left running"),
        it.other: ("other", "left running"),
    }
    dump = str(world.folder / "hermes-snap-abc.sh")
    assert orphans[it.tool]["dumps"] == [dump]
    assert orphans[it.other]["command"] == "sleep 302"
    assert 0 <= orphans[it.other]["age"] < 3600
    errors = it.agent.errors.decode()
    assert f"tool process {it.tool}" in errors
    assert f"process {it.other}" in errors
    assert dump in errors
    shown = world.call("show", "chat").stdout
    assert f"background job process {it.job}" in shown
    assert dump in shown
    assert Path(dump).exists(), "named, not deleted"


def test_a_tool_that_does_not_listen_is_killed(world: World, left: Any) -> None:
    it = left(stubborn=True)
    it.agent.kill_agent()
    it.agent.finish()
    wait_dead(it.tool)
    wait_dead(it.inner)
    assert ", killed: bash -c source" in it.agent.errors.decode()


@pytest.mark.parametrize("wanted", ["report", "leave"])
def test_with_report_nothing_is_ended_and_with_leave_nothing_is_looked_at(
    world: World, left: Any, wanted: str
) -> None:
    it = left("--orphans", wanted)
    it.agent.kill_agent()
    it.agent.finish()
    assert all(alive(pid) for pid in it.pids)
    orphans = reported(world)
    if wanted == "leave":
        assert orphans == {}
        assert b"process" not in it.agent.errors
    else:
        assert set(orphans) == {it.tool, it.job, it.other}
        assert {orphan["done"] for orphan in orphans.values()} == {"left running"}


def test_who_exits_in_order_may_leave_what_it_likes(world: World, left: Any) -> None:
    it = left(end="sys.exit(0)")
    assert it.agent.finish() == 0
    assert all(alive(pid) for pid in it.pids)
    assert it.agent.notices == b""


def test_who_fails_leaves_its_daemons_but_no_tool_that_nobody_waits_for(
    world: World, left: Any
) -> None:
    it = left(end="os._exit(3)")
    assert it.agent.finish() == 3
    assert not alive(it.tool)
    assert alive(it.job)
    assert alive(it.other)
    assert set(reported(world)) == {it.tool}


def leaves_behind(command: str) -> list[str]:
    """A shell that starts a command, prints its pid once it runs, and is killed."""
    runs = f"grep -q {command.split()[0]} /proc/$!/cmdline"
    script = f"{command} >/dev/null 2>&1 & until {runs}; do :; done; echo $!; kill -9 $$"
    return ["sh", "-c", script]


def test_processes_left_by_an_agent_without_a_session_are_named(world: World) -> None:
    agent = world.run(leaves_behind("sleep 303"))
    pid = int(agent.wait_for(""))
    try:
        assert agent.finish() == -signal.SIGKILL
        assert alive(pid)
        assert re.search(rf"\b{pid}\b.*: sleep 303$", agent.errors.decode(), flags=re.M)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_quiet_says_nothing_of_it(world: World) -> None:
    agent = world.run(leaves_behind("sleep 304"), "--quiet")
    pid = int(agent.wait_for(""))
    try:
        agent.finish()
        assert agent.errors == b""
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_shell_of_a_tool_that_is_over_is_left_alone(world: World) -> None:
    """What a finished tool left in the background is not the tool Hermes waits for."""
    agent = world.supervise(
        """
import subprocess
dump = os.path.abspath("hermes-snap-x.sh")
open(dump, "w").close()
line = f"source {dump}; ( sleep 305; true ) & echo $!"
done = subprocess.run(["bash", "-c", line], start_new_session=True, stdout=subprocess.PIPE)
session("chat", source="cli").message("user", "hi")
ready("left " + done.stdout.decode().strip())
forever()
""".replace("& echo", ">/dev/null 2>&1 & echo")
    )
    pid = int(agent.wait_for("left ").split()[1])
    try:
        agent.kill_agent()
        agent.finish()
        assert alive(pid)
        assert reported(world)[pid]["done"] == "left running"
    finally:
        os.killpg(os.getpgid(pid), signal.SIGKILL)
        until(lambda: not alive(pid))


def test_a_background_job_of_a_real_hermes_is_reported_and_goes_on(world: World) -> None:
    model = Model()
    try:
        hermes = Hermes("0.19.0", world, model)
        line = f"sleep 306; touch {world.folder / 'never'}"
        model.script = [
            [call("terminal", {"command": line, "background": True}, "call_1")],
            [*say("It runs"), ("hold", "here")],
        ]
        agent = world.run([hermes.command, "chat", "-q", "hello", "-Q", "--yolo"])
        model.wait_until_held()
        [job] = json.loads((world.home / "processes.json").read_text())
        try:
            agent.kill_agent()
            agent.finish()
            assert alive(job["pid"])
            orphan = reported(world)[job["pid"]]
            assert (orphan["kind"], orphan["done"]) == ("background job", "left running")
            assert f"background job process {job['pid']}" in agent.errors.decode()
        finally:
            os.killpg(os.getpgid(job["pid"]), signal.SIGKILL)
    finally:
        model.close()


@pytest.mark.parametrize("value", ["kill", ""])
def test_a_wrong_word_is_refused(world: World, value: str) -> None:
    answer = world.call("--orphans", value, "--", "true")
    assert answer.returncode == 125
    assert "--orphans" in answer.stderr
