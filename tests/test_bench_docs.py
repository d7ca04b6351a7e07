"""The page about costs says what was measured, and nothing else."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parent.parent

_spec = importlib.util.spec_from_file_location("bench_report", ROOT / "bench" / "report.py")
assert _spec is not None
assert _spec.loader is not None
report = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(report)


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
