"""The Pythons on this machine, and our packages where any of them can import them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@cache
def interpreters() -> dict[str, str]:
    """One of every Python version on this machine, and always the one that runs the tests."""
    names = ["python2.7", "python3", *(f"python3.{minor}" for minor in range(6, 20))]
    candidates = [shutil.which(name) for name in names]
    managed = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    candidates += [str(path) for path in sorted(managed.glob("versions/*/bin/python"))]
    found = {"{}.{}".format(*sys.version_info): sys.executable}
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in filter(None, candidates):
        ran = subprocess.run([candidate, "-c", ask], capture_output=True, text=True)
        if ran.returncode == 0:
            found.setdefault(ran.stdout.strip(), candidate)
    return found


def since(major: int, minor: int) -> dict[str, str]:
    """Those of this version or later."""
    return {
        version: python
        for version, python in interpreters().items()
        if tuple(map(int, version.split("."))) >= (major, minor)
    }


def view_of_the_tree(folder: Path, *packages: str) -> str:
    """A folder for PYTHONPATH in which our packages have the names they are installed under."""
    view = folder / "hermes_supervise"
    view.mkdir(parents=True, exist_ok=True)
    for package in packages:
        if not (view / package).exists():
            (view / package).symlink_to(ROOT / package)
    return str(folder)


def run(
    python: str, program: str, tmp_path: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in which `hermes_supervise.ipc` can be imported, and little else is loaded."""
    start = f"import sys; sys.path.append({view_of_the_tree(tmp_path, 'ipc')!r})\n"
    return subprocess.run(
        [python, "-I", "-S", "-B", "-W", "error", "-c", start + program, *arguments],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
