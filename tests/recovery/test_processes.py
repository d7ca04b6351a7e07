"""Several processes in one session: every message is stored, once, in the order in which they were
said, and the session ends with the last process that can go on with it."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import Any

import pytest
from support import Supervised, World, kill, let_through, short, until, wait_dead

pytestmark = pytest.mark.both_platforms

# A parent and a child that speak in the same session. The child says what it is asked to say, and
# the parent goes on once that has been handed over.
FORKED = """
chat = session("chat")
ask, asked = os.pipe()
said, answered = os.pipe()
if (child := os.fork()) == 0:
    os.close(asked)
    for line in open(ask):
        kind, _, text = line.strip().partition(" ")
        if kind == "delta":
            chat.delta(text)
        elif kind == "exit":
            os._exit(int(text))
        else:
            chat.message(kind, text)
        os.write(answered, b".")
    forever()
os.close(ask)
def child_says(text, kind="user"):
    os.write(asked, f"{kind} {text}\\n".encode())
    os.read(said, 1)
"""


def texts(world: World, session: str = "chat") -> list[str | None]:
    """The session's messages; also while somebody is just making the file."""
    try:
        return [content for _, content in short(world.messages(session))]
    except sqlite3.OperationalError:
        return []


def report_of(world: World, session: str = "chat") -> list[tuple[str, str]]:
    return [(r["outcome"], r["cause"]) for r in world.reports() if r["session"] == session]


def kill_all(agent: Supervised, *pids: int) -> None:
    for pid in pids:
        kill(pid)
    for pid in pids:
        wait_dead(pid)
    agent.finish()


# -- identity ------------------------------------------------------------------------------------


def test_the_same_words_from_a_parent_and_its_fork_are_all_stored(world: World) -> None:
    agent = world.supervise(
        FORKED
        + """
for _ in range(3):
    chat.message("user", "again")
    child_says("again")
ready(f"child {child}")
forever()
"""
    )
    child = int(agent.wait_for("child").split()[1])
    kill_all(agent, agent.agent, child)
    assert texts(world) == ["again"] * 6


@pytest.mark.parametrize("checkpoint", ["0", "0.1"])
def test_a_process_for_each_turn_may_say_the_same_words_every_time(
    world: World, checkpoint: str
) -> None:
    turn = world.script(
        """
chat = session("chat")
chat.message("user", "again")
chat.message("assistant", "done")
""",
        "turn.py",
    )
    agent = world.supervise(
        f"""
import subprocess
for _ in range(3):
    subprocess.run([sys.executable, {turn!r}], check=True)
""",
        "--checkpoint",
        checkpoint,
    )
    assert agent.finish() == 0
    assert texts(world) == ["again", "done"] * 3


LIFE = """
chat = session("chat")
for _ in range(3):
    chat.message("user", "again")
chat.delta("par")
ready()
forever()
"""


def test_a_new_life_may_say_what_an_old_one_said(world: World) -> None:
    for _ in range(2):
        agent = world.supervise(LIFE, "--no-adopt")
        agent.wait_for("ready")
        agent.abandon()
        assert world.call("recover").returncode == 0
    assert texts(world) == ["again", "again", "again", "par"] * 2


def test_a_clock_that_was_ahead_in_an_earlier_life_hides_nothing(world: World) -> None:
    ahead = world.folder / "ahead"
    ahead.mkdir()
    (ahead / "sitecustomize.py").write_text(
        "import time\nreal = time.time\ntime.time = lambda: real() + 86400\n"
    )
    for env in ({**world.env, "PYTHONPATH": str(ahead)}, world.env):
        agent = world.supervise(LIFE, *world.hook, env=env)
        agent.wait_for("ready")
        agent.kill_agent()
        agent.finish()
    assert texts(world) == ["again", "again", "again", "par"] * 2
    assert len(world.events()) == 2
    ahead_of_time, last = sorted(world.reports(), key=lambda report: -float(report["died_at"]))
    assert (ahead_of_time["outcome"], last["outcome"]) == ("interrupted", "interrupted")
    row = world.session("chat")
    assert row is not None
    assert row["ended_at"] == last["died_at"], "the end is that of the life that ended last"


