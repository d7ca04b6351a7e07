"""Two users in one database do not see one another's sessions, with the rights that the docs
name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from fleet import Fleet, Machine

DOCS = Path(__file__).parents[2] / "docs" / "replica.md"
TALK = """
with session("{0}") as chat:
    chat.message("user", "what {0} was asked")
    ready()
    forever()
"""


@pytest.fixture
def separated(fleet: Fleet) -> Iterator[Fleet]:
    """With the statements of the docs, and two users."""
    if fleet.postgres.external:
        pytest.skip("roles of a server that is not ours")
    [statements] = re.findall(r"```sql\n(CREATE ROLE agents.*?)```", DOCS.read_text(), re.DOTALL)
    with fleet.database() as db:
        db.execute(statements)
        for user in ("alice", "bob"):
            db.execute(f"CREATE ROLE {user} LOGIN IN ROLE agents")
    try:
        yield fleet
    finally:
        for machine in fleet.machines:
            machine.kill_all()
        with fleet.database() as db:
            for user in ("alice", "bob", "agents"):
                db.execute(f"DROP OWNED BY {user}")
                db.execute(f"DROP ROLE {user}")


def as_user(fleet: Fleet, user: str) -> Machine:
    made = fleet.machine()
    made.url = psycopg.conninfo.make_conninfo(fleet.url, user=user)
    made.env["HERMES_SUPERVISE_REPLICA"] = made.url
    return made


def test_each_user_sees_ships_and_recovers_only_their_own(separated: Fleet) -> None:
    fleet = separated
    alice, bob, other = (as_user(fleet, user) for user in ("alice", "bob", "alice"))
    alice.supervise(TALK.format("of-alice")).wait_for("ready")
    bob.supervise(TALK.format("of-bob")).wait_for("ready")
    fleet.until_there("of-alice was asked")
    fleet.until_there("of-bob was asked")
    for machine, theirs in ((alice, "of-alice"), (bob, "of-bob")):
        [run] = machine.fleet()["runs"]
        assert [session["session"] for session in run["sessions"]] == [theirs]
        assert [found["machine"] for found in machine.fleet()["machines"]] == [machine.id]
        found = {finding["about"]: finding["verdict"] for finding in machine.fleet("doctor")}
        assert found["rights"] == "ok"

    lost = alice.id
    alice.lose()
    fleet.lease_is_over(lost)
    for words in (("lost", lost), ("recover", "of-alice"), ("forget", "of-alice")):
        refused = bob.call("fleet", *words)
        assert refused.returncode == 2 and "no " in refused.stderr
    with psycopg.connect(bob.url, autocommit=True) as db:
        for table in ("machine", "run", "stream", "share", "frame"):
            rows = db.execute(f"SELECT * FROM hermes_supervise.{table}").fetchall()
            assert rows and "of-alice" not in str(rows) and lost not in str(rows)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                db.execute(f"DELETE FROM hermes_supervise.{table}")
        stream = fleet.query("SELECT stream FROM hermes_supervise.stream WHERE machine = %s", lost)
        forged = "INSERT INTO hermes_supervise.frame VALUES (%s, 999, 999, 'forged')"
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            db.execute(forged, stream[0])

    # The same user, on another machine.
    fleet.declare_lost(lost, other)
    assert other.call("fleet", "recover", "of-alice").returncode == 0
    [row] = other.messages("of-alice")
    assert row["content"] == "what of-alice was asked"
