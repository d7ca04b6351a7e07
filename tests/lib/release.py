"""Gives the tree a new version: in pyproject.toml, the changelog and the man page.

    python tests/lib/release.py X.Y.Z        (`make release TO=X.Y.Z`)

Never commits and never tags: CONTRIBUTING.md has the whole way.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNRELEASED = "## Unreleased\n"


def number(version: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise SystemExit(f"{version!r} is not of the form X.Y.Z")
    return tuple(map(int, version.split(".")))


def release(root: Path, version: str, date: str) -> None:
    project, changelog = root / "pyproject.toml", root / "CHANGELOG.md"
    known, news = project.read_text(), changelog.read_text()
    [before] = re.findall(r'^version = "(.*)"$', known, re.M)
    if number(version) <= number(before):
        raise SystemExit(f"{version} is not newer than {before}")
    if not news.partition(UNRELEASED)[2].partition("\n## ")[0].strip():
        raise SystemExit("nothing is under Unreleased in CHANGELOG.md")
    project.write_text(known.replace(f'version = "{before}"', f'version = "{version}"', 1))
    changelog.write_text(news.replace(UNRELEASED, f"{UNRELEASED}\n## {version} ({date})\n", 1))
    page = root / "tests" / "lib" / "man_page.py"
    page.write_text(re.sub(r'^DATE = ".*"$', f'DATE = "{date}"', page.read_text(), flags=re.M))
    # In a process of its own, which reads the new version.
    subprocess.run([sys.executable, str(page)], check=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("say which version: make release TO=X.Y.Z")
    release(ROOT, sys.argv[1], time.strftime("%Y-%m-%d"))
    print(f"this is {sys.argv[1]}; look at it with `git diff`, then commit and tag it")
