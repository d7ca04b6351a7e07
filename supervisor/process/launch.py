"""Starting the agent: its environment, its process, and what to say when that fails.

Never waits for it. The agent runs in our process group and on our terminal, so Ctrl-C, Ctrl-Z,
job control and the window's size reach it as if it had been started without us.
"""

from __future__ import annotations

import errno
import os

from ...ipc import endpoint
from .package import INJECTED_FOLDER
from .signals import IGNORED_BY_PYTHON, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .signals import Signals

OUR_FAILURE = 125
NOT_FOUND = 127
NOT_EXECUTABLE = 126


class CannotLaunch(Exception):
    def __init__(self, command: str, code: int, why: str) -> None:
        super().__init__(f"{command}: {why}")
        self.code = code


def environment(socket: str, run_folder: str) -> dict[str, str]:
    """Our environment, and the variables by which the shim finds us."""
    env = dict(os.environ)
    for name in (endpoint.RESUMED_VARIABLE, endpoint.DEPTH_VARIABLE):
        env.pop(name, None)  # meant for an agent that we run below
    before = env.get("PYTHONPATH")
    env["PYTHONPATH"] = INJECTED_FOLDER + os.pathsep + before if before else INJECTED_FOLDER
    env[endpoint.SOCKET_VARIABLE] = socket
    env[endpoint.SPOOL_VARIABLE] = run_folder
    env[endpoint.RUN_VARIABLE] = os.path.basename(run_folder)
    return env


def spawn(
    command: list[str],
    env: dict[str, str],
    signals: Signals,
    streams: list[tuple[int, ...]] | None = None,
) -> int:
    """Start the agent; its pid. `streams`: file actions that restore standard streams which we
    have closed."""
    how: dict[str, Any] = {"setsigdef": signals.child_defaults, "setsigmask": signals.child_mask}
    if streams is not None:
        how["file_actions"] = streams
    try:
        try:
            return os.posix_spawnp(command[0], command, env, **how)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            return os.posix_spawn("/bin/sh", _as_script(command), env, **how)
    except (OSError, ValueError) as error:
        raise _cannot_launch(command[0], error) from error


def exec_unsupervised(command: list[str], signals: Signals | None = None) -> None:
    """Replace ourselves by the agent, without supervision. `signals`: what has to be undone."""
    for number in IGNORED_BY_PYTHON if signals is None else signals.child_defaults:
        signal.signal(number, signal.SIG_DFL)
    if signals is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, signals.child_mask)
    try:
        try:
            os.execvp(command[0], command)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            os.execv("/bin/sh", _as_script(command))
    except (OSError, ValueError) as error:
        raise _cannot_launch(command[0], error) from error


def reserve_standard_streams() -> None:
    """Fill standard descriptors that we were started without, so that no file of ours gets their
    numbers. The agent still finds them closed."""
    while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= 2:
        pass
    os.close(fd)


def close_inherited_streams(*, others: bool = True) -> None:
    """Close the descriptors that the agent inherited: a pipe must end when the *agent* closes it.

    Standard error stays open for our own lines. What we opened ourselves is not inheritable.
    `others`: close every inherited descriptor, not only standard input and output.
    """
    try:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # no descriptor left; standard error stays open anyway
        null = 2
    os.dup2(null, 0)
    os.dup2(null, 1)
    if null != 2:
        os.close(null)
    if not others:
        return
    try:
        inherited = [int(name) for name in os.listdir("/dev/fd") if int(name) > 2]
    except OSError:
        inherited = list(range(3, min(os.sysconf("SC_OPEN_MAX"), 1024)))
    for fd in inherited:
        try:
            if os.get_inheritable(fd):
                os.close(fd)
        except OSError:
            continue  # the descriptor that listed the folder


def close_standard_error() -> None:
    """For a process that may outlive us: a reader of our standard error must see its end."""
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(null, 2)
    os.close(null)


def _cannot_launch(command: str, error: OSError | ValueError) -> CannotLaunch:
    if isinstance(error, ValueError) or error.errno in (errno.ENOENT, errno.ENOTDIR):
        return CannotLaunch(command, NOT_FOUND, "not found")  # ValueError: an empty name
    why = error.strerror or str(error)
    path = _on_path(command)
    if error.errno == errno.EACCES and os.path.isdir(path):
        why = "is a directory"
    elif error.errno == errno.EACCES and os.path.isfile(path) and not os.access(path, os.X_OK):
        why = f"not executable; run: chmod +x {path}"
    return CannotLaunch(command, NOT_EXECUTABLE, why)


def _as_script(command: list[str]) -> list[str]:
    """How shells run a script whose first line names no interpreter."""
    return ["/bin/sh", _on_path(command[0]), *command[1:]]


def _on_path(name: str) -> str:
    if "/" in name:
        return name
    for folder in os.get_exec_path():
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK):
            return path
    return name


def finish_line(ending: bytes) -> None:
    """Begin a new line on the terminal: the killed agent may have left the cursor inside one."""
    try:
        os.write(2, ending)
    except OSError:
        pass


# What else gets our lines, beside standard error (--notify). Set once, before the first line.
_sinks: list[Callable[..., None]] = []


def add_sink(sink: Callable[..., None]) -> None:
    _sinks.append(sink)


def columns() -> int | None:
    """The width of the terminal that `say` writes to, if it is one."""
    try:
        return os.get_terminal_size(2).columns
    except OSError:
        return None


def reason(fault: Exception) -> str:
    """Why something of ours failed, as the system or Python says it."""
    if isinstance(fault, OSError) and fault.strerror:
        return f"{fault.strerror} ({fault.filename})" if fault.filename else fault.strerror
    return f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__


def say(text: str, *, loud: bool = False) -> None:
    """Write a line to standard error. A terminal that is gone is not an error. `loud`: the user
    should see it now; only used while no agent runs."""
    for sink in _sinks:
        sink(text, loud=loud)
    try:
        os.write(2, f"hermes-supervise: {text}\n".encode("utf-8", "replace"))
    except OSError:
        pass
