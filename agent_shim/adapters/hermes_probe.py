# mypy: ignore-errors
"""Tells, from inside an agent's own interpreter, whether we get in there and what holds.

Never starts an agent, and touches nothing of the user's: Hermes, which makes its folders when
it is imported, is given one that is thrown away. A script, started by its path with the
environment that a supervised agent would have.

On standard input a JSON object: `hermes` (whether to import it), `home` (the user's own Hermes
home, to be asked about, not used) and `folder` (of the entry point). The answer is JSON, too.
"""

from __future__ import annotations

import json
import os
import sys

_ADAPTER = "_hermes_supervise.agent_shim.adapters.hermes"
_CLASSES = {
    "AIAgent": "run_agent",
    "SessionDB": "hermes_state",
    "PluginManager": "hermes_cli.plugins",
}


def main() -> None:
    asked = json.load(sys.stdin)
    answer = os.dup(1)
    os.dup2(2, 1)  # what an import prints is no answer
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = asked["folder"]
    told = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "shim": any(type(finder).__name__ == "_Herald" for finder in sys.meta_path),
        "sdk": _imports("hermes_supervise.agent_shim") is None,
        "sqlite": None,
    }
    try:
        import sqlite3

        told["sqlite"] = sqlite3.sqlite_version
    except ImportError:
        pass
    if asked["hermes"]:
        told.update(_hermes(asked["home"]))
    os.write(answer, json.dumps(told).encode())
    os._exit(0)  # whatever threads Hermes may have started


def _hermes(home: str) -> dict[str, object]:
    errors = {module: _imports(module) for module in _CLASSES.values()}
    return {
        "errors": {module: error for module, error in errors.items() if error is not None},
        "version": _version(),
        "seams": _seams(),
        "container": _container(home),
    }


def _imports(module: str) -> str | None:
    """Why it cannot be imported; None if it can."""
    try:
        __import__(module)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return None


def _version() -> str | None:
    try:
        from importlib.metadata import version

        return version("hermes-agent")
    except Exception:
        return None


def _seams() -> list[list[object]]:
    """[name, what it is to us] of every method that is tapped: holds, missing, or not needed."""
    adapter = sys.modules.get(_ADAPTER)
    if adapter is None:
        return []
    found = []
    optional = adapter._AFTER_WHERE_THERE
    for table in (adapter._AROUND, adapter._BEFORE, adapter._AFTER, optional):
        for kind, methods in table.items():
            owner = getattr(sys.modules.get(_CLASSES[kind]), kind, None)
            for name in methods:
                tapped = hasattr(getattr(owner, "__dict__", {}).get(name), "__wrapped__")
                otherwise = "not in this release" if table is optional else "missing"
                found.append([f"{kind}.{name}", "holds" if tapped else otherwise])
    return found


def _container(home: str) -> str | None:
    """The container that this Hermes would hand over to, instead of running here."""
    before = os.environ.get("HERMES_HOME")
    os.environ["HERMES_HOME"] = home
    try:
        from hermes_cli.config import get_container_exec_info

        info = get_container_exec_info()
        return str(info["container_name"]) if info else None
    except Exception:
        return None
    finally:
        if before is not None:
            os.environ["HERMES_HOME"] = before


main()
