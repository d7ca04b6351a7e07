"""What a machine asks of the database, counted: docs/replica.md calculates with these figures."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from fleet import Fleet
from hermes_supervise.supervisor.replica.server import Server

MACHINE, RUN, STREAM = "m" * 32, "20260101-000000-1", "a" * 32


def test_a_lease_is_two_statements_and_a_batch_two_of_any_size(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []
    execute = psycopg.Connection.execute

    def counted(self: Any, query: Any, *values: Any, **options: Any) -> Any:
        statements.append(str(query))
        return execute(self, query, *values, **options)

    def count() -> int:
        found = len(statements)
        statements.clear()
        return found

    monkeypatch.setattr(psycopg.Connection, "execute", counted)
    server = Server(fleet.url)
    try:
        assert count() == 3, "whose process it is, the settings, and the version of the tables"
        server.register(MACHINE, "box")
        server.have([STREAM])
        assert count() == 2
        for runs in (0, 50):
            for number in range(runs):
                server.add_run(MACHINE, f"{RUN}{number}", b"{}")
            count()
            assert server.renew(MACHINE, 1) is not None
            server.taken(MACHINE)
            assert count() == 2, "whatever the number of runs"
        server.add_run(MACHINE, RUN, b"{}")
        server.ship(MACHINE, [(STREAM, 1, 1, b"x")], {STREAM: RUN}, [("chat", STREAM, None)], [RUN])
        count()
        position = 1
        for size in (1, 500):
            batch = [(STREAM, position + n + 1, position + n + 1, b"x") for n in range(size)]
            position += size
            server.ship(MACHINE, batch, {}, [], [RUN])
            assert count() == 4, "BEGIN and COMMIT among them, whatever the number of records"
    finally:
        server.close()
