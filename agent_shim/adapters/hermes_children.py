"""Which of the processes that Hermes starts run Hermes: they own its agents, or will.

Never takes a tool for Hermes: a program that a tool runs is behind a shell, or is not Hermes.
"""

from __future__ import annotations

import os
import sys

from ...ipc import isolation
from ...ipc.launchers import is_python
from .. import children

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES = ("hermes", "hermes-agent", "hermes-acp")
# Modules that run agents, or start those that do. Others, such as the TUI's slash worker, do not.
_MODULES = (
    "hermes_cli.main", "run_agent", "acp_adapter", "acp_adapter.entry", "tui_gateway.entry",
    "tui_gateway.compute_host", "gateway.run", "cron.scheduler", "batch_runner", "cli",
)  # fmt: skip
# What the code of a start that Hermes writes itself goes by (`python -I -c CODE`).
_SIGNS = ("hermes_bootstrap", "runpy.run_module(", "runpy.run_path(")
_TUI = ("entry.js", "entry.tsx")


def watch() -> None:
    children.watch(runs_hermes)


def runs_hermes(words: list[str], env: Mapping[str, str]) -> bool:
    """Whether a command line that Hermes starts runs Hermes' own code for agents."""
    if is_python(words[0]):
        return _runs_in_python(words)
    if os.path.basename(words[0]) in _NAMES:
        return True
    # Node, which starts the process that owns the agent with what it was given itself.
    return "HERMES_PYTHON" in env and any(os.path.basename(word) in _TUI for word in words[:4])


def _runs_in_python(words: list[str]) -> bool:
    start = isolation.start_of(words)
    kind, what = words[start : start + 1], "".join(words[start + 1 : start + 2])
    if kind == ["-m"]:
        # In another interpreter, modules of other projects may have these names.
        return what in _MODULES and os.path.abspath(words[0]) == sys.executable
    if kind == ["-c"]:
        return any(sign in what for sign in _SIGNS) and any(
            f"{before}{name}{after}" in what
            for name in (*_MODULES, *_NAMES)
            for before, after in (("from ", " import"), ("'", "'"), ("/", "'"))
        )
    return any(os.path.basename(word) in _NAMES for word in kind)