# -- order ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint", ["0", "0.05"])
def test_a_parent_and_its_fork_are_stored_in_the_order_in_which_they_spoke(
    world: World, checkpoint: str
) -> None:
    agent = world.supervise(
        FORKED
        + """
for number in range(0, 60, 2):
    chat.message("user", f"{number}")
    child_says(f"{number + 1}")
    if number % 20 == 0:
        time.sleep(0.1)
ready(f"child {child}")
forever()
""",
        "--checkpoint",
        checkpoint,
    )
    child = int(agent.wait_for("child").split()[1])
    kill_all(agent, agent.agent, child)
    assert texts(world) == [str(number) for number in range(60)]


class Child:
    """The child of `FORKED`, asked by the test itself: it outlives its parent."""

    def __init__(self, agent: Supervised) -> None:
        _, pid, asked = agent.wait_for("child").split()
        self.pid = int(pid)
        self._pipe = os.open(f"/proc/{agent.agent}/fd/{asked}", os.O_WRONLY)

    def says(self, *lines: str) -> None:
        os.write(self._pipe, "".join(f"{line}\n" for line in lines).encode())

    def exits(self, status: int = 0) -> None:
        self.says(f"exit {status}")
        os.close(self._pipe)
        wait_dead(self.pid)


@pytest.mark.parametrize("first", ["parent", "child"])
def test_the_order_holds_when_one_dies_while_the_other_goes_on(world: World, first: str) -> None:
    agent = world.supervise(
        FORKED
        + """
signal.signal(signal.SIGUSR1, lambda *_: (chat.message("user", "6"), ready("said")))
for number in range(0, 6, 2):
    chat.message("user", f"{number}")
    child_says(f"{number + 1}")
ready(f"child {child} {asked}")
forever()
"""
    )
    child = Child(agent)
    parent = agent.agent
    if first == "parent":
        kill(parent)
        until(lambda: "4" in texts(world), "the parent is recovered")
        child.says("user 6")
    else:
        child.exits(1)
        until(lambda: "5" in texts(world), "the child is recovered")
        kill(parent, signal.SIGUSR1)
        agent.wait_for("said")
        kill(parent)
    if first == "parent":
        child.exits(1)
    agent.finish()
    assert texts(world) == [str(number) for number in range(7)]


def test_a_reply_stands_where_it_began(world: World) -> None:
    """The child streams a reply; the parent speaks in the middle of it; both are killed."""
    agent = world.supervise(
        FORKED
        + """
chat.message("user", "question")
child_says("Hel", "delta")
chat.message("user", "in between")
child_says("lo", "delta")
ready(f"child {child}")
forever()
"""
    )
    child = int(agent.wait_for("child").split()[1])
    # The parent first, so that it is recovered while the reply may still grow.
    kill(agent.agent)
    until(lambda: b'"death"' in b"".join(f.read_bytes() for f in logs(world)), "it is noticed")
    kill(child)
    agent.finish()
    assert short(world.messages("chat")) == [
        ("user", "question"), ("assistant", "Hello"), ("user", "in between"),
    ]  # fmt: skip
    assert world.runs() == []


def logs(world: World) -> list[Any]:
    return [path for run in world.runs() for path in run.glob("*.log")]


@pytest.mark.parametrize("checkpoint", ["0", "0.05"])
def test_what_is_said_before_and_after_an_exec_stays_in_order(
    world: World, checkpoint: str
) -> None:
    agent = world.supervise(
        """
number = int(sys.argv[1]) if len(sys.argv) > 1 else 0
chat = session("chat")
chat.message("user", str(number))
chat.message("user", str(number + 1))
if number < 6:
    os.execv(sys.executable, [sys.executable, __file__, str(number + 2)])
ready()
forever()
""",
        "--checkpoint",
        checkpoint,
    )
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()
    assert texts(world) == [str(number) for number in range(8)]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_are_stored_in_the_order_in_which_they_spoke(world: World, method: str) -> None:
    agent = world.supervise(
        f"""
import multiprocessing
def work(number):
    session("chat").message("user", str(number))
if __name__ == "__main__":
    multiprocessing.set_start_method({method!r})
    chat = session("chat")
    for number in range(0, 8, 2):
        chat.message("user", str(number))
        worker = multiprocessing.Process(target=work, args=(number + 1,))
        worker.start()
        worker.join()
    chat.message("assistant", "done")
    chat.end()
"""
    )
    assert agent.finish() == 0
    assert texts(world) == [str(number) for number in range(8)] + ["done"]


