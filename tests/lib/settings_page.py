"""The table of docs/settings.md, made from the options; run as a script it is written anew."""

from __future__ import annotations

import sys
from pathlib import Path

from hermes_supervise.supervisor.cli.options import TABLE

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from figures.pages import with_part  # noqa: E402

PAGE = ROOT / "docs" / "settings.md"
BEGIN, END = "<!-- options -->", "<!-- /options -->"


def table() -> str:
    lines = ["| flag | variable | key | meaning |", "|---|---|---|---|"]
    for option in TABLE:
        flag = f"{option.flag} {option.value}".strip()
        meaning = " ".join(option.meaning.split())
        lines.append(f"| `{flag}` | `{option.variable}` | `{option.name}` | {meaning} |")
    return "\n".join(lines) + "\n"


def written(page: str) -> str:
    return with_part(page, BEGIN, END, table())


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
