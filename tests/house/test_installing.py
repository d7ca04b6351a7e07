"""Installed as users install it, in a folder whose name has a space in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working tree, with a virtual environment in which it is installed as `make` does it; the
    dependencies come from the environment of the tests."""
    folder = tmp_path_factory.mktemp("with a space") / "my checkout"
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT).decode().split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    environment = folder / ".venv"
    subprocess.check_call([sys.executable, "-m", "venv", str(environment)])
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
    done = subprocess.run([*pip, "--editable", "."], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [site] = environment.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("platlib") + "\n")
    (environment / ".installed").touch()
    return folder


def environment(folder: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HERMES_", "PYTHON", "MAKE"))}
    return {**kept, "HOME": str(folder), "XDG_STATE_HOME": str(folder / "some state")}


def test_the_installed_command_runs(checkout: Path) -> None:
    command = checkout / ".venv" / "bin" / "hermes-supervise"
    for words in (["--version"], ["--", "true"]):
        done = subprocess.run(
            [command, *words], env=environment(checkout), capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")
    assert "hermes-supervise" in subprocess.check_output([command, "--version"], text=True)


def test_make_demo_works(checkout: Path) -> None:
    done = subprocess.run(
        ["make", "demo"], cwd=checkout, env=environment(checkout), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "interrupted" in done.stdout
