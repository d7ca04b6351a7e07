"""What the tests stand on: a private world, real supervised agents, and waits with deadlines.

Nothing here sleeps to be right: a test waits for a line, a state or a death, and fails when
the deadline passes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hermes_supervise.supervisor.recovery.gather import gather
from hermes_supervise.supervisor.storage.run_folder import Run

# Generous: it is reached only when something is wrong, however busy the machine is.
DEADLINE = 120.0

# `pause` alone would sleep through a signal that came just before it: Python notes it, and runs
# the handler when it is next awake. A byte in a pipe is still there.
FOREVER = '''\
def forever():
    """Sleep, and run the handlers of signals."""
    bell, ring = os.pipe()
    os.set_blocking(ring, False)
    try:
        signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    except ValueError:
        pass  # not in the main thread, which runs all handlers
    while True:
        os.read(bell, 512)

'''

PRELUDE = f'''\
import os, signal, sys, threading, time
from hermes_supervise.agent_shim import session

def ready(what="ready"):
    """Tell the test where we are, by a line that it waits for; also in a signal handler that
    strikes while another such line is being written."""
    os.write(1, what.encode() + b"\\n")

{FOREVER}'''


def until(condition: Callable[[], Any], what: str = "", deadline: float = DEADLINE) -> Any:
    """Ask until the answer is true; the answer. Only for what nothing can be waited on for."""
    end = time.monotonic() + deadline
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline} s: {what or condition}")
        time.sleep(0.005)


def _state(pid: int) -> str:
    """The letter that the kernel has for what a process is doing; X: it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return "X"
    return line[line.rindex(b")") + 2 :].split()[0].decode()


def alive(pid: int) -> bool:
    """Running, and not a zombie."""
    return _state(pid) not in ("Z", "X")


