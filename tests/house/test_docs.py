"""The pages say what was measured: tables are made from records, and match them."""

from __future__ import annotations

import json
import re

import agents_table
import matrix


def test_the_table_of_releases_is_the_recorded_run() -> None:
    page = matrix.PAGE.read_text()
    shown = page.partition(matrix.BEGIN)[2].partition(matrix.END)[0].strip()
    assert shown == matrix.table(json.loads(matrix.RECORD.read_text())), (
        "docs/hermes.md and docs/hermes-releases.json disagree; `make test-matrix` makes both"
    )


def test_the_recorded_run_is_of_every_release_and_every_cell() -> None:
    record = json.loads(matrix.RECORD.read_text())
    assert tuple(record["releases"]) == matrix.RELEASES
    where = ("release", "front", "moment", "death", "with us")
    ran = [tuple(cell[key] for key in where) for cell in record["cells"]]
    planned = [cell for release in matrix.RELEASES for cell in matrix.cells(release)]
    assert ran == [tuple(cell[key] for key in where) for cell in planned]


def test_with_us_nothing_was_lost_and_without_us_something_was() -> None:
    for cell in json.loads(matrix.RECORD.read_text())["cells"]:
        assert "failed" not in cell, cell
        if cell["with us"]:
            assert all(cell[name] == 0 for name in matrix.COUNTS), cell
            assert cell["ended"] == "interrupted", cell
        elif cell["moment"] == matrix.MOMENTS[0]:
            assert cell["lost"] > 0, cell


def test_the_table_of_agents_is_the_recorded_run_and_as_promised() -> None:
    record = json.loads(agents_table.RECORD.read_text())
    page = agents_table.PAGE.read_text()
    shown = page.partition(agents_table.BEGIN)[2].partition(agents_table.END)[0].strip()
    assert shown == agents_table.table(record), (
        "docs/watchers.md and docs/agents.json disagree; `make test-agents` makes both"
    )
    for cell in record["cells"]:
        assert agents_table.as_promised(cell), cell


def test_the_hermes_page_names_tests_that_exist() -> None:
    named = re.findall(r"`(test_\w+\.py)`", matrix.PAGE.read_text())
    assert named
    for name in named:
        assert list((matrix.ROOT / "tests").rglob(name)), name