def test_the_order_holds_for_a_child_that_cannot_connect(world: World) -> None:
    """The supervisor has no descriptor left for it, say: it is known by its ring and spool."""
    source = 'chat = session("chat")\nchat.message("user", "1")\nready()\nforever()\n'
    child = world.script(source, "child.py")
    agent = world.supervise(
        f"""
import subprocess
chat = session("chat")
chat.message("user", "0")
env = {{**os.environ, "HERMES_SUPERVISE_SOCKET": "/nowhere"}}
child = subprocess.Popen([sys.executable, {child!r}], env=env, stdout=subprocess.PIPE)
child.stdout.readline()
chat.message("user", "2")
ready(f"child {{child.pid}}")
forever()
"""
    )
    pid = int(agent.wait_for("child").split()[1])
    kill(agent.agent)
    until(lambda: "2" in texts(world), "the parent is recovered")
    kill(pid)
    wait_dead(pid)
    agent.finish()
    assert world.call("recover").returncode == 0
    assert texts(world) == ["0", "1", "2"]
    assert world.runs() == []


def test_a_new_life_is_stored_behind_the_old_one(world: World) -> None:
    """The old life is being recovered, slowly, while the new one already speaks."""
    agent = world.supervise(
        """
chat = session("chat")
for number in range(40):
    chat.message("user", f"old {number}")
ready()
forever()
""",
        "--no-adopt",
    )
    agent.wait_for("ready")
    agent.abandon()
    gate = world.folder / "gate"
    os.mkfifo(gate)
    slow = (
        "import os, sys\n"
        "from hermes_supervise.supervisor.__main__ import main\n"
        "from hermes_supervise.supervisor.statedb import writer\n"
        "writer.STEP = 10\n"
        "step = writer.SessionWriter._committed\n"
        "def slow(self):\n"
        "    step(self)\n"
        "    if self._queue:\n"
        f"        with open({str(gate)!r}) as file: file.read(1)\n"
        "writer.SessionWriter._committed = slow\n"
        "main()\n"
    )
    recovery = subprocess.Popen([sys.executable, "-c", slow, "recover"], env=world.env)
    try:
        until(lambda: len(texts(world)) == 10, "a first step")
        agent = world.supervise(
            """
chat = session("chat")
chat.message("user", "new")
ready()
forever()
""",
            "--checkpoint",
            "0.1",
        )
        agent.wait_for("ready")
        until(lambda: any(b'"new"' in path.read_bytes() for path in logs(world)), "it is heard")
        agent.kill_agent()
        for count in (20, 30, 40):
            let_through(gate)
            until(lambda count=count: len(texts(world)) >= count, "the next step")
        agent.finish()
        assert recovery.wait(30) == 0
    finally:
        recovery.kill()
        recovery.wait()
    assert texts(world) == [f"old {number}" for number in range(40)] + ["new"]


# -- the end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["parent", "child"])
def test_the_same_id_in_another_file_holds_no_session_open(world: World, first: str) -> None:
    other = world.home / "other.db"
    agent = world.supervise(
        f"""
said, answered = os.pipe()
if (child := os.fork()) == 0:
    session("chat", db={str(other)!r}).message("user", "there")
    os.write(answered, b".")
    forever()
os.read(said, 1)
session("chat").message("user", "here")
ready(f"child {{child}}")
forever()
""",
        *world.hook,
    )
    child = int(agent.wait_for("child").split()[1])
    parent = agent.agent
    kill(parent if first == "parent" else child)
    until(lambda: len(world.events()) == 1, "the first one's session is over")
    kill(child if first == "parent" else parent)
    agent.finish()
    assert len(world.events()) == 2
    for path in (world.db, other):
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            assert db.execute("SELECT end_reason FROM sessions").fetchall() == [("interrupted",)]


