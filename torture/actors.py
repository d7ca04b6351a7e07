"""The processes beside the agent: supervisors, recoverers, a writer that locks the database; and
the folders of a scenario.

Never changes what the product does. A fork of a process that has everything imported replaces the
`exec` of an interpreter, for the agent (`os.posix_spawnp`) and for the successor (`os.execv`).
Descriptors, environment and signals are put into the state that `exec` would leave. /proc shows the
command line and environment of the last `exec`, so an agent is recognised by its process name
instead, which is derived from its run.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import shutil
import signal
import sqlite3
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any, NoReturn

from hermes_supervise.ipc.endpoint import RUN_VARIABLE, SOCKET_VARIABLE
from hermes_supervise.supervisor import __main__ as entry
from hermes_supervise.supervisor.process import platform, tree
from hermes_supervise.supervisor.statedb import schema

from .agent import Player
from .ledger import Ledger
from .plan import Chapter, Scenario

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODULE = "hermes_supervise.supervisor"
AGENT = "agent "


class World:
    """The folders of one scenario."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.state = os.path.join(folder, "s")
        self.runtime = os.path.join(folder, "r")
        self.home = os.path.join(folder, "h")
        self.db = os.path.join(self.home, "state.db")
        self.hooked = os.path.join(folder, "hooked")
        self.errors = os.path.join(folder, "errors")
        for path in (folder, self.state, self.runtime, self.home):
            os.mkdir(path, 0o700)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HERMES_", "XDG_"))}
        self.env = kept | {
            "XDG_STATE_HOME": self.state,
            "XDG_RUNTIME_DIR": self.runtime,
            "HERMES_HOME": self.home,
            "HOME": folder,
            "HERMES_SUPERVISE_ON_SESSION_END": f"tee -a {self.hooked}",
            "HERMES_SUPERVISE_QUIET": "1",
            "HERMES_SUPERVISE_CHECKPOINT": "0",
        }

    @property
    def runs(self) -> str:
        return os.path.join(self.state, "hermes-supervise", "runs")

    @property
    def reports(self) -> str:
        return os.path.join(self.state, "hermes-supervise", "reports")

    def hooks(self, state: str) -> list[str]:
        """The names in one folder of the hook queue."""
        folder = os.path.join(self.state, "hermes-supervise", "hooks", state)
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []

    def left_behind(self) -> list[str]:
        return sorted(os.listdir(self.runs)) if os.path.isdir(self.runs) else []


def warm_up() -> None:
    """Import everything that a forked process may need."""
    names = "argparse ctypes difflib json resource select shlex subprocess tempfile tomllib uuid"
    for name in [*names.split(), "apsw", "psutil", "encodings.idna"]:
        importlib.import_module(name)
    for room in ("ipc", "agent_shim", "supervisor"):
        package = importlib.import_module(f"hermes_supervise.{room}")
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            # The deeper modules of the shim, and those of the demo, are scripts.
            deep = room == "agent_shim" and module.name.count(".") > 2
            if not deep and ".demo" not in module.name and not module.name.endswith("__main__"):
                importlib.import_module(module.name)


def make_template(path: str) -> None:
    """A database as an agent makes it, to be copied for scenarios that start with one."""
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    for statement in schema.statements():
        db.execute(statement)
    db.commit()
    db.close()


def use_template(template: str, world: World) -> None:
    shutil.copyfile(template, world.db)


# -- forks -----------------------------------------------------------------------------------


def fork(world: World, work: Callable[[], object], group: bool = False) -> int:
    """A warm process with the world's environment, in a state as after `exec`."""
    pid = os.fork()
    if pid:
        return pid
    code = 97
    try:
        if group:
            os.setpgid(0, 0)
        _as_after_exec(world.env)
        null = os.open(os.devnull, os.O_RDWR)
        errors = _errors_of(world)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.dup2(errors, 2)
        os.closerange(3, max(null, errors) + 1)
        os.chdir(world.folder)
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        code = _status_of(work)
    finally:
        os._exit(code)


def _errors_of(world: World) -> int:
    return os.open(world.errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _status_of(work: Callable[[], object]) -> int:
    try:
        work()
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode())
        return 97


def _as_after_exec(env: dict[str, str], mask: object = ()) -> None:
    """Set environment, descriptors and signals to what a newly started program finds."""
    signal.set_wakeup_fd(-1)
    for number in (
        signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2,
        signal.SIGCHLD, signal.SIGCONT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU,
    ):  # fmt: skip
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # type: ignore[arg-type]
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2 and not os.get_inheritable(int(name)):
                os.close(int(name))
        except OSError:
            continue  # the one that the folder was read with
    os.environ.clear()
    os.environ.update(env)


