"""The examples on the pages: every block that is set as code, and the lines that people type."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md",
         *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]  # fmt: skip


@dataclass(frozen=True)
class Example:
    page: str
    line: int
    language: str
    """Of a fence; empty for a block that is indented."""
    text: str

    @property
    def first(self) -> str:
        return self.text.splitlines()[0]

    def typed(self) -> list[str]:
        """Its command lines. A backslash at the end joins two; a `$` before one is a prompt."""
        joined = re.sub(r"\\\n\s*", "", self.text)
        return [line.removeprefix("$ ") for line in joined.splitlines() if line.strip()]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.first}"


def examples(page: str) -> list[Example]:
    text = (ROOT / page).read_text()
    found = []

    def take(match: re.Match[str], language: str, body: str) -> None:
        line = text.count("\n", 0, match.start()) + 1
        found.append(Example(page, line, language, body.strip("\n")))

    for match in re.finditer(r"^```(\w*)\n(.*?)^```", text, re.M | re.S):
        take(match, match[1], match[2])
    without = re.sub(r"^```.*?^```", lambda match: re.sub(r"[^\n]", "x", match[0]), text,
                     flags=re.M | re.S)  # fmt: skip
    for match in re.finditer(r"(?<=\n\n)(?: {4}.*\n|\n(?= {4}))+", without):
        take(match, "", re.sub(r"^ {4}", "", match[0], flags=re.M))
    return sorted(found, key=lambda example: example.line)
