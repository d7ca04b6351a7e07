"""What `doctor` says of a Hermes: its version, its state.db, and whether each seam holds.

Never imports Hermes, and never lets it touch the user's home: the probe runs in Hermes' own
interpreter with a folder that is thrown away.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from typing import Any

from .. import launch
from ..interpreter import Interpreter

_PROBE = os.path.join(
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
    "agent_shim", "adapters", "hermes_probe.py",
)  # fmt: skip
_PATIENCE = 120.0
_PROFILE = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_TAKES_A_VALUE = ("-z", "--oneshot", "-m", "--model", "--provider", "-t", "--toolsets",
                  "-r", "--resume", "-s", "--skills")  # fmt: skip


def ask(found: Interpreter, *, hermes: bool) -> dict[str, Any] | str:
    """What the probe answers from inside the interpreter; a text if it could not."""
    with tempfile.TemporaryDirectory(prefix="hermes-supervise-") as scratch:
        env = launch.environment(os.path.join(scratch, "nobody.sock"), scratch)
        env["HERMES_HOME"] = os.path.join(scratch, "home")
        asked = {
            "hermes": hermes,
            "home": home(),
            "folder": os.path.dirname(os.path.abspath(found.entry)) if found.entry else "",
        }
        command = [found.python, *found.options, _PROBE]
        try:
            done = subprocess.run(
                command, env=env, input=json.dumps(asked).encode(), capture_output=True,
                timeout=_PATIENCE,
            )  # fmt: skip
            told = json.loads(done.stdout)
        except subprocess.TimeoutExpired:
            return f"{found.python} did not answer within {_PATIENCE:g} s"
        except OSError as error:
            return f"{found.python} cannot be run: {error.strerror or error}"
        except ValueError:
            last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
            return f"{found.python} did not answer: {last or f'status {done.returncode}'}"
    return told if isinstance(told, dict) else f"{found.python} did not answer"


def home() -> str:
    return os.path.abspath(os.environ.get("HERMES_HOME") or os.path.expanduser("~/.hermes"))


def state_db(arguments: list[str]) -> str:
    """Where a Hermes with these arguments keeps its sessions, profiles considered. From the
    outside; in a run, what counts is the path that Hermes itself opens."""
    root = home()
    parent = os.path.dirname(root)
    in_profile = os.path.basename(parent) == "profiles"
    name = _profile(arguments)
    if name is None and in_profile:
        return os.path.join(root, "state.db")
    if in_profile:
        root = os.path.dirname(parent)
    if name is None:
        try:
            with open(os.path.join(root, "active_profile"), encoding="utf-8") as file:
                name = file.read().strip()
        except (OSError, UnicodeDecodeError):
            pass
    if name and name != "default":
        root = os.path.join(root, "profiles", name)
    return os.path.join(root, "state.db")


def _profile(arguments: list[str]) -> str | None:
    index = 0
    while index < len(arguments) and arguments[index] != "--":
        word = arguments[index]
        if word.startswith("--profile="):
            return word.partition("=")[2]
        if word in ("-p", "--profile") and _PROFILE.fullmatch(
            "".join(arguments[index + 1 : index + 2])
        ):
            return arguments[index + 1]
        index += 2 if word in _TAKES_A_VALUE else 1
    return None
