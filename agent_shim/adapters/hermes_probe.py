# mypy: ignore-errors
"""Finds out, inside an agent's own interpreter, whether the shim gets in and what it captures.

Never starts an agent, and touches nothing of the user's: Hermes, which makes its folders when
it is imported, is given one that is thrown away. A script, started by its path with the
environment that a supervised agent would have.

On standard input a JSON object: `hermes` (whether to import it), `home` (the user's own Hermes
home, to be asked about, not used), `scratch` (the home to use), `folder` (of the entry point) and
`bootstrapped` (Hermes' own bootstrap has run before us, with the user's home). The answer is JSON.
"""

from __future__ import annotations

import json
import os
import sys

_ADAPTER = "_hermes_supervise.agent_shim.adapters.hermes"
_MODULES = ("run_agent", "hermes_state", "hermes_cli.plugins")
# What each of them defines, and where it may be if a release has moved it.
_CLASSES = ("AIAgent", "SessionDB", "PluginManager")
_PREFIXES = ("agent", "hermes", "run_agent")


def main() -> None:
    asked = json.load(sys.stdin)
    answer = os.dup(1)
    os.dup2(2, 1)  # what an import prints is no answer
    if asked["bootstrapped"]:
        os.environ["HERMES_HOME"] = asked["scratch"]
    elif not getattr(sys.flags, "safe_path", False):
        sys.path[0] = asked["folder"]
    facts = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "shim": any(type(finder).__name__ == "_ImportHook" for finder in sys.meta_path),
        "sdk": _imports("hermes_supervise.agent_shim") is None,
        "sqlite": None,
    }
    try:
        import sqlite3  # it may be missing in that Python

        facts["sqlite"] = sqlite3.sqlite_version
    except ImportError:
        pass
    if asked["hermes"]:
        facts.update(_hermes(asked["home"]))
    os.write(answer, json.dumps(facts).encode())
    os._exit(0)  # whatever threads Hermes may have started


def _hermes(home: str) -> dict[str, object]:
    errors = {module: _imports(module) for module in _MODULES}
    for module, name in zip(_MODULES, _CLASSES, strict=True):
        if errors[module] == f"ModuleNotFoundError: No module named {module!r}":
            moved = _defines(name)
            errors[module] = errors[module] if moved is None else _imports(moved)
    return {
        "errors": {module: error for module, error in errors.items() if error is not None},
        "version": _version(),
        "files": _files(),
        "seams": _seams(),
        "capabilities": _capabilities(),
        "container": _container(home),
    }


def _imports(module: str) -> str | None:
    """Why it cannot be imported; None if it can."""
    try:
        __import__(module)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return None


def _defines(name: str) -> str | None:
    """The module of Hermes that defines a class, by its text."""
    root = os.path.dirname(os.path.dirname(getattr(sys.modules.get("hermes_cli"), "__file__", "")))
    starts = tuple(f"\nclass {name}{after}" for after in "(:")
    for top in sorted(os.listdir(root) if root else ()):
        if not top.startswith(_PREFIXES):
            continue
        whole = os.path.join(root, top)
        for folder, _, files in os.walk(whole) if os.path.isdir(whole) else [(root, [], [top])]:
            for file in files:
                path = os.path.join(folder, file)
                if file.endswith(".py") and any(start in _text(path) for start in starts):
                    return os.path.relpath(path, root)[:-3].replace(os.sep, ".")
    return None


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return "\n" + file.read()
    except OSError:
        return ""


def _files() -> list[str]:
    """What changes when this Hermes is replaced by another, or we are: the modules that a method
    may come from, and our own list of methods."""
    found = {sys.executable}
    for module in (*_MODULES, "hermes_cli", _ADAPTER, *_of_the_classes()):
        if getattr(sys.modules.get(module), "__file__", None):
            found.add(os.path.abspath(sys.modules[module].__file__))
    return sorted(found)


def _of_the_classes() -> list[str]:
    """The modules of the classes that are tapped, and of everything that they inherit from."""
    adapter = sys.modules.get(_ADAPTER)
    tapped = list(adapter._tapped) if adapter is not None else []
    return [above.__module__ for owner in tapped for above in owner.__mro__]


def _version() -> str | None:
    try:
        from importlib.metadata import version  # start-up: only if Hermes names no version

        return version("hermes-agent")
    except Exception:
        return getattr(sys.modules.get("hermes_cli"), "__version__", None)


def _seams() -> list[list[object]]:
    """[name, what it is to us] of every method that is tapped: holds, or not in this release."""
    adapter = sys.modules.get(_ADAPTER)
    if adapter is None:
        return []
    held = adapter.CAPABILITIES
    return [
        [name, "holds" if held.is_tapped(name) else "not in this release"] for name in adapter.TAPS
    ]


def _capabilities() -> dict[str, str | None]:
    """What is captured, and by which methods; None: not at all."""
    adapter = sys.modules.get(_ADAPTER)
    return {} if adapter is None else adapter.CAPABILITIES.held()


def _container(home: str) -> str | None:
    """The container that this Hermes would hand over to, instead of running here."""
    before = os.environ.get("HERMES_HOME")
    os.environ["HERMES_HOME"] = home
    try:
        from hermes_cli.config import get_container_exec_info  # it is in newer releases only

        info = get_container_exec_info()
        return str(info["container_name"]) if info else None
    except Exception:
        return None
    finally:
        if before is not None:
            os.environ["HERMES_HOME"] = before


main()
