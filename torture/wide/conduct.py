"""Lives one scenario of the wider campaign: starts its runs, acts as planned, and recovers.

Never kills a process that is not alive, and counts whom it kills. The product is whatever command
line is found first on the given path.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

from ..conduct import Stuck, alive, children, descriptors
from . import agent
from .baton import PROCESSES, Baton
from .plan import HARNESS, Life, Scenario, Step

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
_SMALL_DISK = "4m"
_SPARE = 64 * 1024
_CLONE_NEWNS = 0x20000

AHEAD = "import time\nreal = time.time\ntime.time = lambda: real() + {seconds}\n"


class NotAllowed(Exception):
    """Only root may do this."""


class World:
    """The folders of one scenario."""

    def __init__(self, folder: Path, product: str) -> None:
        self.folder = folder
        self.state, self.runtime, self.home = (folder / name for name in ("s", "r", "h"))
        for path in (folder, self.state, self.runtime, self.home):
            path.mkdir(0o700)
        self.db = self.home / "state.db"
        self.hooked = folder / "hooked"
        self._product = product
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HERMES_", "XDG_"))}
        self.env = kept | {
            "XDG_STATE_HOME": str(self.state),
            "XDG_RUNTIME_DIR": str(self.runtime),
            "HERMES_HOME": str(self.home),
            "HOME": str(folder),
            "HERMES_SUPERVISE_ON_SESSION_END": f"tee -a {self.hooked}",
            "HERMES_SUPERVISE_QUIET": "1",
            "PYTHONPATH": self._path(),
        }

    def _path(self, *first: str) -> str:
        return os.pathsep.join(filter(None, [*first, self._product, str(ROOT)]))

    def with_clock(self, seconds: float) -> dict[str, str]:
        """The environment of processes whose wall clock is ahead."""
        if not seconds:
            return self.env
        folder = self.folder / f"ahead{seconds:.0f}"
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(AHEAD.format(seconds=seconds))
        return {**self.env, "PYTHONPATH": self._path(str(folder))}

    @property
    def kept(self) -> Path:
        return self.state / "hermes-supervise"

    def inhabitants(self) -> list[int]:
        """Every process that was started with this world's environment."""
        mine = os.fsencode(f"XDG_STATE_HOME={self.state}")
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                try:
                    entries = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                if mine in entries and alive(int(name)):
                    found.append(int(name))
        return found


