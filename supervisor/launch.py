"""Starting the agent: its environment, its process, and the plain words when that fails.

Never waits for it. The agent runs in our process group and on our terminal, so that
Ctrl-C, Ctrl-Z, job control and the window's size reach it as without us.
"""

from __future__ import annotations

import errno
import os

from ..ipc import endpoint
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
    """Ours, and what the shim needs to find us."""
    found = dict(os.environ)
    found.pop(endpoint.RESUMED_VARIABLE, None)  # of an agent that we run below, and not ours
    injected = os.path.join(os.path.dirname(os.path.dirname(__file__)), "agent_shim", "inject")
    before = found.get("PYTHONPATH")
    found["PYTHONPATH"] = injected + os.pathsep + before if before else injected
    found[endpoint.SOCKET_VARIABLE] = socket
    found[endpoint.SPOOL_VARIABLE] = run_folder
    found[endpoint.RUN_VARIABLE] = os.path.basename(run_folder)
    return found


def seen_through(command: list[str]) -> list[str]:
    """The command behind a launcher script that would lose us on the way."""
    if not os.path.basename(command[0]).startswith("hermes"):
        return command
    from .adapters import hermes_launcher

    known = os.path.basename(command[0]) in hermes_launcher.NAMES
    return hermes_launcher.launched_directly(command) if known else command


OUT_OF_REACH = (
    "Hermes could not be followed, so nothing of it would have been recovered; "
    "`hermes-supervise doctor -- COMMAND` says why"
)


def was_out_of_reach(command: list[str], sign: str) -> bool:
    """Whether a Hermes ran where the shim could not get in. `sign` is the file that the shim
    leaves once it is inside a Hermes, which need not have had anything to say."""
    known = os.path.basename(command[0]).startswith(("hermes", "python", "pypy"))
    if not known or os.environ.get(endpoint.SWITCH_VARIABLE) == "0":
        return False
    from .adapters import hermes_launcher

    if not hermes_launcher.is_hermes(command):
        return False
    return not os.path.exists(sign) or hermes_launcher.container() is not None


def spawn(
    command: list[str],
    env: dict[str, str],
    signals: Signals,
    streams: list[tuple[int, ...]] | None = None,
) -> int:
    """The pid of the started agent. `streams`: steps that give it back what we have let go of."""
    given: dict[str, Any] = {"setsigdef": signals.child_defaults, "setsigmask": signals.child_mask}
    if streams is not None:
        given["file_actions"] = streams
    try:
        try:
            return os.posix_spawnp(command[0], command, env, **given)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            return os.posix_spawn("/bin/sh", _as_script(command), env, **given)
    except (OSError, ValueError) as error:
        raise _explained(command[0], error) from error


def replace_ourselves(command: list[str]) -> None:
    """Run the agent without supervision, in our place."""
    for number in IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    try:
        try:
            os.execvp(command[0], command)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            os.execv("/bin/sh", _as_script(command))
    except (OSError, ValueError) as error:
        raise _explained(command[0], error) from error


def keep_closed_streams_closed() -> None:
    """Fill standard descriptors that we were started without, so that no file of ours gets
    their numbers; the agent finds them closed, as without us."""
    while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= 2:
        pass
    os.close(fd)


def let_go_of_the_streams(*, others: bool = True) -> None:
    """What we were started with is the agent's: a pipe must end when *it* lets go.

    Standard error is kept for our last words. What we opened ourselves is not inheritable.
    `others`: not only standard input and output, but all that the agent has inherited.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    if not others:
        return
    try:
        inherited = [int(name) for name in os.listdir("/dev/fd") if int(name) > 2]
    except OSError:
        return
    for fd in inherited:
        try:
            if os.get_inheritable(fd):
                os.close(fd)
        except OSError:
            continue  # the one that the folder was read with


def let_go_of_standard_error() -> None:
    """For a process that may outlive us: whoever reads our errors must see their end."""
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(null, 2)
    os.close(null)


def _explained(command: str, error: OSError | ValueError) -> CannotLaunch:
    if isinstance(error, ValueError) or error.errno in (errno.ENOENT, errno.ENOTDIR):
        return CannotLaunch(command, NOT_FOUND, "not found")  # ValueError: an empty name
    return CannotLaunch(command, NOT_EXECUTABLE, error.strerror or str(error))


def _as_script(command: list[str]) -> list[str]:
    """A script without a first line that names its interpreter, as shells run it."""
    return ["/bin/sh", _on_path(command[0]), *command[1:]]


def _on_path(name: str) -> str:
    if "/" in name:
        return name
    for folder in os.get_exec_path():
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK):
            return path
    return name


def end_the_line() -> None:
    """Who was killed while it wrote to the terminal has left the cursor within a line."""
    try:
        os.write(2, b"\n")
    except OSError:
        pass


# Who is told beside standard error, with --notify. Set once, before anything is said.
_confidants: list[Callable[..., None]] = []


def tell_also(confidant: Callable[..., None]) -> None:
    _confidants.append(confidant)


def columns() -> int | None:
    """Of the terminal that `say` writes to, if it is one."""
    try:
        return os.get_terminal_size(2).columns
    except OSError:
        return None


def say(text: str, *, loud: bool = False) -> None:
    """A line on standard error. A terminal that is gone is not an error. `loud`: the user should
    know of it now; only where no agent runs."""
    for confidant in _confidants:
        confidant(text, loud=loud)
    try:
        os.write(2, f"hermes-supervise: {text}\n".encode("utf-8", "replace"))
    except OSError:
        pass
