"""The other processes: supervisors, recoverers, whoever locks the database; and the world.

Never changes what the product does: a warm fork stands in for `exec` of an interpreter, for the
agent (`os.posix_spawnp`) and for the heir (`os.execv`), and descriptors, environment and signals
are put into the state that `exec` would have left them in. The command line and environment that
/proc shows are those of the last `exec`, so an agent is known by its name there instead, and that
name tells its run.
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

from hermes_supervise.ipc.endpoint import SOCKET_VARIABLE
from hermes_supervise.supervisor import __main__ as door
from hermes_supervise.supervisor import orphans, tree
from hermes_supervise.supervisor.recovery import schema

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
        """What is in a folder of the queue of hooks."""
        folder = os.path.join(self.state, "hermes-supervise", "hooks", state)
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []

    def left_behind(self) -> list[str]:
        return sorted(os.listdir(self.runs)) if os.path.isdir(self.runs) else []


def warm_up() -> None:
    """Load whatever any of the processes to be forked may load."""
    names = "argparse ctypes difflib json resource select shlex subprocess tempfile tomllib uuid"
    for name in [*names.split(), "apsw", "psutil", "encodings.idna"]:
        importlib.import_module(name)
    for room in ("ipc", "agent_shim", "supervisor"):
        package = importlib.import_module(f"hermes_supervise.{room}")
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            # What lies deeper in the shim, and the demo, are scripts.
            deep = room == "agent_shim" and module.name.count(".") > 2
            if not deep and ".demo" not in module.name and not module.name.endswith("__main__"):
                importlib.import_module(module.name)


def make_template(path: str) -> None:
    """A database as an agent makes it: copied where one is to be there already."""
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
    """Environment, descriptors and signals as a program finds them that was just started."""
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


def supervisor(world: World, told: Scenario, chapter: int, lane: int, ledger: Ledger) -> int:
    """A supervisor with its agent; its pid."""
    run = told.chapters[chapter].lanes[lane]

    def work() -> None:
        _stand_in(world, lambda: Player(run.processes, ledger, lane, 0).play())
        sys.argv = ["hermes-supervise", *run.options, "--", "agent"]
        door.main()

    return fork(world, work, group=True)


def real_supervisor(
    world: World, told: Scenario, share: float, chapter: int, lane: int, path: str
) -> int:
    """The same by way of the command line, with interpreters of their own."""
    run = told.chapters[chapter].lanes[lane]
    agent = [sys.executable, "-m", "torture.agent", path, told.seed, str(share)]
    command = [sys.executable, "-P", "-m", MODULE, *run.options, "--", *agent]

    def work() -> NoReturn:
        path = [ROOT, *filter(None, [world.env.get("PYTHONPATH")])]
        env = {**world.env, "PYTHONPATH": os.pathsep.join(path)}
        os.execve(sys.executable, [*command, str(chapter), str(lane)], env)

    return fork(world, work, group=True)


def recoverer(world: World) -> int:
    def work() -> None:
        sys.argv = ["hermes-supervise", "recover"]
        door.main()

    return fork(world, work, group=True)


def next_start(world: World) -> int:
    """A start whose agent has nothing to say: it finishes what is left behind, first."""

    def work() -> None:
        _stand_in(world, lambda: os._exit(0))
        sys.argv = ["hermes-supervise", "--no-adopt", "--", "agent"]
        door.main()

    return fork(world, work, group=True)


def locker(world: World, seconds: float) -> int:
    """Another writer, who holds state.db for a while."""

    def work() -> None:
        db = sqlite3.connect(world.db, timeout=30, isolation_level=None)
        db.execute("BEGIN IMMEDIATE")
        time.sleep(seconds)
        db.execute("ROLLBACK")

    return fork(world, work)


def _stand_in(world: World, agent: Callable[[], object]) -> None:
    """Have the two ways in which the product starts an interpreter lead to a warm fork."""

    def spawn(name: str, words: list[str], env: dict[str, str], **given: Any) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                _as_after_exec(env, given["setsigmask"])
                with open("/proc/self/comm", "w") as file:
                    file.write(_name_in(f"{SOCKET_VARIABLE}={env[SOCKET_VARIABLE]}".encode()))
                agent()
            finally:
                os._exit(96)
        return pid

    def execute(path: str, words: list[str]) -> NoReturn:
        # Said by a witness: python -P -m hermes_supervise.supervisor adopt FOLDER.
        code = 97
        try:
            assert words[1:4] == ["-P", "-m", MODULE], words
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())  # outlives an exec
            _as_after_exec(dict(os.environ), mask)
            os.dup2(_errors_of(world), 2)  # where a witness has nothing: what we want to see
            sys.argv = [MODULE, *words[4:]]
            code = _status_of(door.main)
        finally:
            os._exit(code)

    def command_line(pid: int) -> list[str]:
        name = _name_of(pid)
        return [name] if name.startswith(AGENT) else orphans.command_line(pid)

    def carries_us(one: tree.Tree, pid: int) -> bool:
        return _name_of(pid) == _name_in(one._entry)

    os.posix_spawnp = spawn  # type: ignore[assignment]
    os.execv = execute  # type: ignore[assignment]
    tree.command_line = command_line
    tree.Tree._carries_us = carries_us  # type: ignore[method-assign]


def _name_in(entry: bytes) -> str:
    """What an agent is called that has this variable; the kernel keeps fifteen letters."""
    return f"{AGENT}{zlib.crc32(entry):08x}"


def _name_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def cleared(chapter: Chapter, ledger: Ledger, gates: dict[tuple[int, int], int]) -> None:
    """Fresh notes for a chapter's processes."""
    from .ledger import OPEN

    for lane, run in enumerate(chapter.lanes):
        for number in range(len(run.processes)):
            ledger.slot(lane, number).clear(gates.get((lane, number), OPEN))
