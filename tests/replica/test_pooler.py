"""A pooler that lends a connection for a transaction only: PgBouncer before a real server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from fleet import Fleet
from hermes_supervise.supervisor.replica.server import Server
from postgres import _as_nobody
from support import until

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")


@pytest.fixture
def pooled(fleet: Fleet, tmp_path: Path) -> Iterator[str]:
    """A connection string that leads through the pooler; the database's own default is to commit
    without waiting for the disk."""
    if fleet.postgres.external:
        pytest.skip("the server is somebody else's")
    name = psycopg.conninfo.conninfo_to_dict(fleet.url)["dbname"]
    fleet.query(f"ALTER DATABASE {name} SET synchronous_commit = off")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = fleet.postgres.folder / "pooler"
    folder.mkdir(exist_ok=True)
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        f"[databases]\n* = host={fleet.postgres._sockets} user=postgres\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        "auth_type = any\npool_mode = transaction\ndefault_pool_size = 2\n"
    )
    process = subprocess.Popen(
        [str(PGBOUNCER), "-q", str(settings)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        cwd="/", **_as_nobody(),
    )  # fmt: skip
    url = f"host=127.0.0.1 port={port} user=postgres dbname={name}"

    def answers() -> bool:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            return False
        return True

    try:
        until(answers, "the pooler answers", 60)
        yield url
    finally:
        for machine in fleet.machines:
            machine.kill_all()
        process.kill()
        process.wait()
        fleet.query(f"ALTER DATABASE {name} RESET synchronous_commit")


def test_what_is_set_holds_in_every_transaction_and_nowhere_else(fleet: Fleet, pooled: str) -> None:
    servers = [Server(pooled) for _ in range(5)]
    stranger = psycopg.connect(pooled, autocommit=True, prepare_threshold=None)
    try:
        for position in range(1, 13):
            for number, server in enumerate(servers):
                stream = f"{number}" * 32
                batch = [(stream, position, position, b"x")]
                server.ship(f"m{number}", batch, {stream: "r"}, [], ["r"])
                assert server.have([stream])[stream][0] == position
                assert server._run("SHOW synchronous_commit") == [("on",)]
                found = [stranger.execute(f"SHOW {name}").fetchone() for name in
                         ("synchronous_commit", "statement_timeout")]  # fmt: skip
                assert found == [("off",), ("0",)]
    finally:
        stranger.close()
        for server in servers:
            server.close()


def test_a_machine_behind_a_pooler_is_lost_and_recovered(fleet: Fleet, pooled: str) -> None:
    machines = [fleet.machine() for _ in range(4)]
    for number, machine in enumerate(machines):
        machine.env["HERMES_SUPERVISE_REPLICA"] = pooled
        if number:
            machine.supervise(
                f"""
with session("chat-{number}") as chat:
    chat.message("user", "count")
    for number in range(100):
        chat.delta(f"{{number}} ")
        time.sleep(0.005)
    chat.delta("end{number}")
    ready()
    forever()
"""
            )
    there, *lost = machines
    for number, machine in enumerate(lost, 1):
        fleet.until_there(f"end{number}")
        id = machine.id
        machine.lose()
        fleet.declare_lost(id, there)
    assert not os.path.exists(lost[0].folder)
    done = there.call("fleet", "recover", "--all-lost")
    assert done.returncode == 0, done.stderr
    for number in range(1, 4):
        [question, answer] = there.messages(f"chat-{number}")
        assert question["content"] == "count"
        assert answer["content"] == "".join(f"{n} " for n in range(100)) + f"end{number}"
