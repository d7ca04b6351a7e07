"""Disks that are not what the database knows: copied, restored from an older copy; and a machine
that is stopped in the middle of a transaction."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import psycopg
from fleet import Fleet, Machine
from hermes_supervise.supervisor.replica import tables
from hermes_supervise.supervisor.replica.server import Server
from support import kill, until

TALK = """
with session("chat-1") as chat:
    chat.message("user", "the first")
    ready()
    sys.stdin.readline()
    chat.message("assistant", "the second")
    ready("said")
    sys.stdin.readline()
"""
SHORT = """
with session("chat-2") as chat:
    chat.message("user", "on the copy")
    ready()
    forever()
"""


def problem(machine: Machine) -> str:
    return str(machine.status().get("problem") or "")


def test_two_machines_with_one_id_are_warned_and_both_are_replicated(fleet: Fleet) -> None:
    here, copy = fleet.machine(), fleet.machine()
    here.supervise(TALK, stdin=subprocess.PIPE).wait_for("ready")
    fleet.until_there("the first")
    (copy.replica).mkdir(parents=True, mode=0o700)
    for folder in (copy.state, copy.replica.parent, copy.replica):
        folder.chmod(0o700)
    shutil.copy(here.replica / "machine", copy.replica / "machine")
    copy.supervise(SHORT).wait_for("ready")
    fleet.until_there("on the copy")
    for machine in (here, copy):
        until(lambda m=machine: "another machine reports" in problem(m), "it is told", 60)
    assert str(here.replica / "machine") in problem(here)
    # A shipper that is started again is no copy.
    copy.kill_all()
    kill(here.shipper)
    until(lambda: here.status().get("connected") and not problem(here), "told no more", 60)


def test_a_disk_restored_from_an_older_copy_overwrites_nothing_and_says_so(
    fleet: Fleet, tmp_path: Path
) -> None:
    here = fleet.machine()
    run = here.supervise(TALK, stdin=subprocess.PIPE)
    run.wait_for("ready")
    fleet.until_there("the first")
    pid = fleet.cut_off(here)
    older = tmp_path / "older"
    shutil.copytree(here.state, older, ignore=shutil.ignore_patterns("wake"), symlinks=True)
    kill(pid, signal.SIGCONT)
    assert run.process.stdin is not None
    run.process.stdin.write(b"\n")
    run.process.stdin.flush()
    run.wait_for("said")
    fleet.until_there("the second")
    before = fleet.query("SELECT stream, position, body FROM hermes_supervise.frame ORDER BY 1, 2")

    here.kill_all()
    target = here.target
    shutil.rmtree(here.state)
    shutil.copytree(older, here.state, symlinks=True)
    os.mkfifo(target / "wake", 0o600)
    subprocess.run([*here.command, "recover"], env=here.env, check=True, timeout=60)
    shipper = subprocess.Popen([*here.command, "ship", str(here.target)], env=here.env)
    until(lambda: "older copy" in problem(here), "it is told", 60)
    shipper.kill()
    shipper.wait()
    after = fleet.query("SELECT stream, position, body FROM hermes_supervise.frame ORDER BY 1, 2")
    assert after[: len(before)] == before


def test_whoever_is_stopped_inside_a_transaction_keeps_a_claim_waiting_for_seconds(
    fleet: Fleet,
) -> None:
    """The server ends the transaction, and the claim gets through within its own patience."""
    stopped, claimant = Server(fleet.url), Server(fleet.url)
    stopped.register("home", "home")
    claimant.register("me", "me")
    stopped.add_run("home", "run", b"{}")
    fleet.lease_is_over("home")
    stopped._db.execute("BEGIN")
    stopped._db.execute(tables.HEARD, {"machine": "home", "runs": ["run"]})
    epoch, _, why = claimant.claim("me", "home", "run")
    assert epoch is not None, why
    try:
        stopped._db.execute("SELECT 1")
    except psycopg.Error:
        pass
    else:
        raise AssertionError("the stopped transaction is still open")
    for server in (stopped, claimant):
        server.close()