def ended(world: World) -> str | None:
    row = world.session("chat")
    return row["end_reason"] if row is not None else None


@pytest.mark.needs_linux("elsewhere only a parent learns how a process ended")
@pytest.mark.parametrize("speaks", ["before", "after"])
def test_a_worker_that_exits_in_order_does_not_hide_a_crash(world: World, speaks: str) -> None:
    agent = world.supervise(
        FORKED
        + f"""
if {speaks!r} == "before":
    child_says("working", "tool")
chat.message("user", "question")
chat.delta("Hel")
ready(f"child {{child}} {{asked}}")
forever()
""",
        *world.hook,
    )
    child = Child(agent)
    kill(agent.agent)
    until(lambda: "Hel" in texts(world), "the parent is recovered")
    known = speaks == "before"
    assert ended(world) == (None if known else "interrupted"), "the child can go on with it"
    if speaks == "after":
        child.says("assistant still here")
    child.exits(0)
    assert agent.finish() == -signal.SIGKILL
    assert ended(world) == "interrupted"
    assert ("interrupted", "killed by SIGKILL") in report_of(world)
    [event] = world.events()
    assert event["extra"]["signal"] == signal.SIGKILL


@pytest.mark.needs_linux("elsewhere only a parent learns how a process ended")
def test_a_turn_that_is_completed_after_a_crash_outlives_it(world: World) -> None:
    agent = world.supervise(
        FORKED
        + """
child_says("hello", "assistant")
chat.message("user", "question")
chat.delta("Hel")
ready(f"child {child} {asked}")
forever()
""",
        *world.hook,
    )
    child = Child(agent)
    kill(agent.agent)
    until(lambda: "Hel" in texts(world), "the parent is recovered")
    child.says("user again", "assistant answer")
    child.exits(0)
    agent.finish()
    assert texts(world) == ["hello", "question", "Hel", "again", "answer"]
    assert (ended(world), world.events()) == ("exited", [])


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("name", ["'chat'", "f'worker {number}'"], ids=["shared", "own"])
def test_workers_that_exit_in_order_are_no_crash(world: World, method: str, name: str) -> None:
    agent = world.supervise(
        f"""
import multiprocessing
def work(number):
    chat = session({name})
    chat.message("user", f"question {{number}}")
    chat.message("assistant", f"answer {{number}}")
if __name__ == "__main__":
    multiprocessing.set_start_method({method!r})
    workers = [multiprocessing.Process(target=work, args=(number,)) for number in range(5)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
""",
        *world.hook,
    )
    assert agent.finish() == 0
    assert {outcome for outcome, _ in map(outcome_and_cause, world.reports())} <= {
        "exited", "open elsewhere", "ended by the agent",
    }  # fmt: skip
    assert world.events() == []


def outcome_and_cause(report: dict[str, Any]) -> tuple[str, str]:
    return report["outcome"], report["cause"]


@pytest.mark.needs_linux("elsewhere only a parent learns how a process ended")
def test_a_worker_that_adds_a_result_and_exits_is_no_crash(world: World) -> None:
    agent = world.supervise(
        FORKED
        + """
calls = [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
chat.message("user", "question")
chat.message("assistant", None, tool_calls=calls)
child_says("result", "tool")
os.write(asked, b"exit 0\\n")
os.waitpid(child, 0)
chat.message("assistant", "answer")
""",
        *world.hook,
    )
    assert agent.finish() == 0
    assert ended(world) == "exited"
    assert world.events() == []
    assert json.dumps([r["outcome"] for r in world.reports()]).count("interrupted") == 0


