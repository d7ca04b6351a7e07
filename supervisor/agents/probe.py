"""Ask an agent's own Python, from inside, whether the shim gets in and what it would capture.

Never lets the agent touch the user's files: the probe runs with a home that is removed afterwards.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from typing import Any

from ...ipc import isolation
from ..process import launch
from ..process.interpreter import Interpreter
from ..process.package import INJECTED_FOLDER, SHIM_FOLDER
from .state_db import hermes_home

_SCRIPT = os.path.join(SHIM_FOLDER, "adapters", "hermes_probe.py")
_PATIENCE = 120.0


def ask(
    found: Interpreter, *, injected: bool, bootstrap: str | None = None
) -> dict[str, Any] | str:
    """The probe's answer; a text if there is none. An agent that the shim knows is imported as
    well, behind the `bootstrap` code that it needs for that, if it needs any."""
    with tempfile.TemporaryDirectory(prefix="hermes-supervise-") as scratch:
        env = launch.environment(os.path.join(scratch, "nobody.sock"), scratch)
        private = os.path.join(scratch, "home")
        asked = {
            "hermes": injected,
            "home": hermes_home(),
            "scratch": private,
            "folder": os.path.dirname(os.path.abspath(found.entry)) if found.entry else "",
            "bootstrapped": bootstrap is not None,
        }
        if bootstrap is None:
            words = [found.python, *found.options, _SCRIPT]
            env["HERMES_HOME"] = private
        else:
            run = f"import runpy; runpy.run_path({_SCRIPT!r}, run_name='__main__')"
            words = [found.python, "-I", *found.options, "-c", f"{bootstrap}\n{run}"]
            # Its packages are found through its home. Nothing is to be installed for a question.
            env |= {"HERMES_DISABLE_LAZY_INSTALLS": "1", "TMPDIR": scratch}
            words, env = isolation.admitting(words, env, INJECTED_FOLDER) or (words, env)
        try:
            done = subprocess.run(
                words, env=env, input=json.dumps(asked).encode(), capture_output=True,
                timeout=_PATIENCE,
            )  # fmt: skip
            answer = json.loads(done.stdout)
        except subprocess.TimeoutExpired:
            return f"{found.python} did not answer within {_PATIENCE:g} s"
        except OSError as error:
            return f"{found.python} cannot be run: {error.strerror or error}"
        except ValueError:
            last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
            return f"{found.python} did not answer: {last or f'status {done.returncode}'}"
    return answer if isinstance(answer, dict) else f"{found.python} did not answer"
