"""The last full kill-point sweep: docs/sweep-kills.json, and the part of the page made from it.

Pure but for `write`: the same record gives the same text, which a test relies on.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from figures.pages import with_part  # noqa: E402

DOCS = ROOT / "docs"
RECORD, PAGE = DOCS / "sweep-kills.json", DOCS / "guarantees.md"
BEGIN = "<!-- sweep: begin; made by `make sweep-kills` from sweep-kills.json, not by hand -->"
END = "<!-- sweep: end -->"


def of(found: dict[str, Any], seconds: float) -> dict[str, Any]:
    machine = (
        f"{platform.machine()}, {os.cpu_count()} processors, "
        f"Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}"
    )
    return {"at": time.strftime("%Y-%m-%d"), "machine": machine, "seconds": round(seconds)} | found


def with_legs(record: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """The record of a whole sweep, and of some more legs that were swept later."""
    parts = {name: later[name] for name in ("at", "machine", "seconds", "points", "kills")}
    return record | {
        "points": record["points"] | later["points"],
        "kills": record["kills"] + later["kills"],
        "not reached": record["not reached"] + later["not reached"],
        "violations": record["violations"] + later["violations"],
        "operations": record["operations"] | later["operations"],
        "later": [*record.get("later", []), parts],
    }


def render(record: dict[str, Any]) -> str:
    """The part of the page between the marks."""
    once: Counter[str] = Counter()
    twice: Counter[str] = Counter()
    for leg, points in record["points"].items():
        scenario = leg.partition("/")[0]
        (twice if leg.endswith(" twice") else once)[scenario] += points
    later = [
        f"{entry['at']}, {entry['seconds']:,} s: {', '.join(sorted(_scenarios(entry['points'])))}."
        for entry in record.get("later", [])
    ]
    lines = [
        f"{record['at']}, {record['machine']}, {record['seconds']:,} s:",
        "",
        "| scenario | killed once, in so many places | and again during recovery |",
        "|---|---|---|",
        *(f"| {leg} | {once[leg]:,} | {twice[leg]:,} |" for leg in sorted({*once, *twice})),
        f"| **all** | **{once.total():,}** | **{twice.total():,}** |",
        "",
        f"{record['kills']:,} processes or groups killed with SIGKILL, {record['not reached']} "
        "places not come to again (an operation that timing decides on), "
        f"**{len(record['violations'])} violations**.",
    ]
    if later:
        lines += ["", "Swept later than the rest: " + " ".join(later)]
    return "\n".join(lines) + "\n"


def _scenarios(points: dict[str, int]) -> set[str]:
    return {leg.partition("/")[0] for leg in points}


def replaced(page: str, record: dict[str, Any]) -> str:
    """The page with the part between its marks made anew."""
    return with_part(page, BEGIN, END, render(record))


def write(record: dict[str, Any], *, some: bool = False) -> None:
    """`some`: these legs are swept beside the whole sweep on record, which has none of them."""
    if some:
        before = json.loads(RECORD.read_text())
        assert set(before["points"]).isdisjoint(record["points"]), "sweep the whole again"
        record = with_legs(before, record)
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(replaced(PAGE.read_text(), record))
