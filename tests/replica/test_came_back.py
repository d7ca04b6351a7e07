"""A machine that was declared lost comes back: what it says then is there as a continuation."""

from __future__ import annotations

import signal
import subprocess

from fleet import Fleet, Machine
from support import Supervised, kill

CUT_OFF = """
with session("chat-1", source="cli") as chat:
    chat.message("user", "the first question")
    chat.delta("I begin ")
    ready()
    sys.stdin.readline()
    chat.delta("and end.")
    chat.message("assistant", "I begin and end.")
    chat.message("user", "the second question")
    chat.delta("a long")
    ready("said")
    sys.stdin.readline()
    chat.delta(" answer")
    ready("more")
    forever()
"""
IN_A_TOOL = """
with session("chat-1") as chat:
    chat.message("user", "list it")
    with chat.tool("shell", {"command": "ls"}) as tool:
        ready()
        sys.stdin.readline()
        tool.result = "a.txt"
    chat.message("assistant", "one file")
    ready("said")
    forever()
"""


def said(machine: Machine) -> list[tuple[str, str]]:
    return [(row["role"], row["content"]) for row in machine.messages("chat-1")]


def recovered_while_cut_off(fleet: Fleet, here: Machine, there: Machine, code: str) -> Supervised:
    """Run an agent, cut its machine off when it is ready, and recover it elsewhere."""
    run = here.supervise(code, stdin=subprocess.PIPE)
    run.wait_for("ready")
    fleet.until_there("I begin" if "I begin" in code else '"start"')
    shipper = fleet.cut_off(here)
    fleet.declare_lost(here.id, there)
    assert there.call("fleet", "recover", "chat-1").returncode == 0
    kill(shipper, signal.SIGCONT)
    return run


def go_on(run: Supervised, until: str) -> None:
    assert run.process.stdin is not None
    run.process.stdin.write(b"\n")
    run.process.stdin.flush()
    run.wait_for(until)


def test_later_records_are_there_as_a_continuation_and_nothing_twice(fleet: Fleet) -> None:
    here, there = fleet.machine(), fleet.machine()
    there.env["HERMES_SUPERVISE_ON_SESSION_END"] = there.hook[1]
    run = recovered_while_cut_off(fleet, here, there, CUT_OFF)
    first = [("user", "the first question"), ("assistant", "I begin ")]
    assert said(there) == first
    nothing = there.call("fleet", "recover", "chat-1")
    assert nothing.returncode == 1 and "nothing was said there since" in nothing.stderr

    go_on(run, "said")
    fleet.until_there("a long")
    [listed] = there.fleet()["runs"]
    assert (listed["state"], listed["went_on"]) == ("recovered", True)
    done = there.call("fleet", "recover", "chat-1")
    assert done.returncode == 0, done.stderr
    then = [*first, ("assistant", "and end."), ("user", "the second question"),
            ("assistant", "a long")]  # fmt: skip
    assert said(there) == then
    shown = " ".join(there.call("show", "chat-1").stdout.split())
    assert "came back after this session had been recovered here" in shown

    # And again, with the machine lost for good.
    go_on(run, "more")
    fleet.until_there(" answer")
    lost = here.id
    here.lose()
    fleet.declare_lost(lost, there)
    assert there.call("fleet", "recover", "--all-lost").returncode == 0
    assert said(there) == [*then, ("assistant", " answer")]
    again = there.call("fleet", "recover", "--all-lost")
    assert again.returncode == 0 and "nothing to recover" in again.stdout
    assert said(there) == [*then, ("assistant", " answer")]
    assert len(there.events()) == 1, "hooks run once"


def test_the_result_of_a_tool_arrives_behind_the_answer_that_stood_for_it(fleet: Fleet) -> None:
    here, there = fleet.machine(), fleet.machine()
    run = recovered_while_cut_off(fleet, here, there, IN_A_TOOL)
    before = there.messages("chat-1")
    assert [row["role"] for row in before] == ["user", "assistant", "tool"]
    go_on(run, "said")
    fleet.until_there("one file")
    assert there.call("fleet", "recover", "chat-1").returncode == 0
    rows = there.messages("chat-1")
    assert rows[:3] == before
    assert [row["role"] for row in rows[3:]] == ["assistant", "assistant"]
    assert rows[3]["content"].endswith("\na.txt") and rows[4]["content"] == "one file"


def test_a_third_machine_gets_all_of_it(fleet: Fleet) -> None:
    """How far the second one was counts for that one only."""
    here, there, third = fleet.machine(), fleet.machine(), fleet.machine()
    run = recovered_while_cut_off(fleet, here, there, CUT_OFF)
    go_on(run, "said")
    fleet.until_there("a long")
    lost = [here.id, there.id]
    for machine in (here, there):
        machine.lose()
    for machine in lost:
        fleet.declare_lost(machine, third)
    done = third.call("fleet", "recover", "chat-1")
    assert done.returncode == 0, done.stderr
    assert said(third) == [
        ("user", "the first question"), ("assistant", "I begin and end."),
        ("user", "the second question"), ("assistant", "a long"),
    ]  # fmt: skip
