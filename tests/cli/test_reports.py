"""What a report says of a death: what was going on, memory, what was left running, and why."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hermes_supervise.supervisor.process import cause, memory
from hermes_supervise.supervisor.recovery.report import SessionReport
from hermes_supervise.supervisor.run import notice
from support import World, kill, wait_dead

CALL = """
import json, subprocess
def call(id, name, **arguments):
    text = json.dumps(arguments)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}
"""


def killed(world: World, source: str, *options: str) -> dict[str, Any]:
    agent = world.supervise(CALL + source + "\nready()\nforever()\n", *options)
    agent.wait_for("ready")
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    world.errors = agent.errors.decode()  # type: ignore[attr-defined]
    [report] = [report for report in world.reports() if report["session"] == "chat"]
    return report


# -- what was going on -------------------------------------------------------------------------


def test_a_death_in_a_tool_names_the_tool_and_since_when(world: World) -> None:
    report = killed(
        world,
        """
chat = session("chat")
chat.message("user", "run it")
chat.message("assistant", None, tool_calls=[call("c1", "terminal"), call("c2", "write_file")])
chat.tool("terminal", call="c1").__enter__()
""",
    )
    assert report["doing"] == "calling"
    running, waiting = report["open_calls"]
    assert (running["name"], running["started"]) == ("terminal", True)
    assert (waiting["name"], waiting["started"]) == ("write_file", False)
    assert report["launched"] <= report["began"] <= report["turn"]["asked"] <= running["since"]
    assert running["since"] <= report["died_at"] <= report["settled_at"]
    assert report["reason"] == {"kind": "signal", "signal": 9, "exit_code": None}
    assert report["agent"] == "agent.py"


def test_a_death_in_a_reply_says_since_when_it_was_streamed(world: World) -> None:
    report = killed(
        world,
        """
chat = session("chat")
chat.message("user", "tell me")
before = time.time()
chat.delta("half ")
chat.delta("an answer")
ready(f"before {before}")
""",
    )
    assert report["doing"] == "replying"
    assert report["turn"]["asked"] <= report["doing_since"] <= report["died_at"]
    assert report["turn"]["characters"] == len("half an answer")
    assert notice.missing_reply(settled(**report)) is None


def test_a_report_holds_no_word_of_what_was_said(world: World) -> None:
    killed(
        world,
        """
chat = session("chat")
chat.message("user", "a secret")
chat.message("assistant", None, tool_calls=[call("c1", "terminal", command="a secret")])
with chat.tool("terminal", call="c1") as tool:
    tool.result = "a secret"
chat.delta("a secret")
""",
    )
    [report] = (world.state / "hermes-supervise" / "reports").iterdir()
    assert "secret" not in report.read_text()


# -- did work, said nothing --------------------------------------------------------------------


WORKED = """
chat = session("chat")
chat.message("user", "earlier")
chat.message("assistant", "Done.")
chat.message("user", "now")
chat.message("assistant", None, tool_calls=[call("c1", "read_file")])
with chat.tool("read_file", call="c1") as tool:
    tool.result = "text"
chat.turn("start")
"""


def test_a_turn_that_did_work_and_said_nothing_is_named_in_the_notice(world: World) -> None:
    report = killed(world, WORKED)
    assert (report["turn"]["answers"], report["turn"]["tools"]) == (1, 1)
    said = notice.missing_reply(settled(**report))
    assert said is not None and "1 API call, 1 tool call" in said
    assert said in world.errors  # type: ignore[attr-defined]


def test_so_is_one_that_the_agent_took_for_ended(world: World) -> None:
    report = killed(world, WORKED + "chat.turn('end')")
    assert "1 API call, 1 tool call" in str(notice.missing_reply(settled(**report)))


def test_a_question_that_was_being_worked_on_is_not_passed_over(world: World) -> None:
    report = killed(world, "chat = session('chat')\nchat.message('user', 'a question')")
    said = notice.missing_reply(settled(**report))
    assert said is not None and "call" not in said
    assert said in world.errors  # type: ignore[attr-defined]


@pytest.mark.parametrize("end", ["chat.message('assistant', 'Here.')", "chat.delta('Her')"])
def test_a_turn_that_said_something_is_not_called_silent(world: World, end: str) -> None:
    assert notice.missing_reply(settled(**killed(world, WORKED + end))) is None


def test_a_turn_that_the_user_stopped_has_no_missing_reply(world: World) -> None:
    broken_off = WORKED + "chat._say('turn', phase='broken off', by='user')"
    report = killed(world, broken_off)
    assert report["turn"]["stopped"]
    session = settled(**report)
    assert notice.missing_reply(session) is None
    assert notice.activity_at_death(session).startswith("idle")


def test_a_turn_that_a_signal_broke_off_does(world: World) -> None:
    report = killed(world, WORKED + "chat._say('turn', phase='broken off', by='signal')")
    assert "1 API call, 1 tool call" in str(notice.missing_reply(settled(**report)))


# -- what it weighed and what it left ----------------------------------------------------------


def test_what_an_agent_weighed_is_known_after_it_is_dead(world: World) -> None:
    report = killed(
        world, "chat = session('chat')\nchat.message('user', 'x')\ndata = b'x' * 60_000_000"
    )
    assert report["memory"]["peak"] > 60_000_000
    assert report["memory"]["cpu"] >= 0


def test_the_tree_below_a_dead_agent_is_written_down(world: World) -> None:
    report = killed(
        world,
        """
