"""What `doctor` says about a Hermes: its launcher, its version, its state.db, its hook points."""

from __future__ import annotations

import os
import re
from typing import Any

from ..protocol import BAD, OK
from ..state_db import hermes_home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..protocol import Finding

_PROFILE = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_TAKES_A_VALUE = ("-z", "--oneshot", "-m", "--model", "--provider", "-t", "--toolsets",
                  "-r", "--resume", "-s", "--skills")  # fmt: skip


def inner_findings(answer: dict[str, Any], arguments: list[str]) -> list[Finding]:
    version = answer["version"] or "(version unknown)"
    found: list[Finding] = [("agent", OK, f"Hermes {version}")]
    found.append(("state.db", OK, state_db(arguments)))
    for module, error in answer["errors"].items():
        found.append(("agent", BAD, f"{module} cannot be imported: {error}"))
    if answer["container"]:
        text = f"hands over to the container {answer['container']}, where it cannot be followed"
        found.append(("container", BAD, text))
    for name, how in answer["capabilities"].items():
        if how is None:
            text = f"not captured: {name}; this release has no method that provides it"
            found.append(("capability", BAD, text))
        else:
            found.append(("capability", OK, f"{name}, by {how}"))
    found += [("seam", OK, f"{name} {state}") for name, state in answer["seams"]]
    return found


def losses(answer: dict[str, Any]) -> str:
    """What a user should know before this Hermes starts."""
    name = f"Hermes {answer['version'] or ''}".rstrip()
    more = "run `hermes-supervise doctor -- COMMAND` for details"
    if not answer["shim"]:
        return f"nothing that {name} says will be captured: the shim does not get in; {more}"
    broken = [f"{module} cannot be imported" for module in answer["errors"]]
    lost = [what for what, how in answer["capabilities"].items() if how is None]
    if not broken and not lost:
        return ""
    return f"{name} will not be captured completely: {', '.join(broken + lost)}; {more}"


def state_db(arguments: list[str]) -> str:
    """Where a Hermes with these arguments keeps its sessions, profiles considered. From the
    outside; in a run, what counts is the path that Hermes itself opens."""
    root = hermes_home()
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