def has_open(pid: int, path: Path) -> bool:
    try:
        return any(os.readlink(fd) == str(path) for fd in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def wait_dead(pid: int, deadline: float = DEADLINE) -> None:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        assert poller.poll(deadline * 1000), f"process {pid} did not end within {deadline} s"
    finally:
        os.close(fd)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal a process that is proved to be alive at this moment."""
    assert alive(pid), f"process {pid} was dead before the test could kill it"
    os.kill(pid, number)


def child_of(pid: int, nth: int = 0) -> int:
    """The pid of a process' child, once it has one."""
    return int(until(lambda: children(pid)[nth : nth + 1], f"a child of {pid}")[0])


def children(pid: int) -> list[int]:
    """Children of any thread, oldest first. Not by pid: pids wrap around."""
    found = []
    try:
        tasks = list(Path(f"/proc/{pid}/task").glob("*/children"))
    except (FileNotFoundError, ProcessLookupError):
        return []  # gone while we looked
    for task in tasks:
        try:
            found += [int(word) for word in task.read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return sorted(found, key=_started)


def _started(pid: int) -> float:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return float("inf")
    return int(stat.rpartition(")")[2].split()[19])


@contextmanager
def little_memory(megabytes: int) -> Iterator[Path]:
    """A control group with no more memory than that; a skip where none can be made."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            parent, limit = Path("/sys/fs/cgroup/memory" + path), "memory.limit_in_bytes"
            break
    else:
        parent, limit = Path("/sys/fs/cgroup"), "memory.max"
    group = parent / f"hermes-supervise-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        try:
            (group / limit).write_text(str(megabytes << 20))
            for swap in ("memory.swappiness", "memory.swap.max"):
                if (group / swap).exists():
                    (group / swap).write_text("0")
        except OSError as error:
            pytest.skip(f"no control group with a memory limit can be made here: {error}")
        yield group
    finally:
        until(lambda: not (group / "cgroup.procs").read_text(), "the group is empty")
        group.rmdir()


def eat_all_memory(agent: Supervised, group: Path) -> None:
    """Tell an agent that waits for a line to take all of its group's memory, until it is dead of
    it. Its supervisor stands still meanwhile: while anybody reads a dead process through /proc, its
    memory is not given back, and the next page would cost the supervisor its life."""
    pid = agent.agent
    used = next(
        path
        for name in ("memory.usage_in_bytes", "memory.current")
        if (path := group / name).exists()
    )
    kill(agent.pid, signal.SIGSTOP)
    until(lambda: _state(agent.pid) == "T", "the supervisor is stopped")
    agent.send_line("eat")
    wait_dead(pid)
    until(lambda: int(used.read_text()) < 50 << 20, "the memory is given back")
    os.kill(agent.pid, signal.SIGCONT)


class Supervised:
    """A running `hermes-supervise`, with a pipe on the agent's standard output."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.pid = process.pid
        self._seen = b""

    def wait_for(self, line: str, deadline: float = DEADLINE) -> str:
        """Read the agent's output up to a line that begins with `line`; that line."""
        end = time.monotonic() + deadline
        while True:
            head, newline, rest = self._seen.partition(b"\n")
            if newline:
                self._seen = rest
                if head.decode().startswith(line):
                    return head.decode()
                continue
            assert self.process.stdout is not None
            fd = self.process.stdout.fileno()
            left = end - time.monotonic()
            ready, _, _ = select.select([fd], [], [], max(0, left))
            assert ready, f"the agent did not say {line!r} within {deadline} s; {self._seen!r}"
            data = os.read(fd, 65536)
            assert data, f"the agent ended before it said {line!r}"
            self._seen += data

    def send_line(self, line: str = "") -> None:
        """Write a line to the agent's standard input, which is a pipe."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    @property
    def agent(self) -> int:
        """The agent's pid: the child that is not the standby, which is a fork of ours."""
        ours = Path(f"/proc/{self.pid}/cmdline").read_bytes()

        def agents() -> list[int]:
            return [c for c in children(self.pid) if _command_line(c) not in (ours, b"")]

        return int(until(agents, "the agent's process")[0])

    def kill_agent(self, number: int = signal.SIGKILL) -> int:
        pid = self.agent
        kill(pid, number)
        return pid

    def abandon(self) -> None:
        """Supervisor, standby, agent and jobs die at once: what they leave is for a later
        recoverer. Stopped first, so that no job is forked behind our back and lives on."""
        kill(self.pid, signal.SIGSTOP)
        until(lambda: _state(self.pid) == "T", "the supervisor is stopped")
        victims = children(self.pid)
        assert self.agent in victims
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        os.kill(self.pid, signal.SIGKILL)
        for pid in victims:
            wait_dead(pid)
        self.process.wait()

    def finish(self, deadline: float = DEADLINE) -> int:
        """Wait for the supervisor's end; its status as `Popen` has it (negative: signal)."""
        self.output, self.errors = self.process.communicate(timeout=deadline)
        return self.process.returncode

    @property
    def notices(self) -> bytes:
        """What was printed beside the agent's output, except that it still writes or waits: that is
        printed wherever the machine is slow."""
        lines = self.errors.splitlines(keepends=True)
        return b"".join(line for line in lines if not line.startswith(b"hermes-supervise: still "))


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


class World:
    """Folders and an environment of its own for one test."""

    def __init__(self, folder: Path, runtime: Path, platform: str = "linux") -> None:
        self.folder = folder
        self.platform = platform
        self.home = folder / "hermes"
        self.state = folder / "state"
        self.db = self.home / "state.db"
        self.hooked = folder / "hooked.jsonl"
        self._started: list[subprocess.Popen[bytes]] = []
        # Databases that the test itself makes no databases.
        self.broken: set[Path] = set()
        self.env = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("HERMES_", "PYTHON", "XDG_"))
        }
        self.env |= {
            "XDG_STATE_HOME": str(self.state),
            "XDG_RUNTIME_DIR": str(runtime),
            "HERMES_HOME": str(self.home),
            "HOME": str(folder),
            "PYTHONSAFEPATH": "1",
            # A busy machine must not make a test see the notice of hooks that still run.
            "HERMES_SUPERVISE_HOOK_WAIT": "30",
            # So that what a test finds in the file was put there by recovery alone; what is
            # stored before a death, and when, is for test_checkpoints.
            "HERMES_SUPERVISE_CHECKPOINT": "0",
        }
        if platform == "portable":
            self.env["HERMES_SUPERVISE_PLATFORM"] = platform

    # -- running -------------------------------------------------------------------------------

    def script(self, source: str, name: str = "agent.py") -> str:
        path = self.folder / name
        path.write_text(PRELUDE + source)
        return str(path)

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "hermes_supervise.supervisor"]

    def supervise(self, source: str, *options: str, **popen: Any) -> Supervised:
        """Run an agent, given as source, under supervision."""
        return self.run([sys.executable, self.script(source)], *options, **popen)

    def run(self, agent: list[str], *options: str, **popen: Any) -> Supervised:
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        streams = {"stdin": nothing, "stdout": pipe, "stderr": pipe}
        process = subprocess.Popen(
            [*self.command, *options, "--", *agent],
            **{"env": self.env, "cwd": self.folder, **streams, **popen},
        )
        self._started.append(process)
        return Supervised(process)

    def shell(self, line: str) -> Supervised:
        """Run a shell command line that ends by becoming a supervisor."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            ["/bin/sh", "-c", line],
            env=self.env, cwd=self.folder, stdin=pipe, stdout=pipe, stderr=pipe,
        )  # fmt: skip
        self._started.append(process)
        return Supervised(process)

    def call(self, *arguments: str, deadline: float = DEADLINE) -> subprocess.CompletedProcess[str]:
        """Run one of our commands to its end."""
        return subprocess.run(
            [*self.command, *arguments],
            env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=deadline,
        )  # fmt: skip

    @property
    def hook(self) -> tuple[str, str]:
        """Options for a hook that appends each event it gets to `hooked`."""
        code = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + chr(10))"
        return "--on-session-end", f'{sys.executable} -c "{code}" {self.hooked}'

    def events(self) -> list[dict[str, Any]]:
        if not self.hooked.exists():
            return []
        return [json.loads(line) for line in self.hooked.read_text().splitlines() if line]

    # -- what is on disk -----------------------------------------------------------------------

    @contextmanager
    def database(self) -> Iterator[sqlite3.Connection]:
        """The file, read-only. Proves on the way that it is sound."""
        db = sqlite3.connect(f"file:{self.db}?mode=ro", uri=True)
        db.row_factory = sqlite3.Row
        try:
            assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
            assert db.execute("PRAGMA foreign_key_check").fetchall() == []
            yield db
        finally:
            db.close()

    def prove_sound(self) -> None:
        """After every test: the databases are sound, but those that it broke itself."""
        for path in self.folder.rglob("state.db"):
            if path.is_file() and path not in self.broken:
                with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
                    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)], path

    def messages(self, session: str) -> list[dict[str, Any]]:
        with self.database() as db:
            rows = db.execute("SELECT * FROM messages WHERE session_id = ? ORDER BY id", (session,))
            return [dict(row) for row in rows]

    def session(self, session: str) -> dict[str, Any] | None:
        with self.database() as db:
            row = db.execute("SELECT * FROM sessions WHERE id = ?", (session,)).fetchone()
            return dict(row) if row else None

    def runs(self) -> list[Path]:
        folder = self.state / "hermes-supervise" / "runs"
        return sorted(folder.iterdir()) if folder.exists() else []

    def said(self) -> bytes:
        """Every frame that was handed over and is not settled, wherever it lies now."""
        found = b""
        for folder in self.runs():
            try:
                for stream in Run(str(folder), -1).streams():
                    found += b"".join(frame for _, frame in gather(str(folder), stream).frames)
            except (FileNotFoundError, NotADirectoryError):
                continue  # it is just being settled
        return found

    def reports(self) -> list[dict[str, Any]]:
        answer = self.call("show", "--json")
        assert answer.returncode == 0, answer.stderr
        found = json.loads(answer.stdout)
        assert isinstance(found, list)
        return found

    def close(self) -> None:
        """End whatever the test has left running: agents, supervisors and their successors."""
        for process in self._started:
            left = _below(process.pid) if process.poll() is None else []
            process.kill()
            for pid in left:
                _end(pid)
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        for successor in self.successors():
            for pid in [successor, *_below(successor)]:
                _end(pid)
        for pid in self.inhabitants():
            _end(pid)

    def inhabitants(self) -> list[int]:
        """Every process that was started with this world's environment: runners of hooks, too."""
        mine = f"XDG_STATE_HOME={self.state}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mine in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found

    def successors(self) -> list[int]:
        """Supervisors that were started to take a run of this world over, without what they have
        forked."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            words = _command_line(int(path.parent.name)).split(b"\0")
            if b"adopt" in words and os.fsencode(self.state) in words[-2]:
                found.append(int(path.parent.name))
        forked = {child for pid in found for child in children(pid)}
        return [pid for pid in found if pid not in forked]


def standby_of(supervisor: int) -> int:
    """Once it is there and listens: then it holds two pipes and nothing else."""

    def is_it(pid: int) -> bool:
        try:
            return len(os.listdir(f"/proc/{pid}/fd")) == 2
        except FileNotFoundError:  # some other child, and gone by now
            return False

    return int(until(lambda: list(filter(is_it, children(supervisor))), "the standby")[0])


def let_through(gate: Path) -> None:
    """Have whoever reads from a named pipe go on; wait until somebody does."""

    def reached() -> bool:
        try:
            end = os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads
            return False
        os.write(end, b"\n")
        os.close(end)
        return True

    until(reached, f"somebody at {gate}")


class SlowDisk:
    """Has supervisors wait for the part of them that is loaded while the agent starts."""

    _SOURCE = """
import os, sys
class Disk:
    def find_spec(self, name, path=None, target=None):
        if name == "hermes_supervise.supervisor.run.supervision":
            os.read(os.open("disk", os.O_RDONLY), 1)
sys.meta_path.insert(0, Disk())
"""

    def __init__(self, world: World) -> None:
        self._gate = world.folder / "disk"
        os.mkfifo(self._gate)
        folder = world.folder / "slow"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(self._SOURCE)
        self.env = {**world.env, "PYTHONPATH": str(folder)}

    def read_on(self) -> None:
        let_through(self._gate)


def _below(pid: int) -> list[int]:
    found = []
    for child in children(pid):
        found += [child, *_below(child)]
    return found


def _end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def short(rows: list[dict[str, Any]]) -> list[tuple[str, str | None]]:
    """Role and content of each row: what most tests compare."""
    return [(row["role"], row["content"]) for row in rows]
