"""`fleet`: the tables' versions, deleting what is over, the list live and as a page."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import psycopg
import pytest
from fleet import Fleet, Machine
from hermes_supervise.supervisor.cli.fleet import page
from hermes_supervise.supervisor.replica import tables
from hermes_supervise.supervisor.replica.server import NotReady, Server
from postgres import Postgres
from support import until
from terminals import Terminal
from test_page import HOSTILE, Checked

SHORT = 'with session("{0}") as chat:\n    chat.message("user", "what {0} was asked")\n'
LONG = SHORT + "    ready()\n    forever()\n"


def frames(fleet: Fleet) -> int:
    return int(fleet.query("SELECT count(*) FROM hermes_supervise.frame")[0][0])


def finished(fleet: Fleet, machine: Machine, session: str) -> None:
    assert machine.supervise(SHORT.format(session)).finish() == 0
    machine.until_shipped()
    until(lambda: not machine.processes(), "the shipper is done")


def aged(fleet: Fleet, days: float) -> None:
    """As if all that is there had been said so long ago."""
    fleet.query("UPDATE hermes_supervise.run SET heard = heard - make_interval(secs => %s)",
                days * 86400)  # fmt: skip


# -- versions --------------------------------------------------------------------------------------


@pytest.fixture
def empty(postgres: Postgres) -> Iterator[str]:
    url = postgres.database()
    try:
        yield url
    finally:
        postgres.drop(url)


def version_of(url: str) -> int:
    with psycopg.connect(url) as db:
        return int(db.execute(tables.FIND_VERSION).fetchall()[0][0])


def test_tables_of_each_earlier_version_are_brought_to_this_one(fleet: Fleet, empty: str) -> None:
    here = fleet.machine()
    here.env["HERMES_SUPERVISE_REPLICA"] = empty
    none = here.call("fleet", "migrate")
    assert none.returncode != 0 and "fleet init" in none.stderr
    for before in range(1, tables.VERSION):
        with psycopg.connect(empty, autocommit=True) as db:
            db.execute(f"DROP SCHEMA IF EXISTS {tables.SCHEMA} CASCADE")
            for step in tables.MIGRATIONS[:before]:
                db.execute(step)
            db.execute(tables.SET_VERSION, {"version": str(before)})
            db.execute(f"INSERT INTO {tables.SCHEMA}.run (machine, run, about) VALUES ('m','r','')")
        refused = here.call("fleet")
        assert refused.returncode != 0 and "fleet migrate" in refused.stderr
        again = here.call("fleet", "init")
        assert again.returncode != 0 and "fleet migrate" in again.stderr
        assert version_of(empty) == before
        done = here.call("fleet", "migrate")
        assert done.returncode == 0 and f"from version {before} to" in done.stdout
        assert version_of(empty) == tables.VERSION
        [run] = here.fleet()["runs"]
        assert run["run"] == "r"
        assert "is ready" in here.call("fleet", "migrate").stdout
        assert "is ready" in here.call("fleet", "init").stdout


def test_an_older_client_is_refused_politely_and_goes_on_after_its_upgrade(fleet: Fleet) -> None:
    here = fleet.machine()
    set_version = "UPDATE hermes_supervise.meta SET value = %s"
    server = Server(fleet.url)
    epoch, _ = server.register("m", "m")
    assert server.renew("m", epoch) is not None
    fleet.query(set_version, "99")
    try:
        # One that is connected learns it with its next lease, before anything else is lost.
        with pytest.raises(NotReady, match="upgrade hermes-supervise"):
            server.renew("m", epoch)
        for words in (("fleet",), ("fleet", "recover", "x"), ("fleet", "migrate")):
            refused = here.call(*words)
            assert refused.returncode != 0
            assert "of version 99" in refused.stderr and "upgrade" in refused.stderr
        run = here.supervise(SHORT.format("chat-1"))
        assert run.finish() == 0
        until(lambda: "upgrade" in str(here.status().get("problem")), "the shipper says so")
        assert frames(fleet) == 0
    finally:
        fleet.query(set_version, str(tables.VERSION))
        server.close()
    here.until_shipped()
    assert b"chat-1 was asked" in fleet.bodies()


# -- forgetting --------------------------------------------------------------------------------


def test_forget_deletes_what_is_over_for_good_and_nothing_that_is_needed(fleet: Fleet) -> None:
    here, there = fleet.machine(), fleet.machine()
    finished(fleet, here, "done-1")
    finished(fleet, here, "done-2")
    there.supervise(LONG.format("open-1")).wait_for("ready")
    fleet.until_there("open-1 was asked")

    assert here.call("fleet", "forget").returncode == 2
    refused = here.call("fleet", "forget", "open-1", "--even-unrecovered")
    assert refused.returncode == 1 and "it is running" in refused.stderr
    before = frames(fleet)
    assert here.fleet("forget", "done-1", "--dry-run")["forgotten"]
    assert frames(fleet) == before
    assert here.call("fleet", "forget", "done-1").returncode == 0
    assert b"done-1" not in fleet.bodies() and b"done-2" in fleet.bodies()
    assert len(here.fleet()["runs"]) == 2

    # It does not come back with what the machine itself still has.
    again = here.supervise("ready()")
    assert again.finish() == 0
    here.until_shipped()
    assert b"done-1" not in fleet.bodies()
    assert "done-1" not in str(here.fleet()["runs"])

    # A machine that is gone: its run only if the user insists.
    gone = there.id
    there.lose()
    fleet.declare_lost(gone, here)
    kept = here.call("fleet", "forget", "open-1")
    assert kept.returncode == 1 and "--even-unrecovered" in kept.stderr
    assert here.call("fleet", "forget", "--machine", gone).returncode == 0
    assert b"open-1" in fleet.bodies()
    assert here.call("fleet", "forget", "--machine", gone, "--even-unrecovered").returncode == 0
    assert b"open-1" not in fleet.bodies()
    assert [machine["machine"] for machine in here.fleet()["machines"]] == [here.id]


def test_forget_by_age_and_retention_delete_the_old_only(fleet: Fleet) -> None:
    here, there = fleet.machine(), fleet.machine()
    finished(fleet, here, "old-1")
    finished(fleet, there, "old-2")
    aged(fleet, 31)
    here.env["HERMES_SUPERVISE_REPLICA_RETENTION"] = "30"
    finished(fleet, here, "new-1")
    # A machine deletes its own.
    assert b"old-1" not in fleet.bodies()
    assert b"old-2" in fleet.bodies() and b"new-1" in fleet.bodies()
    assert here.fleet("forget", "--older-than", "32")["forgotten"] == []
    assert len(here.fleet("forget", "--older-than", "30")["forgotten"]) == 1
    assert b"old-2" not in fleet.bodies() and b"new-1" in fleet.bodies()


# -- looking -----------------------------------------------------------------------------------


def test_the_list_as_a_page_and_live(fleet: Fleet) -> None:
    here, there = fleet.machine(), fleet.machine()
    here.supervise(LONG.format("chat-1")).wait_for("ready")
    fleet.until_there("chat-1 was asked")
    lost = here.id
    here.lose()
    fleet.declare_lost(lost, there)
    path = there.folder / "fleet.html"
    assert there.call("fleet", "report", "-o", str(path)).returncode == 0
    words = " ".join(Checked(path.read_text()).words)
    assert lost in words and "1 lost" in words and "fleet recover chat-1" in words
    assert path.stat().st_mode & 0o077 == 0
    assert there.call("fleet", "report").stdout.startswith("<!DOCTYPE html>")

    assert there.call("fleet", "--watch").returncode == 2

    terminal = Terminal(columns=100, lines=20)
    try:
        process = subprocess.Popen(
            [*there.command, "fleet", "--watch"], env={**there.env, "TERM": "xterm"},
            cwd=there.folder, stdin=terminal.near, stdout=terminal.near, stderr=terminal.near,
        )  # fmt: skip
        terminal.wait_to_see("fleet recover chat-1")
        fleet.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
        terminal.wait_for("cannot be used")  # in all that was shown: it may be back already
        assert "chat-1" in terminal.screen
        until(lambda: "cannot be used" not in terminal.screen, "it is back")
        terminal.type("q")
        assert process.wait(30) == 0
    finally:
        terminal.close()


def test_hostile_names_do_no_harm_on_the_page() -> None:
    now = time.time()
    machine = {"machine": "m", "name": HOSTILE, "state": "lost", "seen": now,
               "lost_because": HOSTILE}  # fmt: skip
    sessions = [{"session": HOSTILE, "title": HOSTILE}]
    run = {"machine": "m", "run": "r", "state": "lost", "claimed_by": None, "records": 7,
           "heard": now, "hooks": "due", "sessions": sessions}  # fmt: skip
    words = " ".join(Checked(page.page([machine], [run])).words)
    assert "<script>" in words and "7 records" in words
    Checked(page.page([], []))
