"""The last recorded campaign: docs/torture.json, and the part of docs/torture.md made from it.

Pure but for `write`: the same record gives the same text, which a test relies on.
"""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from figures.pages import with_part

from .campaign import Tally, Wanted
from .judge import CATEGORIES

DOCS = Path(__file__).parent.parent / "docs"
RECORD, PAGE = DOCS / "torture.json", DOCS / "torture.md"
BEGIN = "<!-- campaign: begin; made by `make torture RECORD=1` from torture.json, not by hand -->"
END = "<!-- campaign: end -->"


def of(wanted: Wanted, total: Tally) -> dict[str, Any]:
    found = dict.fromkeys(CATEGORIES, 0)
    for violation in total.violations:
        found[violation["category"]] += 1
    return {
        "at": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, "
        f"Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}",
        "seed": wanted.seed,
        "seconds": round(total.seconds),
        "workers": wanted.jobs,
        "scenarios": total.scenarios,
        "through the command line": total.real,
        "of the wider campaign": total.wide,
        "processes": total.processes,
        "messages": total.messages,
        "kills": dict(sorted(total.kills.items())),
        **found,
    }


def render(record: dict[str, Any]) -> str:
    """The part of the page between the marks."""
    deaths = sum(record["kills"].values())
    rate = deaths / max(1, record["seconds"])
    wide = record.get("of the wider campaign", 0)
    lines = [
        f"{record['at']}, {record['machine']}; seed `{record['seed']}`, "
        f"{record['workers']} workers.",
        "",
        "| campaign | |",
        "|---|---|",
        f"| seconds | {record['seconds']:,} |",
        f"| scenarios | {record['scenarios']:,} |",
        f"| of them through the command line | {record['through the command line']:,} |",
        *([f"| of the wider campaign | {wide:,} |"] if wide else []),
        f"| agents | {record['processes']:,} |",
        f"| messages compared | {record['messages']:,} |",
        f"| processes killed with SIGKILL | **{deaths:,}** ({rate:.0f} a second) |",
        *(f"| … {who} | {count:,} |" for who, count in record["kills"].items()),
        *(f"| {name} | **{record[name]}** |" for name in CATEGORIES),
    ]
    return "\n".join(lines) + "\n"


def replaced(page: str, record: dict[str, Any]) -> str:
    """The page with the part between its marks replaced."""
    return with_part(page, BEGIN, END, render(record))


def write(record: dict[str, Any]) -> None:
    RECORD.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    PAGE.write_text(replaced(PAGE.read_text(), record))