class Lived:
    """A scenario that is running, and what has become of its steps."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        self.world = world
        self.scenario = scenario
        self.kills: Counter[str] = Counter()
        self.certain: list[set[int]] = []
        """Of each life: the steps that must have had their effect."""
        self.possible: list[set[int]] = []
        """The steps that may have had it: their process was killed in them."""
        self._head = 0
        self._limited = False
        self._freed: list[int] = []

    @property
    def undisturbed(self) -> bool:
        """Nothing was done to the supervisors: they must have finished everything themselves."""
        ours = {"kill supervisor", "kill everyone", "limit", "fill"}
        done = {s.do for life in self.scenario.lives for s in life.steps if s.actor == HARNESS}
        return not ours & done and not self.scenario.outlives

    def live(self) -> None:
        if self.scenario.small_disk:
            _mount(self.world.state)
        for number, life in enumerate(self.scenario.lives):
            if number and not life.at_once:
                self._wait_for_the_end()
            self._live(number, life)
        self._wait_for_the_end()

    def recover(self) -> None:
        """As a user would, when everybody is dead."""
        self._free()
        for _ in range(3):
            command = [sys.executable, "-P", "-m", "hermes_supervise.supervisor", "recover"]
            done = subprocess.run(
                command, cwd=self.world.folder, env=self.world.env, capture_output=True,
                timeout=PATIENCE, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            self._wait_for_the_end()
            if b"nothing to recover" in done.stdout:
                return

    # -- one life ------------------------------------------------------------------------------

    def _live(self, number: int, life: Life) -> None:
        path = str(self.world.folder / f"baton{number}")
        baton = Baton(path)
        words = [path, self.scenario.kind, self.scenario.seed, str(number)]
        program = [sys.executable, os.path.abspath(agent.__file__), *words, "0"]
        watch = ["--watch", str(self.world.folder / agent.TRANSCRIPT)] if life.watched else []
        command = [sys.executable, "-P", "-m", "hermes_supervise.supervisor"]
        with open(self.world.folder / "errors", "ab") as errors:
            started = subprocess.Popen(
                [*command, *life.options, *watch, "--", *program], cwd=self.world.folder,
                env=self.world.with_clock(life.clock), process_group=0,
                stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
            )  # fmt: skip
        started.returncode = 0  # we reap everybody ourselves
        self._head = self._group = started.pid
        self._conduct(life, baton)
        leaving = {
            step.actor
            for index, step in enumerate(life.steps)
            if step.do in ("exit", "leave") and index < baton.returned(step.actor)
        }
        for process in set(range(PROCESSES)) - leaving:
            self._kill(self._pid(baton, process), "agent")
        self._until(lambda: not any(alive(baton.pid(n)) for n in range(PROCESSES)), "agents die")
        certain, possible = set(), set()
        for index, step in enumerate(life.steps):
            if step.actor != HARNESS and baton.begun(step.actor):
                if index < baton.returned(step.actor):
                    certain.add(index)
                elif index < baton.begun(step.actor):
                    possible.add(index)
        self.certain.append(certain - self._skipped)
        self.possible.append(possible)

    def _conduct(self, life: Life, baton: Baton) -> None:
        self._skipped: set[int] = set()
        became = {s.number: s.actor for s in life.steps if s.do == "become"}
        while (turn := baton.turn) < len(life.steps):
            step = life.steps[turn]
            self._begun = {0} | {
                s.number
                for i, s in enumerate(life.steps[:turn])
                if s.do in ("begin", "become") and i not in self._skipped
            }
            if step.actor == HARNESS:
                self._do(step, life, baton, turn)
                continue
            pid = baton.pid(step.actor)
            if step.actor in became and not pid:
                pid = 0 if alive(baton.pid(became[step.actor])) else -1
            gone = step.actor not in self._begun or pid < 0 or (pid and not alive(pid))
            if gone and baton.turn == turn:
                self._skipped.add(turn)
                baton.turn = turn + 1
            elif not self._until(lambda t=turn: baton.turn != t, "", 0.05):  # type: ignore[misc]
                self._since(turn)

    def _since(self, turn: int) -> None:
        now = time.monotonic()
        if getattr(self, "_stuck_at", (None, now))[0] != turn:
            self._stuck_at = (turn, now)
        elif now - self._stuck_at[1] > PATIENCE:
            raise Stuck(f"step {turn} is not performed")

    def _do(self, step: Step, life: Life, baton: Baton, turn: int) -> None:
        match step.do:
            case "kill":
                self._kill_agent(self._pid(baton, step.number))
            case "strike":
                baton.turn = turn + 1
                time.sleep(step.number / 1e6)
                self._kill_agent(baton.pid(int(step.text)))
                return
            case "kill supervisor":
                self._kill_supervisor()
            case "kill everyone":
                self._kill(self._standby(), "standby")
                self._kill(self._head, "supervisor")
                for process in range(PROCESSES):
                    self._kill_agent(self._pid(baton, process))
            case "stop" | "continue":
                number = signal.SIGSTOP if step.do == "stop" else signal.SIGCONT
                try:
                    os.killpg(self._group, number)
                except ProcessLookupError:
                    pass
            case "fill":
                _fill(self.world.state / "filler")
            case "free":
                self._free()
            case "stranger":
                _stranger(self.world.runtime / "hermes-supervise", step.number)
            case "limit":
                self._limit(step.text, step.number)
            case "wait for the successor":  # it is at work once it has a standby
                self._until(lambda: bool(self._standby()), "", 10.0)
            case "pause":  # so that others may or may not have got somewhere
                time.sleep(step.number / 1000)
            case "wait for the supervisor":
                self._until(lambda: not alive(self._head), "", 10.0)
        baton.turn = turn + 1

    def _pid(self, baton: Baton, process: int) -> int:
        """A process that was begun may be there and not have noted its pid yet; or it never will,
        because whoever made it was killed meanwhile."""
        if process in self._begun:
            self._until(lambda: bool(baton.pid(process)), "", 10.0)
        return baton.pid(process)

    def _kill_agent(self, pid: int) -> None:
        if self._kill(pid, "agent"):
            self._until(lambda: not alive(pid), "an agent dies")

    def _kill_supervisor(self) -> None:
        # Right after its start it has no standby yet; what it would leave is another scenario.
        self._until(lambda: bool(self._standby()) or not alive(self._head), "", 5.0)
        standby = self._standby()
        if self._kill(self._head, "supervisor"):
            self._until(lambda: not alive(self._head), "a supervisor dies")
            self._head = standby or self._head

    def _standby(self) -> int:
        found = [pid for pid in children(self._head) if alive(pid) and descriptors(pid) == 2]
        return found[0] if found else 0

    def _kill(self, pid: int, who: str) -> bool:
        if not alive(pid):
            return False
        os.kill(pid, signal.SIGKILL)
        self.kills[who] += 1
        return True

    def _limit(self, what: str, spare: int) -> None:
        if not alive(self._head):
            return
        if what == "descriptors":
            limit = resource.RLIMIT_NOFILE
            least = descriptors(self._head) + spare
        else:
            limit, least = resource.RLIMIT_FSIZE, 0
        _, hard = resource.prlimit(self._head, limit)
        resource.prlimit(self._head, limit, (least, hard))

    def _free(self) -> None:
        filler = self.world.state / "filler"
        if filler.exists():
            filler.unlink()

    def _wait_for_the_end(self) -> None:
        """Until no process of this world is left: supervisors, recoveries, hooks."""
        self._until(lambda: not self.world.inhabitants(), "everybody ends")

    def _until(self, condition: Callable[[], bool], what: str, patience: float = PATIENCE) -> bool:
        """`what`: must come true; nothing if it need not."""
        end = time.monotonic() + patience
        while not condition():
            _reap()
            if time.monotonic() > end:
                if what:
                    raise Stuck(f"{what}: {self._left()}")
                return False
            time.sleep(0.001)
        return True

    def _left(self) -> str:
        return ", ".join(
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[-120:]
            for pid in self.world.inhabitants()
        )


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


# -- what is done to a run -----------------------------------------------------------------------


def _mount(folder: Path) -> None:
    """A disk of its own, in a mount namespace of ours. Raises NotAllowed where that cannot be."""
    if ctypes.CDLL(None).unshare(_CLONE_NEWNS):
        raise NotAllowed("a mount namespace")
    size = f"size={_SMALL_DISK},mode=700"
    tmpfs = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)]
    for command in (["mount", "--make-rprivate", "/"], tmpfs):
        if subprocess.run(command, stderr=subprocess.DEVNULL).returncode:
            raise NotAllowed("a disk of its own")


def _fill(path: Path) -> None:
    with open(path, "wb", buffering=0) as file:
        for size in (_SPARE, 512):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue


def _frame(number: int, payload: bytes) -> bytes:
    """As docs/protocol.md describes it."""
    head = struct.pack("<IQ", len(payload), number)
    check = zlib.crc32(payload, zlib.crc32(head))
    return b"\xf5HS\x01" + head + struct.pack("<I", check) + payload


_BAD_HELLOS = [
    b"{", b'{"kind":"hello"', b'{"kind":"hello",}', b"[]", b"17", b"", b"\xff\xfe", b"null",
    b'{"kind":"hello","version":1,"oldest":1,"stream":[]}', b"[" * 5000, b'{"kind":{"a":1}}',
]  # fmt: skip
_BAD_RECORDS = [
    b"{", b"[]", b'{"kind":"message"}', b'{"kind":"message","session":"x","message":17}',
    b'{"kind":"session","session":{"a":[]}}', b'{"kind":"delta","session":"x","text":{}}',
    b"t", b"t\xff\xffx", b"m\xff\xff\xff\xff", b'{"kind":"settled","uids":{},"rows":7}',
    b'{"kind":"message","session":"x","message":{"role":"assistant","tool_calls":"no"}}',
    b'{"kind":"message","session":"x","message":{"role":[],"content":{"a":1}}}',
    b'{"kind":"rotated","session":"x","new":[]}', b'{"kind":"session","session":"x","db":7}',
    b'{"kind":"session","session":"x","mono":"late","at":"never"}', b"[" * 100000,
    b'{"kind":"tool","session":"x","phase":7,"call":[]}', b'{"kind":"message","session":1e999}',
]  # fmt: skip


def _stranger(sockets: Path, number: int) -> None:
    """A process of the same user sends nonsense to every socket, and exits."""
    rng = Random(number)
    stream = f"{rng.getrandbits(128):032x}"
    if rng.random() < 0.5:
        data = _frame(0, rng.choice(_BAD_HELLOS))
    else:
        hello = {"kind": "hello", "version": 1, "oldest": 1, "stream": stream, "pid": 0}
        records = [rng.choice(_BAD_RECORDS) for _ in range(rng.choice((1, 3)))]
        data = b"".join(_frame(n, payload) for n, payload in enumerate(records, 1))
        hello["pid"] = -1  # the kernel knows better
        data = _frame(0, json.dumps(hello).encode()) + data
        if rng.random() < 0.2:
            data += rng.randbytes(30)
    if not list(sockets.glob("*.sock")):
        return
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        for path in sockets.glob("*.sock"):
            with socket.socket(socket.AF_UNIX) as peer:
                peer.settimeout(2)
                peer.connect(str(path))
                peer.sendall(data)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(4096):
                    pass
    except OSError:
        pass
    finally:
        os._exit(0)