def supervisor(world: World, scenario: Scenario, chapter: int, lane: int, ledger: Ledger) -> int:
    """A supervisor with its agent; its pid."""
    run = scenario.chapters[chapter].lanes[lane]

    def work() -> None:
        _stand_in(world, lambda: Player(run.processes, ledger, lane, 0).play())
        sys.argv = ["hermes-supervise", *run.options, "--", "agent"]
        entry.main()

    return fork(world, work, group=True)


def real_supervisor(
    world: World, scenario: Scenario, share: float, chapter: int, lane: int, path: str
) -> int:
    """The same through the command line, with separate interpreters."""
    run = scenario.chapters[chapter].lanes[lane]
    agent = [sys.executable, "-m", "torture.agent", path, scenario.seed, str(share)]
    command = [sys.executable, "-P", "-m", MODULE, *run.options, "--", *agent]

    def work() -> NoReturn:
        path = [ROOT, *filter(None, [world.env.get("PYTHONPATH")])]
        env = {**world.env, "PYTHONPATH": os.pathsep.join(path)}
        os.execve(sys.executable, [*command, str(chapter), str(lane)], env)

    return fork(world, work, group=True)


def recoverer(world: World) -> int:
    def work() -> None:
        _stand_in_for_environments()
        sys.argv = ["hermes-supervise", "recover"]
        entry.main()

    return fork(world, work, group=True)


def next_start(world: World) -> int:
    """Start a run whose agent does nothing: a start first finishes what was left behind."""

    def work() -> None:
        _stand_in(world, lambda: os._exit(0))
        sys.argv = ["hermes-supervise", "--no-adopt", "--", "agent"]
        entry.main()

    return fork(world, work, group=True)


def locker(world: World, seconds: float) -> int:
    """Another writer, which holds the lock of state.db for a while."""

    def work() -> None:
        db = sqlite3.connect(world.db, timeout=30, isolation_level=None)
        db.execute("BEGIN IMMEDIATE")
        time.sleep(seconds)
        db.execute("ROLLBACK")

    return fork(world, work)


def _stand_in(world: World, agent: Callable[[], object]) -> None:
    """Replace the two calls with which the product starts an interpreter by forks."""

    def spawn(name: str, words: list[str], env: dict[str, str], **given: Any) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                _as_after_exec(env, given["setsigmask"])
                with open("/proc/self/comm", "w") as file:
                    file.write(_name_in(env[RUN_VARIABLE]))
                agent()
            finally:
                os._exit(96)
        return pid

    def execute(path: str, words: list[str]) -> NoReturn:
        # Called by a standby: python -P -m hermes_supervise.supervisor adopt FOLDER.
        code = 97
        try:
            assert words[1:4] == ["-P", "-m", MODULE], words
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())  # outlives an exec
            _as_after_exec(dict(os.environ), mask)
            os.dup2(_errors_of(world), 2)  # a standby has no stderr, and we want to see errors
            sys.argv = [MODULE, *words[4:]]
            code = _status_of(entry.main)
        finally:
            os._exit(code)

    def command_line(pid: int) -> list[str]:
        name = _name_of(pid)
        return [name] if name.startswith(AGENT) else platform.command_line(pid)

    _replace(os, "posix_spawnp", spawn)
    _replace(os, "execv", execute)
    _replace(tree, "command_line", command_line)
    _stand_in_for_environments()


def _stand_in_for_environments() -> None:
    """For everybody who asks which processes were started in a run."""

    def has_variable(pid: int, entry: bytes) -> bool:
        name, _, value = os.fsdecode(entry).partition("=")
        if name == SOCKET_VARIABLE:
            value = os.path.basename(value).removesuffix(".sock")
        return _name_of(pid) == _name_in(value)

    _replace(tree, "has_variable", has_variable)


def _replace(where: Any, name: str, instead: object) -> None:
    """A name that the product no longer has would be replaced in vain, and silently."""
    assert hasattr(where, name), f"the product has no {name}"
    setattr(where, name, instead)


def _name_in(run: str) -> str:
    """The process name of what was started in a run; the kernel keeps fifteen characters."""
    return f"{AGENT}{zlib.crc32(run.encode()):08x}"


def _name_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def cleared(chapter: Chapter, ledger: Ledger, gates: dict[tuple[int, int], int]) -> None:
    """Clear the slots of a chapter's processes, and set their gates."""
    from .ledger import OPEN

    for lane, run in enumerate(chapter.lanes):
        for number in range(len(run.processes)):
            ledger.slot(lane, number).clear(gates.get((lane, number), OPEN))
