"""Pythons that are started in isolation, and the same start with the shim in it.

Pure: starts nothing and changes no environment, it only computes the changes.

The shim comes in through PYTHONPATH, which Python ignores under `-I` and `-E`. The switch has to
go, but not what it is for. Every PYTHON* variable moves into one variable of ours, so that Python
does not see it; PYTHONSAFEPATH and PYTHONNOUSERSITE keep the current folder and the user's packages
off `sys.path`, as `-I` does; and the shim's first act (inject/sitecustomize.py) is to put the
variables back, before any code of the agent runs. `-S` cannot be replaced like this.
"""

from __future__ import annotations

# Holds the variables that were moved: NAME=value, separated by _BETWEEN.
VARIABLE = "HERMES_SUPERVISE_PYTHON"
_BETWEEN = "\x1f"
_IN_THE_WAY = "IES"
_TAKE_A_VALUE = "WX"
_END_THE_OPTIONS = "cm"


def switches(words: list[str]) -> str:
    """Those of `-I`, `-E`, `-S` that a Python's command line has, as letters."""
    return _parsed(words)[0]


def start_of(words: list[str]) -> int:
    """The index of what follows the options: `-c`, `-m`, or the file to run."""
    return _parsed(words)[2]


def admitting(
    words: list[str], env: dict[str, str], folder: str
) -> tuple[list[str], dict[str, str]] | None:
    """The same start with the shim's `folder` on the path, as a command line and an environment.

    None if no switch is in the way, or if one is that cannot be replaced.
    """
    switches, options, index = _parsed(words)
    if not switches or "S" in switches:
        return None
    moved = {name: value for name, value in env.items() if name.startswith("PYTHON")}
    changed = {name: value for name, value in env.items() if name not in moved}
    changed["PYTHONPATH"] = folder
    if "I" in switches:
        changed["PYTHONSAFEPATH"] = changed["PYTHONNOUSERSITE"] = "1"
    changed[VARIABLE] = _BETWEEN.join(
        f"{name}={value.replace('%', '%25').replace(_BETWEEN, '%1F')}"
        for name, value in moved.items()
    )
    return [words[0], *options, *words[index:]], changed


def _parsed(words: list[str]) -> tuple[str, list[str], int]:
    """The switches in the way, the options without them, and where the options end."""
    switches = ""
    kept: list[str] = []
    index = 1
    while index < len(words):
        word = words[index]
        if word.startswith("--") and len(word) > 2:  # --check-hash-based-pycs default
            kept += words[index : index + 2]
            index += 2
            continue
        if not word.startswith("-") or word in ("-", "--") or word[1] in _END_THE_OPTIONS:
            break
        left = ""
        values = 0
        for place, letter in enumerate(word[1:], 1):
            if letter in _IN_THE_WAY:
                switches += letter
            elif letter in _TAKE_A_VALUE:
                left += word[place:]
                values = 1 if place + 1 == len(word) else 0
                break
            elif letter in _END_THE_OPTIONS:  # `-Ic CODE`: not a shape that any installer writes
                return "", words[1:index], index
            else:
                left += letter
        if left:
            kept.append("-" + left)
        kept += words[index + 1 : index + 1 + values]
        index += 1 + values
    return switches, kept, index
