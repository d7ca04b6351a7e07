"""Records that no text column takes, records of every size, and a server that refuses them."""

from __future__ import annotations

import subprocess

import psycopg
from fleet import Fleet, Machine
from support import until

ODD = "nul \\x00, a lone \\ud83d half, \\u202e, \\U0001f600 and \\x1b[2J"
TALK = """
with session("chat-\\ud83d-1") as chat:
    chat.title("{odd}")
    chat.message("user", "{odd}")
    chat.delta("{odd}")
    chat.delta("the end")
    ready()
    forever()
"""
LARGE = """
with session("chat-1") as chat:
    chat.message("user", "x" * {size} + "the end")
    chat.message("assistant", "small")
    ready()
    forever()
"""
ROLE = "fleet_without_rights"


def there_after_loss(fleet: Fleet, here: Machine, session: str | None = None) -> Machine:
    there = fleet.machine()
    lost = here.id
    here.lose()
    fleet.declare_lost(lost, there)
    words = [session] if session else ["--all-lost"]
    done = there.call("fleet", "recover", *words, deadline=300)
    assert done.returncode == 0, done.stderr
    return there


def test_a_record_that_no_text_column_takes_arrives_as_it_does_at_home(fleet: Fleet) -> None:
    here = fleet.machine()
    script = TALK.format(odd=ODD)
    here.supervise(script).wait_for("ready")
    fleet.until_there("the end")
    there = there_after_loss(fleet, here)
    # The same, without a replica, recovered where it was said.
    home = fleet.machine()
    del home.env["HERMES_SUPERVISE_REPLICA"]
    run = home.supervise(script)
    run.wait_for("ready")
    run.kill_agent()
    run.finish(60)

    def rows(machine: Machine) -> list[tuple[object, ...]]:
        wanted = "SELECT s.title, m.role, m.content FROM messages m JOIN sessions s "
        with machine.database() as db:
            return [
                tuple(row) for row in db.execute(wanted + "ON s.id = m.session_id ORDER BY m.id")
            ]

    assert len(rows(there)) == 2 and rows(there) == rows(home)
    assert there.call("fleet").returncode == 0


def test_a_message_of_many_mebibytes_is_whole_on_another_machine(fleet: Fleet) -> None:
    size = 40_000_000
    here = fleet.machine()
    here.supervise(LARGE.format(size=size)).wait_for("ready", 120)
    fleet.until_there("small")
    there = there_after_loss(fleet, here, "chat-1")
    rows = [row["content"] for row in there.messages("chat-1")]
    home = fleet.machine()
    del home.env["HERMES_SUPERVISE_REPLICA"]
    run = home.supervise(LARGE.format(size=size))
    run.wait_for("ready", 120)
    run.kill_agent()
    run.finish(120)
    assert rows == [row["content"] for row in home.messages("chat-1")]


def test_without_rights_the_agent_runs_and_everything_waits_until_they_are_granted(
    fleet: Fleet,
) -> None:
    here = fleet.machine()
    fleet.query(f"DROP ROLE IF EXISTS {ROLE}")
    fleet.query(f"CREATE ROLE {ROLE} LOGIN")
    try:
        given = psycopg.conninfo.conninfo_to_dict(fleet.url) | {"user": ROLE}
        here.env["HERMES_SUPERVISE_REPLICA"] = psycopg.conninfo.make_conninfo(**given)
        [found] = here.fleet("doctor")
        assert found["verdict"] == "bad"
        run = here.supervise('with session("chat-1") as chat:\n    chat.message("user", "hello")\n')
        assert run.finish() == 0
        until(lambda: here.status().get("problem"), "it says why", 60)
        assert b"hello" not in fleet.bodies()
        # Reading is not enough, either.
        fleet.query(f"GRANT USAGE ON SCHEMA hermes_supervise TO {ROLE}")
        fleet.query(f"GRANT SELECT ON ALL TABLES IN SCHEMA hermes_supervise TO {ROLE}")
        until(lambda: "no right" in str(here.status().get("problem")), "it says which", 60)
        found = {one["about"]: one for one in here.fleet("doctor")}
        assert found["rights"]["verdict"] == "bad"
        assert b"hello" not in fleet.bodies()
        fleet.query(f"GRANT INSERT, UPDATE ON ALL TABLES IN SCHEMA hermes_supervise TO {ROLE}")
        here.until_shipped()
        assert b"hello" in fleet.bodies()
    finally:
        here.kill_all()
        fleet.query(f"DROP OWNED BY {ROLE}")
        fleet.query(f"DROP ROLE {ROLE}")


def test_a_server_without_room_keeps_what_it_has_and_gets_the_rest_later(fleet: Fleet) -> None:
    """What a full disk does to a commit: it fails, in the middle of everything."""
    here = fleet.machine()
    run = here.supervise(
        """
with session("chat-1") as chat:
    chat.message("user", "the first")
    ready()
    sys.stdin.readline()
    chat.message("assistant", "the second")
    ready("said")
    forever()
""",
        stdin=subprocess.PIPE,
    )
    run.wait_for("ready")
    fleet.until_there("the first")
    fleet.query(
        "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION "
        "'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$"
    )
    fleet.query(
        "CREATE CONSTRAINT TRIGGER no_room AFTER INSERT ON hermes_supervise.frame "
        "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION no_room()"
    )
    try:
        assert run.process.stdin is not None
        run.process.stdin.write(b"\n")
        run.process.stdin.flush()
        run.wait_for("said")
        until(lambda: "No space left" in str(here.status().get("problem")), "it says why", 60)
        assert b"the second" not in fleet.bodies()
    finally:
        fleet.query("DROP TRIGGER no_room ON hermes_supervise.frame")
        fleet.query("DROP FUNCTION no_room")
    fleet.until_there("the second")
    select = "SELECT seq FROM hermes_supervise.frame WHERE seq > 0 ORDER BY position"
    seqs = [row[0] for row in fleet.query(select)]
    assert seqs == list(range(1, len(seqs) + 1))
