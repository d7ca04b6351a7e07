"""Paths, and an isolated world for each measurement: its own folders and environment variables."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PROGRAMS = Path(__file__).parent / "programs"
# Each in a virtual environment of its own: packages installed beside a program slow its start.
PRODUCT = ROOT / ".venv-bench" / "bin"
PEERS = ROOT / ".venv-bench-peers" / "bin"
REPLICA = ROOT / ".venv-bench-replica" / "bin"
HERMES = ROOT / ".venv-hermes-0.19.0" / "bin"

SUPERVISE = [str(PRODUCT / "hermes-supervise")]
PYTHON = str(PRODUCT / "python")


class World:
    """A temporary folder, and environment variables that point nowhere else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "hermes"
        self.home.mkdir()
        self.db = self.home / "state.db"
        (folder / "run").mkdir(mode=0o700)
        self.env = {
            "PATH": f"{PEERS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "HERMES_HOME": str(self.home),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_RUNTIME_DIR": str(folder / "run"),
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
        }

    def start(self, command: list[str], **env: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command, env={**self.env, **env}, cwd=self.folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def ask(self, command: list[str], *arguments: object, **env: str) -> Any:
        """Run a program that writes its figures as JSON to its first argument; return them."""
        answer = self.folder / "answer.json"
        answer.unlink(missing_ok=True)
        words = [*command, str(answer), *map(str, arguments)]
        done = subprocess.run(
            words, env={**self.env, **env}, cwd=self.folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        if not answer.exists():
            raise RuntimeError(f"{words}: {done.returncode}: {done.stderr[-2000:]}")
        return json.loads(answer.read_text())


@contextmanager
def world() -> Iterator[World]:
    folder = Path(tempfile.mkdtemp(prefix="hsb"))
    try:
        yield World(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def program(name: str, python: Path = PRODUCT) -> list[str]:
    """The command that runs one of `programs/`. -P keeps its folder off the import path."""
    return [str(python / "python"), "-P", str(PROGRAMS / name)]


@cache
def stamp() -> str | None:
    """A static program whose first instruction records the time; None without a C compiler."""
    made = Path(tempfile.mkdtemp(prefix="hsb")) / "stamp"
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    subprocess.check_call([compiler, "-O2", "-static", "-o", made, PROGRAMS / "stamp.c"])
    return str(made)


@cache
def hermes_database() -> Path | None:
    """An empty state.db made by Hermes, with its tables and triggers; None if Hermes is missing."""
    if not (HERMES / "python").exists():
        return None
    folder = Path(tempfile.mkdtemp(prefix="hsb"))
    with world() as scratch:
        scratch.ask(program("hermes_schema.py", HERMES), folder / "state.db")
    return folder / "state.db"


def load() -> float:
    return os.getloadavg()[0]
