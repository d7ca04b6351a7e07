from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fleet import Fleet
    from postgres import Postgres

_WITHOUT_PSYCOPG = ("test_replica_core.py",)


class _Skipped(pytest.Module):
    def collect(self) -> list[pytest.Item]:
        reason = "psycopg is not installed; `pip install -e '.[dev]'` brings it"
        pytest.skip(reason, allow_module_level=True)


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    """An environment from before there was a replica: its files are skipped, and said to be."""
    if find_spec("psycopg") is not None or module_path.name in _WITHOUT_PSYCOPG:
        return None
    return _Skipped.from_parent(parent, path=module_path)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for all files that a worker runs."""
    from postgres import Postgres

    made = Postgres()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[tuple[Postgres, str]]:
    from fleet import database

    yield from database(postgres)


@pytest.fixture
def fleet(database: tuple[Postgres, str], tmp_path: Path) -> Iterator[Fleet]:
    from fleet import Fleet

    made = Fleet(*database, tmp_path)
    try:
        yield made
    finally:
        made.close()
