"""Two real servers: the primary is killed under load, the standby promoted; nothing is missing."""

from __future__ import annotations

import os

import psycopg
import pytest
from fleet import Fleet
from support import until

pytestmark = pytest.mark.skipif(not os.environ.get("SLOW"), reason="`make test-slow`")

TALKATIVE = """
with session("chat-1") as chat:
    chat.message("user", "go on")
    ready()
    for number in range(600):
        chat.delta(f"{number} ")
        time.sleep(0.005)
    ready("done")
    forever()
"""
COUNT = 602
SEQS = "SELECT seq FROM hermes_supervise.frame WHERE seq > 0 ORDER BY position"


def test_a_standby_promoted_under_load_gets_what_it_lacks(fleet: Fleet) -> None:
    if fleet.postgres.external:
        pytest.skip("the server is not ours to kill")
    primary, standby = fleet.postgres, fleet.postgres.standby()
    here, there = fleet.machine(), fleet.machine()
    name = psycopg.conninfo.conninfo_to_dict(fleet.url)["dbname"]
    # The one that only reads is asked first.
    both = f"host={standby._sockets},{primary._sockets} user=postgres dbname={name}"
    promoted = standby.url(str(name))
    try:
        for machine in (here, there):
            machine.env["HERMES_SUPERVISE_REPLICA"] = both
        run = here.supervise(TALKATIVE)
        run.wait_for("ready")
        until(lambda: len(fleet.query(SEQS)) > 50, "the first records")
        # What is committed from here on does not reach the standby.
        with psycopg.connect(promoted, autocommit=True) as db:
            db.execute("ALTER SYSTEM SET primary_conninfo = ''")
            db.execute("SELECT pg_reload_conf()")
            receiver = "SELECT 1 FROM pg_stat_wal_receiver"
            until(lambda: not db.execute(receiver).fetchall(), "it is cut off")
        reached = len(fleet.query(SEQS))
        until(lambda: len(fleet.query(SEQS)) > reached + 50, "more of them")
        primary.kill()

        def found() -> list[int]:
            with psycopg.connect(promoted) as db:
                return [row[0] for row in db.execute(SEQS).fetchall()]

        assert len(found()) <= reached, "it lacks commits"
        standby.promote()
        run.wait_for("done")
        until(lambda: len(found()) >= COUNT, "all of it on the promoted one", 120)
        assert found() == list(range(1, COUNT + 1))
        lost = here.id
        here.lose()
        with psycopg.connect(promoted, autocommit=True) as db:
            db.execute("UPDATE hermes_supervise.machine SET lease_until = clock_timestamp()")
        assert there.call("fleet", "lost", lost).returncode == 0
        assert there.call("fleet", "recover", "chat-1").returncode == 0
        reply = there.messages("chat-1")[-1]["content"]
        assert reply == "".join(f"{number} " for number in range(600))
    finally:
        for machine in fleet.machines:
            machine.kill_all()
        standby.stop()
        standby.close()
        primary.start()
