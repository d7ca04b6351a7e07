"""Processes that an agent starts: those that run the agent itself get the shim, no other does.

Never changes how a tool is started, and never prevents a start: if something fails here, the
process starts as the agent wanted it.

An agent may start itself again: a process that owns its sessions, or its successor after an update.
On the way there the agent may clear PYTHONPATH, replace it, clean the environment or add `-I`. So
every start in the agent's process is looked at. If the adapter says that it runs the agent, it gets
our variables and a command line that lets the shim in.
"""

from __future__ import annotations

import functools
import os

from ..ipc import endpoint
from ..ipc.handlers import is_the_agents
from . import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    Judge = Callable[[list[str], Mapping[str, str]], bool]

# The arguments of `subprocess.Popen` in their order, as far as they matter here.
_ORDER = ("args", "bufsize", "executable", "stdin", "stdout", "stderr", "preexec_fn", "close_fds",
          "shell", "cwd", "env")  # fmt: skip

# How many starts of the agent by the agent, one within the other, get the shim. An agent that
# starts itself again because something is not as it wants it would do so for ever.
_DEEPEST = 6

_variables: dict[str, str] = {}
# The process that has hidden us from its children. An exec in its place is its successor.
_hidden_in: list[int] = []


def watch(runs_the_agent: Judge) -> None:
    """Look at every start from now on. Our variables are remembered as they are now."""
    if _variables:
        return
    _variables.update(environment.ours())
    import subprocess  # an agent has it anyway; another Python never comes here

    execv, execve, popen = os.execv, os.execve, subprocess.Popen.__init__

    def watched_execv(path: Any, args: Any) -> Any:
        changed = _quietly(_successor, runs_the_agent, path, args, os.environ)
        return execv(path, args) if changed is None else execve(*changed)

    def watched_execve(path: Any, args: Any, env: Any) -> Any:
        changed = _quietly(_successor, runs_the_agent, path, args, env)
        return execve(path, args, env) if changed is None else execve(*changed)

    @functools.wraps(popen)
    def watched_popen(self: Any, *given: Any, **named: Any) -> None:
        changed = _quietly(_child, runs_the_agent, given, named)
        if changed is None:
            popen(self, *given, **named)
            return
        popen(self, **changed)
        self.args = given[0] if given else named["args"]  # as the agent may print or compare it

    # os.execvp and its kind call these two by name.
    vars(os).update(execv=watched_execv, execve=watched_execve)
    setattr(subprocess.Popen, "__init__", watched_popen)  # noqa: B010 - it is a method to mypy


def hide() -> None:
    """From now on children get the environment that they would have without supervision."""
    _variables.update(environment.ours())
    for name, value in environment.without_us().items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _hidden_in[:] = [os.getpid()]


def _child(
    runs_the_agent: Judge, given: tuple[Any, ...], named: dict[str, Any]
) -> dict[str, Any] | None:
    """The arguments of a `Popen` that runs the agent, changed to let the shim in; None for any
    other process."""
    if len(given) > len(_ORDER):
        return None
    asked = {**{_ORDER[place]: value for place, value in enumerate(given)}, **named}
    if asked.get("shell") or asked.get("executable") is not None:
        return None
    words = _words(asked["args"])
    env = os.environ if asked.get("env") is None else asked["env"]
    if words is None or not runs_the_agent(words, env):
        return None
    depth = int(_variables.get(endpoint.DEPTH_VARIABLE, "0"))
    if depth >= _DEEPEST:
        _quietly(os.unlink, os.path.join(_variables[endpoint.SPOOL_VARIABLE], "reached"))
        return None  # the agent is out of reach, and the supervisor says so
    variables = {**_variables, endpoint.DEPTH_VARIABLE: str(depth + 1)}
    asked["args"], asked["env"] = environment.admitting(words, env, variables)
    return asked


def _successor(
    runs_the_agent: Judge, path: Any, args: Sequence[Any], env: Mapping[str, str]
) -> tuple[Any, Sequence[Any], dict[str, str]] | None:
    """The arguments of an exec that goes on with the agent, changed to let the shim in."""
    words = _words([path, *args[1:]])
    if words is not None and runs_the_agent(words, env):
        admitted, changed = environment.admitting(words, env, _variables)
        return (path, args, changed) if admitted == words else (admitted[0], admitted, changed)
    if _hidden_in == [os.getpid()]:  # whatever it becomes, it is still the same process
        return path, args, environment.carrying(env, _variables)
    return None


def _words(args: Any) -> list[str] | None:
    """A command line of strings; None if it is anything else."""
    if isinstance(args, (str, bytes)):
        return None
    words = [os.fspath(word) for word in args]
    return words if words and all(isinstance(word, str) for word in words) else None


def _quietly(look: Callable[..., Any], *given: Any) -> Any:
    try:
        return look(*given)
    except Exception as error:
        if is_the_agents(error):
            raise
        return None
