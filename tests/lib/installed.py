"""A version of the product installed in a virtual environment of its own: a release from the
history, or the working tree.

Needs no network: the dependencies come from the environment that the tests run in.
"""

from __future__ import annotations

import compileall
import io
import shutil
import subprocess
import sysconfig
import tarfile
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support import Supervised, World

ROOT = Path(__file__).parents[2]
RELEASE = "236a7e9"
PACKAGES = ("ipc", "agent_shim", "supervisor")


def release_tree(folder: Path) -> Path:
    """The packages as the release has them, compiled; a skip where the history is too short."""
    git = ["git", "-C", str(ROOT)]
    known = subprocess.run([*git, "cat-file", "-e", f"{RELEASE}^{{commit}}"], capture_output=True)
    if known.returncode:
        pytest.skip(f"the history here does not reach back to {RELEASE} (a shallow clone?)")
    archive = subprocess.check_output([*git, "archive", RELEASE, *PACKAGES])
    with tarfile.open(fileobj=io.BytesIO(archive)) as tree:
        tree.extractall(folder, filter="data")
    compileall.compile_dir(folder, quiet=1)
    return folder


def current_tree(folder: Path) -> Path:
    """The packages as the working tree has them, compiled."""
    ignored = shutil.ignore_patterns("__pycache__")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    compileall.compile_dir(folder, quiet=1)
    return folder


class InstalledWorld(World):
    """A world with a virtual environment of its own, in which one version is installed."""

    def __init__(self, folder: Path, runtime: Path, tree: Path) -> None:
        super().__init__(folder, runtime)
        environment = folder / "venv"
        venv.create(environment, symlinks=True)
        self.python = str(environment / "bin" / "python")
        self.script_file = environment / "bin" / "hermes-supervise"
        [self.site] = environment.glob("lib/python*/site-packages")
        # apsw, psutil and watchdog, without what else a .pth file there would bring in.
        (self.site / "dependencies.pth").write_text(sysconfig.get_path("platlib") + "\n")
        self.install(tree)

    def install(self, tree: Path) -> None:
        """Replace the files of one version by those of another. At once, unlike pip: what an
        import in the middle of that meets is for test_upgrade.py."""
        version = Path(tempfile.mkdtemp(dir=self.site)) / "hermes_supervise"
        shutil.copytree(tree, version)
        link = version.with_name("link")
        link.symlink_to(version)
        link.replace(self.site / "hermes_supervise")
        self.script_file.write_text(
            f"#!{self.python}\nfrom hermes_supervise.supervisor.__main__ import main\nmain()\n"
        )
        self.script_file.chmod(0o755)

    @property
    def command(self) -> list[str]:
        return [str(self.script_file)]

    def supervise(self, source: str, *options: str, **popen: Any) -> Supervised:
        return self.run([self.python, self.script(source)], *options, **popen)


Kind = TypeVar("Kind", bound=InstalledWorld)


@contextmanager
def installed_world(folder: Path, tree: Path, kind: type[Kind]) -> Iterator[Kind]:
    # A socket's path must be short, and pytest's folders are not.
    runtime = Path(tempfile.mkdtemp(prefix="hs"))
    world = kind(folder, runtime, tree)
    try:
        yield world
    finally:
        world.close()
        shutil.rmtree(runtime, ignore_errors=True)
    world.prove_sound()