chat = session("chat")
chat.message("user", "x")
tree = "sleep 300 & echo up; wait"
shell = subprocess.Popen(["sh", "-c", tree], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
shell.stdout.readline()
""",
    )
    try:
        [shell] = report["orphans"]
        assert shell["command"].startswith("sh -c sleep 300")
        [sleep] = shell["below"]
        assert (sleep["command"], sleep["parent"]) == ("sleep 300", shell["pid"])
        assert shell["memory"] > 0
    finally:
        kill(sleep["pid"])
        wait_dead(sleep["pid"])


@pytest.fixture
def sleeper() -> Iterator[int]:
    process = subprocess.Popen(["sh", "-c", "sleep 300 & wait"])
    yield process.pid
    for pid, _ in memory.below(process.pid):
        os.kill(pid, signal.SIGKILL)
    process.wait()


def test_weights_are_those_of_the_kernel_and_a_dead_process_has_none(sleeper: int) -> None:
    own = os.getpid()
    resident, proportional = memory.resident(own), memory.proportional(own)
    assert resident is not None
    assert proportional is None or 0 < proportional <= resident * 1.1
    process = subprocess.Popen(["true"])
    wait_dead(process.pid)
    assert memory.resident(process.pid) is None
    process.wait()
    assert memory.resident(process.pid) is None
    assert memory.below(process.pid) == []
    assert (sleeper, own) in memory.below(own)


# -- why nobody saw it -------------------------------------------------------------------------


# A record that only lies in a dead supervisor's socket is nobody's.
STORED = """
chat = session("chat")
chat.message("user", "x")
assert chat.acknowledged(30)
ready()
forever()
"""


def test_when_supervisor_and_agent_died_at_once_that_is_what_is_said(world: World) -> None:
    agent = world.supervise(STORED, "--no-adopt")
    agent.wait_for("ready")
    agent.abandon()
    assert cause.UNSUPERVISED in world.call("recover").stdout
    [report] = world.reports()
    assert report["reason"]["kind"] == "supervisor lost"


def test_a_machine_that_was_restarted_in_between_is_proved_by_its_boot(world: World) -> None:
    agent = world.supervise(STORED, "--no-adopt")
    agent.wait_for("ready")
    agent.abandon()
    [folder] = world.runs()
    about = json.loads((folder / "run.json").read_text())
    assert about["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    about["boot"] = "00000000-0000-4000-8000-000000000000"
    (folder / "run.json").write_text(json.dumps(about))
    assert cause.RESTARTED in world.call("recover").stdout
    [report] = world.reports()
    assert report["reason"] == {"kind": "machine restarted", "signal": None, "exit_code": None}
    assert report["outcome"] == "interrupted"


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (cause.Cause(signal=9), "signal"),
        (cause.Cause(signal=9, oom=True), "out of memory"),
        (cause.Cause(signal=1, terminal_closed=True), "terminal closed"),
        (cause.Cause(signal=9, terminal_closed=True), "signal"),
        (cause.Cause(code=3), "exit"),
        (cause.Cause(), "unknown"),
    ],
)
def test_a_reason_has_a_word_for_programs(found: cause.Cause, kind: str) -> None:
    assert found.kind == kind


# -- words -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-3, "0.0 s"), (0.04, "0.0 s"), (9.94, "9.9 s"), (12.7, "12 s"), (60, "1 min"),
        (61, "1 min 1 s"), (3600, "1 h"), (3725, "1 h 2 min"), (90061, "1 d 1 h"),
    ],
)  # fmt: skip
def test_a_duration_has_two_figures_at_most(seconds: float, words: str) -> None:
    assert notice.duration(seconds) == words


def settled(**fields: Any) -> SessionReport:
    from hermes_supervise.supervisor.statedb.reconcile import Counts

    fields["recovered"] = Counts(**fields["recovered"])
    return SessionReport(**fields)


def test_a_notice_is_broken_at_blanks_and_what_is_to_be_typed_is_not() -> None:
    sent = ["the agent was interrupted: " + "x " * 40,
            "  session chat: recovered 1 message, including 62 characters of the reply in progress",
            "  session " + "y" * 60 + ": everything was already in state.db",
            "  read it: hermes-supervise show " + "y" * 60]  # fmt: skip
    assert notice.wrapped(sent, None) == notice.wrapped(sent, 200) == sent
    long = notice.wrapped([sent[0]], 40, first=True)
    assert max(map(len, ("hermes-supervise: " + long[0], *long[1:]))) <= 40
    assert " ".join(" ".join(long).split()) == sent[0].strip()
    first, *lines, last = notice.wrapped(sent, 40)
    assert (first, last) == (sent[0], sent[-1]), "one line is short, the other is to be copied"
    assert [line for line in lines if len(line) > 40] == ["    " + "y" * 60 + ":"]
    assert " ".join(" ".join(lines).split()) == " ".join(" ".join(sent[1:-1]).split())
