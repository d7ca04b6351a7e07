"""The table of docs/settings.md, made from the options; run as a script it is written anew."""

from __future__ import annotations

from pathlib import Path

from hermes_supervise.supervisor.options import TABLE

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"
BEGIN, END = "<!-- options -->\n", "<!-- /options -->\n"


def table() -> str:
    lines = ["| flag | variable | key | what it says |", "|---|---|---|---|"]
    for option in TABLE:
        flag = f"{option.flag} {option.value}".strip()
        meaning = " ".join(option.meaning.split())
        lines.append(f"| `{flag}` | `{option.variable}` | `{option.name}` | {meaning} |")
    return "\n".join(lines) + "\n"


def written(page: str) -> str:
    head, _, rest = page.partition(BEGIN)
    return head + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
