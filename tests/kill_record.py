"""The last full kill-point sweep: docs/sweep-kills.json, and the part of the page made from it.

Pure but for `write`: the same record gives the same text, which a test relies on.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections import Counter
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
RECORD, PAGE = DOCS / "sweep-kills.json", DOCS / "guarantees.md"
BEGIN = "<!-- sweep: begin; made by `make sweep-kills` from sweep-kills.json, not by hand -->"
END = "<!-- sweep: end -->"


def of(found: dict[str, Any], seconds: float) -> dict[str, Any]:
    machine = (
        f"{platform.machine()}, {os.cpu_count()} processors, "
        f"Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}"
    )
    return {"at": time.strftime("%Y-%m-%d"), "machine": machine, "seconds": round(seconds)} | found


def render(record: dict[str, Any]) -> str:
    """The part of the page between the marks."""
    once: Counter[str] = Counter()
    twice: Counter[str] = Counter()
    for leg, points in record["points"].items():
        scenario = leg.partition("/")[0]
        (twice if leg.endswith(" twice") else once)[scenario] += points
    lines = [
        f"{record['at']}, {record['machine']}, {record['seconds']:,} s:",
        "",
        "| scenario | killed once, in so many places | and again during recovery |",
        "|---|---|---|",
        *(f"| {one} | {once[one]:,} | {twice[one]:,} |" for one in sorted({*once, *twice})),
        f"| **all** | **{once.total():,}** | **{twice.total():,}** |",
        "",
        f"{record['kills']:,} processes or groups killed with SIGKILL, {record['not reached']} "
        "places not come to again (an operation that timing decides on), "
        f"**{len(record['violations'])} violations**.",
    ]
    return "\n".join(lines) + "\n"


def replaced(page: str, record: dict[str, Any]) -> str:
    """The page with the part between its marks made anew."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{render(record)}{END}{tail}"


def write(record: dict[str, Any]) -> None:
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(replaced(PAGE.read_text(), record))
