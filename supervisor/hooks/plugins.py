"""Python hooks: callables that installed packages offer by entry point.

Never imports a plugin to find it, and calls each one in a process of its own.

    [project.entry-points."hermes_supervise.hooks"]
    on_session_end = "my_package.hooks:on_session_end"

The name is the event; a package with several hooks for one event names them on_session_end.FIRST,
on_session_end.SECOND. Each is called with the event, a dict.
"""

from __future__ import annotations

import os
import sys
from functools import cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "hermes_supervise.hooks"
# The internal command by which a runner calls a plugin.
CALL = "call-hook"


def for_event(event: str) -> list[tuple[str, list[str]]]:
    """For each plugin of this event: its name, and the command line that calls it."""
    return [
        (f"{plugin.value} ({plugin.name})", _command(plugin))
        for plugin in _installed()
        if plugin.name.partition(".")[0] == event
    ]


@cache
def _installed() -> list[EntryPoint]:
    if not any(map(_may_have_plugins, sys.path)):
        return []
    from importlib.metadata import entry_points  # start-up: 20 ms, and rarely needed

    unique = {(plugin.name, plugin.value): plugin for plugin in entry_points(group=GROUP)}
    return [unique[key] for key in sorted(unique)]


def _may_have_plugins(folder: str) -> bool:
    """A cheap check whether a package in this folder names our entry-point group."""
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


def _command(plugin: EntryPoint) -> list[str]:
    module = "hermes_supervise.supervisor"
    return [sys.executable, "-P", "-m", module, CALL, plugin.name, plugin.value]


def call(name: str, value: str) -> int:
    """In the hook's own process: load the plugin and pass it the event from standard input."""
    import json  # start-up: this module is also loaded where no plugin is called

    event = json.load(sys.stdin)
    for plugin in _installed():
        if (plugin.name, plugin.value) == (name, value):
            plugin.load()(event)
            return 0
    print(f"the plugin {value} is no longer installed")
    return 1
