"""Python hooks: callables that installed packages offer by entry point.

Never imports one to find it, and never calls one in a process that does anything else.

    [project.entry-points."hermes_supervise.hooks"]
    on_session_end = "my_package.hooks:on_session_end"

The name is the event; a package that has several for one event writes on_session_end.FIRST,
on_session_end.SECOND. Each is called with the event, a dict, in a process of its own.
"""

from __future__ import annotations

import os
import sys
from functools import cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "hermes_supervise.hooks"
# Said by a runner, not by people.
CALL = "call-hook"


def found(event: str) -> list[tuple[str, list[str]]]:
    """Of every plugin for this event: its name, and the words that call it."""
    return [
        (f"{one.value} ({one.name})", _words(one))
        for one in _offered()
        if one.name.partition(".")[0] == event
    ]


@cache
def _offered() -> list[EntryPoint]:
    if not any(map(_may_offer, sys.path)):
        return []
    from importlib.metadata import entry_points

    unique = {(one.name, one.value): one for one in entry_points(group=GROUP)}
    return [unique[key] for key in sorted(unique)]


def _may_offer(folder: str) -> bool:
    """Whether something that is installed there speaks of us at all. With what it takes to look
    properly, a dead agent's hooks would begin some twenty milliseconds later."""
    try:
        names = [name for name in os.listdir(folder or ".") if name.lower().endswith("-info")]
    except NotADirectoryError:
        return True  # an archive
    except OSError:
        return False
    for name in names:
        try:
            with open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                if GROUP.encode() in file.read():
                    return True
        except OSError:
            continue
    return False


def _words(one: EntryPoint) -> list[str]:
    return [sys.executable, "-P", "-m", "hermes_supervise.supervisor", CALL, one.name, one.value]


def call(name: str, value: str) -> int:
    """In the hook's own process: load it and hand it the event from standard input."""
    import json

    event = json.load(sys.stdin)
    for one in _offered():
        if (one.name, one.value) == (name, value):
            one.load()(event)
            return 0
    print(f"no plugin {value} is installed any more")
    return 1
