"""The pictures of the README show what is printed now."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from figures import cast  # noqa: E402


def test_the_recorded_demo_is_what_the_demo_prints_today(tmp_path: Path) -> None:
    goal = tmp_path / "demo.svg"
    subprocess.check_call([sys.executable, "-m", "figures.cast", str(goal)], cwd=ROOT)
    now, then = cast.words(goal.read_text()), cast.words(cast.PICTURE.read_text())
    assert now == then, "`make pictures` draws it anew"
    assert "killed by SIGKILL" in now


def test_every_picture_of_the_readme_is_there_and_described() -> None:
    found = re.findall(r"!\[(.+?)\]\((.+?)\)", (ROOT / "README.md").read_text())
    assert len(found) == 2
    for description, path in found:
        assert len(description) > 30
        assert (ROOT / path).stat().st_size > 1000
