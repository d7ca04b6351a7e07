"""What Hermes' installers leave behind, rebuilt around an installed release.

The shapes are those of the releases: a bash script that clears PYTHONPATH (up to 0.20), and two
sh scripts that end in an isolated interpreter which knows nothing of Hermes (from 0.21): Hermes'
source and its packages come onto the path when `hermes_bootstrap` is imported, which also
replaces PYTHONPATH for every child.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from hermes_world import Hermes
from support import World

SHAPES = ("bash", "bash, one word", "isolated")


def install(hermes: Hermes, shape: str) -> str:
    """Leave what an installer would, and the command that a user would type."""
    if shape == "isolated":
        return store(hermes).command
    words = [hermes.python, hermes.command] if shape == "bash" else [hermes.command]
    quoted = " ".join(f'"{word}"' for word in words)
    text = f'#!/usr/bin/env bash\nunset PYTHONPATH\nunset PYTHONHOME\nexec {quoted} "$@"\n'
    return script(hermes.world.folder / "local" / "hermes", text)


def store(hermes: Hermes, *, relaunch: bool = False, module: str = "hermes_cli.main") -> Store:
    """An installed release behind the launchers of 0.21."""
    [packages] = hermes.folder.glob("lib/python*/site-packages")
    return Store(hermes.world, packages, hermes.python, relaunch=relaunch, module=module)


class Store:
    """An install with a bare Python of its own, as 0.21 makes it.

    `relaunch`: the first process finds that an update is not complete, and lets the same command
    run in a child, in another Python.
    """

    def __init__(
        self,
        world: World,
        packages: Path,
        python: str = sys.executable,
        *,
        relaunch: bool = False,
        module: str = "hermes_cli.main",
    ) -> None:
        """`packages`: the folder with what Hermes depends on, or with Hermes itself as well.
        `python`: one of the version that they were installed for."""
        folder = world.folder / "install"
        self.root = folder / "root"
        self.root.mkdir(parents=True)
        self.python = _bare(python, folder / "store")
        second = _bare(python, folder / "second") if relaunch else self.python
        (self.root / "hermes_bootstrap.py").write_text(
            _BOOTSTRAP.format(root=str(self.root), packages=str(packages), second=second)
        )
        code = self.code(module, launcher=module == "hermes_cli.main")
        command = shlex.join([self.python, "-I", "-c", code])
        within = script(
            self.root / ".hermes" / "bin" / "hermes", f'#!/bin/sh\nexec {command} "$@"\n'
        )
        self.command = script(
            folder / "local" / "hermes", f'#!/bin/sh\nexec {shlex.quote(within)} "$@"\n'
        )

    def add(self, module: str, program: str) -> None:
        """Put a program among the modules of Hermes."""
        (self.root / f"{module}.py").write_text(Path(program).read_text())

    def code(self, module: str, *, launcher: bool = False) -> str:
        """The code that starts a module: in the launcher, or in a process that Hermes starts."""
        lines = [
            "import os, sys, runpy",
            "os.environ['HERMES_HOME'] = os.environ.get('HERMES_HOME') or '/nonexistent'",
            "os.environ.pop('PYTHONHOME', None)",
            "os.environ.pop('PYTHONPATH', None)",
            f"sys.path.insert(0, {str(self.root)!r})",
            "import hermes_bootstrap",
        ]
        if launcher:
            lines += [
                "if sys.argv[1:2] == ['--run-module']:",
                "    del sys.argv[1]",
                "    name = sys.argv.pop(1)",
                "    runpy.run_module(name, run_name='__main__', alter_sys=True)",
                "    sys.exit()",
                f"from {module} import main",
                "sys.exit(main())",
            ]
        else:
            lines += [f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"]
        return ("\n" if launcher else "; ").join(lines)

    def child(self, module: str, *arguments: str) -> list[str]:
        """The command line with which Hermes starts a process of its own."""
        return [self.python, "-I", "-c", self.code(module), *arguments]


_BOOTSTRAP = """
import os, site, subprocess, sys

root, packages, second = {root!r}, {packages!r}, {second!r}
assert "" not in sys.path, "isolated: the current folder is not searched"
if os.path.abspath(sys.executable) != os.path.abspath(second):
    code = sys.orig_argv[sys.orig_argv.index("-c") + 1]
    before = f"import sys, runpy; sys.path.insert(0, {{root!r}}); sys.argv = {{sys.argv!r}}; "
    env = {{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}}
    raise SystemExit(subprocess.call([second, "-I", "-c", f"{{before}}exec({{code!r}})"], env=env))
site.addsitedir(packages)
os.environ["PYTHONPATH"] = root + os.pathsep + packages
# The release's own, which does nothing of this.
with open(os.path.join(packages, "hermes_bootstrap.py")) as _file:
    exec(compile(_file.read(), os.path.join(packages, "hermes_bootstrap.py"), "exec"))
"""


def _bare(python: str, folder: Path) -> str:
    """A Python with no package in it."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    return str(folder / "bin" / "python3")


def script(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)
