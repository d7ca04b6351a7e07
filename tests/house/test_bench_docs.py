"""The page about costs says what was measured, and nothing else."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from bench import report  # noqa: E402


def test_the_page_says_what_was_measured() -> None:
    page = (ROOT / "docs" / "bench.md").read_text()
    results = json.loads((ROOT / "docs" / "bench.json").read_text())
    assert page.count(report.BEGIN) == page.count(report.END) == 1
    assert report.replaced(page, results) == page, "make bench renders it anew"


def test_no_target_is_left_out_of_the_table() -> None:
    results = json.loads((ROOT / "docs" / "bench.json").read_text())
    table = report.render(results).split("\n## ")[0]
    for section in results["sections"].values():
        assert section["targets"], section["title"]
        for target in section["targets"]:
            assert f"| {section['title']} | {target['what']} |" in table
