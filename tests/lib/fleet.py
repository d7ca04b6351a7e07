"""Machines for tests of the replica: each a home, a disk and processes of its own.

A machine that is lost is lost whole: every process of it is killed, and its disk is deleted.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
from hermes_supervise.supervisor.replica import tables
from postgres import Postgres
from support import World, kill, until, wait_dead

TABLES = ("machine", "run", "stream", "share", "frame", "forgotten")


class Machine(World):
    def __init__(self, folder: Path, url: str) -> None:
        folder.mkdir()
        self._runtime = Path(tempfile.mkdtemp(prefix="hs"))
        super().__init__(folder, self._runtime)
        self.url = url
        self.env["HERMES_SUPERVISE_REPLICA"] = url

    @property
    def replica(self) -> Path:
        return self.state / "hermes-supervise" / "replica"

    @property
    def id(self) -> str:
        return (self.replica / "machine").read_text()

    @property
    def target(self) -> Path:
        [found] = [path.parent for path in self.replica.glob("*/conninfo")]
        return found

    def status(self) -> dict[str, Any]:
        try:
            found = json.loads((self.target / "status.json").read_text())
        except (OSError, ValueError):
            return {}
        return dict(found)

    @property
    def shipper(self) -> int:
        """The pid of the shipper that is at work."""
        return int(until(lambda: [p for p in self.processes() if _is_shipper(p)], "a shipper")[0])

    def processes(self) -> list[int]:
        mark = f"XDG_STATE_HOME={self.state}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
            except OSError:
                continue
        return found

    def lose(self) -> None:
        """Every process is killed at once, and the disk is gone."""
        self.kill_all()
        shutil.rmtree(self.folder)

    def kill_all(self) -> None:
        while found := self.processes():
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            for pid in found:
                wait_dead(pid)
            for process in self._started:
                process.wait()

    def fleet(self, *words: str) -> Any:
        done = self.call("fleet", *words, "--json")
        return json.loads(done.stdout)

    def until_shipped(self) -> None:
        """Every run is over, and the database has all of it."""
        until(lambda: not list((self.target / "runs").iterdir()), "everything is shipped", 60)

    def close(self) -> None:
        self.kill_all()
        super().close()
        shutil.rmtree(self._runtime, ignore_errors=True)


class Fleet:
    """A database, and machines that use it."""

    def __init__(self, postgres: Postgres, url: str, folder: Path) -> None:
        self.postgres = postgres
        self.url = url
        self._folder = folder
        self.machines: list[Machine] = []
        with self.database() as db:
            for table in TABLES:
                db.execute(f"TRUNCATE {tables.SCHEMA}.{table}")

    def machine(self) -> Machine:
        made = Machine(self._folder / f"m{len(self.machines)}", self.url)
        self.machines.append(made)
        return made

    def database(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url, autocommit=True)

    def query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self.database() as db:
            cursor = db.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    def bodies(self) -> bytes:
        """Everything that was shipped."""
        select = "SELECT body FROM hermes_supervise.frame ORDER BY stream, position"
        return b"".join(bytes(row[0]) for row in self.query(select))

    def until_there(self, text: str) -> None:
        search = (
            "SELECT 1 FROM hermes_supervise.frame WHERE position(%s::bytea IN body) > 0 LIMIT 1"
        )
        until(lambda: self.query(search, text.encode()), f"{text!r} is replicated", 60)

    def lease_is_over(self, machine: str) -> None:
        """As if a minute had passed in which the machine did not report."""
        set_lease = "UPDATE hermes_supervise.machine SET lease_until = clock_timestamp() "
        self.query(set_lease + "WHERE machine = %s", machine)

    def cut_off(self, machine: Machine) -> int:
        """Stop a machine's shipper, so that it neither sends nor renews; its pid. Not in the middle
        of a transaction, whose locks would stay: a network that is cut ends those in time."""
        pid = machine.shipper
        busy = (
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND state <> 'idle'"
        )

        def is_quiet() -> bool:
            kill(pid, signal.SIGSTOP)
            if not self.query(busy):
                return True
            kill(pid, signal.SIGCONT)
            return False

        until(is_quiet, "the shipper is between two transactions")
        return pid

    def declare_lost(self, machine: str, by: Machine) -> None:
        self.lease_is_over(machine)
        done = by.call("fleet", "lost", machine)
        assert done.returncode == 0, done.stderr

    def close(self) -> None:
        for machine in self.machines:
            machine.close()
        for machine in self.machines:
            machine.prove_sound()


def _is_shipper(pid: int) -> bool:
    try:
        return b"\0ship\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def database(postgres: Postgres) -> Iterator[tuple[Postgres, str]]:
    """For a fixture: a server, and a database with our tables."""
    from hermes_supervise.supervisor.replica.server import Server

    url = postgres.database()
    server = Server(url, check=False)
    server.migrate(create=True)
    server.close()
    try:
        yield postgres, url
    finally:
        postgres.drop(url)