@pytest.mark.needs_linux("elsewhere only a parent learns how a process ended")
def test_a_worker_whose_question_was_answered_may_be_the_last_to_exit(world: World) -> None:
    """What it asked is in flight in its own stream; the parent has answered it and is gone."""
    agent = world.supervise(
        FORKED
        + """
chat.message("user", "question")
child_says("and another")
chat.message("assistant", "answer")
ready(f"child {child} {asked}")
os.read(0, 1)
os._exit(0)
""",
        *world.hook,
        stdin=subprocess.PIPE,
    )
    child, parent = Child(agent), agent.agent
    assert agent.process.stdin is not None
    agent.process.stdin.write(b".")
    agent.process.stdin.flush()
    wait_dead(parent)
    child.exits(0)
    assert agent.finish() == 0
    assert ended(world) == "exited"
    assert world.events() == []


# -- what is stored while they run ---------------------------------------------------------------


def stored_while_they_run(world: World) -> None:
    """As with the default settings: the user's messages are stored at once."""
    del world.env["HERMES_SUPERVISE_CHECKPOINT"]


def test_the_order_holds_while_a_successor_stores_their_messages(world: World) -> None:
    """Both had announced the session to the supervisor that is dead."""
    stored_while_they_run(world)
    agent = world.supervise(
        FORKED
        + """
chat.message("user", "0")
child_says("1", "assistant")
ready(f"child {child}")
sys.stdin.readline()
child_says("2", "assistant")
chat.message("user", "3")
ready("said")
forever()
""",
        stdin=subprocess.PIPE,
    )
    child, parent = int(agent.wait_for("child").split()[1]), agent.agent
    until(lambda: "0" in texts(world), "the first checkpoint")
    kill(agent.pid)
    until(world.successors, "a successor")
    agent.send_line()
    agent.wait_for("said")
    until(lambda: "3" in texts(world), "a checkpoint of the successor")
    assert texts(world) == ["0", "1", "2", "3"]
    kill(child)
    kill(parent)
    until(lambda: not world.successors(), "all is recovered")
    assert texts(world) == ["0", "1", "2", "3"]


def test_the_order_holds_behind_a_rotation(world: World) -> None:
    """The parent never announces the new id: the conversation goes on under it."""
    stored_while_they_run(world)
    agent = world.supervise(
        """
chat = session("chat")
chat.message("user", "before")
chat.rotate("chat-2")
if os.fork() == 0:
    chat.message("assistant", "0")
    ready(f"child {os.getpid()}")
    forever()
sys.stdin.readline()
chat.message("user", "1")
ready("said")
forever()
""",
        stdin=subprocess.PIPE,
    )
    child = int(agent.wait_for("child").split()[1])
    agent.send_line()
    agent.wait_for("said")
    until(lambda: "1" in texts(world, "chat-2"), "a checkpoint")
    assert texts(world, "chat-2") == ["0", "1"]
    kill_all(agent, child, agent.agent)


def test_a_worker_that_exits_before_the_session_is_ended_is_no_crash(world: World) -> None:
    """It leaves without its interpreter's shutdown, and is recovered together with its parent."""
    agent = world.supervise(
        FORKED
        + """
chat.message("user", "0")
child_says("1")
ready("speak")
sys.stdin.readline()
os.write(asked, b"exit 0\\n")
os.waitpid(child, 0)
chat.message("assistant", "2")
chat.end()
ready("ended")
os._exit(3)
""",
        *world.hook,
        stdin=subprocess.PIPE,
    )
    agent.wait_for("speak")
    kill(agent.pid, signal.SIGSTOP)  # both are dead before it looks at either
    parent = agent.agent
    agent.send_line()
    agent.wait_for("ended")
    wait_dead(parent)
    os.kill(agent.pid, signal.SIGCONT)
    assert agent.finish() == 3
    assert texts(world) == ["0", "1", "2"]
    session = world.session("chat")
    assert session is not None
    assert session["end_reason"] == "completed"
    assert {outcome for outcome, _ in report_of(world)} == {"ended by the agent"}
    assert world.events() == []
