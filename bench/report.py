"""Renders docs/bench.json into the part of docs/bench.md between two marks.

Pure: the same results give the same text, which a test relies on.
"""

from __future__ import annotations

from typing import Any

from figures.pages import with_part

BEGIN = "<!-- results: begin; made by bench/report.py from bench.json, not by hand -->"
END = "<!-- results: end -->"


def render(results: dict[str, Any]) -> str:
    """The part of the page between the marks."""
    lines = [_made(results), ""]
    lines += _targets(results["sections"])
    for name, section in results["sections"].items():
        lines += ["", f"## {section['title']}", ""]
        for note in section["notes"]:
            lines += [note, ""]
        for table in section["tables"]:
            lines += [*_table(table["columns"], table["rows"]), ""]
        if section["left_out"]:
            lines += [f"Left out: {', '.join(section['left_out'])}.", ""]
        before, after = section["load"]
        lines.append(f"_`{name}`: load {before:.1f} before, {after:.1f} after, "
                     f"{section['seconds']:.0f} s._")  # fmt: skip
    return "\n".join(lines) + "\n"


def replaced(page: str, results: dict[str, Any]) -> str:
    """The page with the part between its marks replaced."""
    return with_part(page, BEGIN, END, render(results))


def _made(results: dict[str, Any]) -> str:
    made = results["made"]
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    return f"Made by `{made['command']}` on {made['at']}: {made['machine']}. {versions}."


def _targets(sections: dict[str, Any]) -> list[str]:
    rows = []
    for section in sections.values():
        for target in section["targets"]:
            sign = "≥" if target["least"] else "≤"
            unit = target["unit"] and (f" {target['unit']}" if target["unit"] != "x" else "x")
            rows.append([
                section["title"], target["what"], f"{sign} {_number(target['bound'])}{unit}",
                f"{_number(target['measured'])}{unit}", "yes" if target["met"] else "**no**",
            ])  # fmt: skip
    return _table(["work", "figure", "to reach", "measured", "reached"], rows)


def _table(columns: list[str], rows: list[list[Any]]) -> list[str]:
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return lines + ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        spread = f"{_number(value['q1'])} to {_number(value['q3'])}"
        return f"{_number(value['min'])} / **{_number(value['median'])}** ({spread})"
    return "-" if value is None else value if isinstance(value, str) else _number(value)


def _number(value: float) -> str:
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.3g}"
