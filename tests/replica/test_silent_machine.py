"""A machine is silent, and nobody has said that it is lost: others get a copy, and hooks wait."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

from fleet import Fleet, Machine
from support import kill, until

TALK = """
with session("chat-1") as chat:
    chat.message("user", "before the cut")
    ready()
    sys.stdin.readline()
    chat.message("assistant", "behind the cut")
    ready("said")
    sys.stdin.readline()
"""


def said(machine: Machine) -> list[str]:
    return [row["content"] for row in machine.messages("chat-1")]


def hooks(machine: Machine) -> list[dict[str, Any]]:
    found = json.loads(machine.call("hooks", "--json").stdout)
    return list(found["hooks"] if isinstance(found, dict) else found)


def two(fleet: Fleet) -> tuple[Machine, Machine]:
    here, there = fleet.machine(), fleet.machine()
    for machine in (here, there):
        machine.env["HERMES_SUPERVISE_ON_SESSION_END"] = machine.hook[1]
        machine.env["HERMES_SUPERVISE_HOOK_WAIT"] = "0"
    return here, there


def run_of(machine: Machine) -> dict[str, Any]:
    [run] = machine.fleet()["runs"]
    return dict(run)


def test_hooks_of_a_copy_wait_until_the_loss_is_declared_and_run_once(fleet: Fleet) -> None:
    here, there = two(fleet)
    third = fleet.machine()
    here.supervise(TALK, stdin=subprocess.PIPE).wait_for("ready")
    fleet.until_there("before the cut")
    lost = here.id
    here.lose()
    fleet.lease_is_over(lost)

    done = there.call("fleet", "recover", "chat-1", "--json")
    assert done.returncode == 0, done.stderr
    assert said(there) == ["before the cut"]
    assert list(json.loads(done.stdout)["hooks_wait"]) == [run_of(there)["run"]]
    assert there.events() == []
    [waiting] = hooks(there)
    assert waiting["state"] == "waiting"
    shown = " ".join(there.call("hooks").stdout.split())
    assert "is not declared lost" in shown, shown
    assert (run_of(there)["state"], run_of(there)["hooks"]) == ("recovered", "due")
    assert "hooks due" in there.call("fleet").stdout
    again = there.call("fleet", "recover", "chat-1")
    assert again.returncode == 1 and there.events() == [], "asked again, nothing has changed"

    # Said on a machine that has nothing to do with it: the one with the copy learns it by itself.
    assert third.call("fleet", "lost", lost).returncode == 0
    until(lambda: there.events(), "the hook is run there", 60)
    assert run_of(there)["hooks"] == "given"
    until(lambda: not list((there.target / "claims").iterdir()), "nothing waits any more")
    assert there.call("fleet", "lost", lost).returncode == 0
    assert len(there.events()) == 1
    until(lambda: not there.processes(), "the shipper leaves", 60)


def run_of_machine(machine: Machine, id: str) -> dict[str, Any]:
    [found] = [one for one in machine.fleet()["machines"] if one["machine"] == id]
    return dict(found)


def test_a_machine_that_comes_back_keeps_its_hooks_and_warns_its_user(fleet: Fleet) -> None:
    here, there = two(fleet)
    run = here.supervise(TALK, stdin=subprocess.PIPE)
    run.wait_for("ready")
    fleet.until_there("before the cut")
    shipper = fleet.cut_off(here)
    fleet.lease_is_over(here.id)
    assert there.call("fleet", "recover", "chat-1").returncode == 0
    assert said(there) == ["before the cut"]

    kill(shipper, signal.SIGCONT)
    assert run.process.stdin is not None
    run.process.stdin.write(b"\n")
    run.process.stdin.flush()
    run.wait_for("said")
    fleet.until_there("behind the cut")
    until(lambda: here.status().get("copied"), "it knows", 60)
    assert not here.status().get("taken")
    until(lambda: run_of_machine(there, here.id)["state"] == "alive", "it reports again")
    name = run_of_machine(there, there.id)["name"]
    warning = f"machine {name} has recovered".encode()
    assert run.process.stderr is not None
    seen = b""
    while warning not in seen:
        piece = run.process.stderr.readline()
        assert piece, seen
        seen += piece
    run.kill_agent()
    run.finish(60)
    until(lambda: here.events(), "its own hook is run at home", 60)
    here.until_shipped()
    # Where the copy is, the hook is put away: its own machine ran it.
    put_away = until(lambda: [one for one in hooks(there) if one["state"] == "dead"], "it is", 60)
    assert "its own machine" in put_away[0]["outcome"]
    assert there.events() == [] and len(here.events()) == 1
    assert run_of(there)["hooks"] is None
    # What it said meanwhile is there for the asking.
    assert there.call("fleet", "recover", "chat-1").returncode == 0
    assert said(there) == ["before the cut", "behind the cut"]
    assert there.events() == []


def test_a_silence_that_the_user_has_set_is_a_loss(fleet: Fleet) -> None:
    here, there = two(fleet)
    here.supervise(TALK, stdin=subprocess.PIPE).wait_for("ready")
    fleet.until_there("before the cut")
    lost = here.id
    here.lose()
    there.env["HERMES_SUPERVISE_REPLICA_LOST_AFTER"] = "3600"
    fleet.lease_is_over(lost)
    assert there.call("fleet", "recover", "--all-lost").stdout.startswith("nothing to recover")
    assert there.call("fleet", "recover", "chat-1").returncode == 0
    assert there.events() == []
    back = "UPDATE hermes_supervise.machine SET lease_until = clock_timestamp() - interval '3599 s'"
    fleet.query(back + " WHERE machine = %s", lost)
    until(lambda: there.events(), "an hour later it is lost", 60)
    found = run_of_machine(there, lost)
    assert (found["state"], found["lost_because"]) == ("lost", "silent for more than 3600 s")
    assert len(there.events()) == 1


def test_lost_waits_for_the_lease_if_it_is_asked_to(fleet: Fleet) -> None:
    here, there = two(fleet)
    here.supervise(TALK, stdin=subprocess.PIPE).wait_for("ready")
    fleet.until_there("before the cut")
    lost = here.id
    here.lose()
    early = there.call("fleet", "lost", lost)
    assert early.returncode == 1
    soon = "UPDATE hermes_supervise.machine SET lease_until = clock_timestamp() + interval '3 s'"
    fleet.query(soon)
    done = there.call("fleet", "lost", lost, "--wait", "--because", "the pod is gone")
    assert done.returncode == 0, done.stderr
    assert run_of_machine(there, lost)["lost_because"] == "the pod is gone"
