"""The stand-ins for the standard library: each behaves as the ordinary module does, on every
Python that is found, and gives way to it where it cannot do its work."""

from __future__ import annotations

import dataclasses
import enum
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hermes_supervise.ipc.lightweight import dataclass as lightweight
from interpreters import ROOT, run, since, view_of_the_tree

# `ipc` also runs inside agents, which may have a Python that is older than ours.
PYTHONS = since(3, 8)
every_python = pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS.keys())
# The supervisor itself is installed into one of these.
OURS = since(3, 11)
every_python_of_ours = pytest.mark.parametrize("python", OURS.values(), ids=OURS.keys())
ROOMS = ("ipc", "agent_shim", "supervisor")

MALFORMED = r"""
from hermes_supervise.ipc import records
from hermes_supervise.ipc.lightweight import json
assert "json" not in sys.modules
TEXTS = ["", "{", '{"kind":"hello"', '{"kind":"hello",}', "[1,]", "[1 2]", "nul", "'a'", '"a',
         '"\n"', '"\\x"', '"\\ud8"', "{1:2}", '{"a":}', '{"a" 1}', "-", "\x00", "{} x",
         "[" * 100000]
for text in TEXTS:
    try:
        json.loads(text)
        sys.exit(repr(text))
    except json.NotJson:
        pass
    if text.startswith("{"):
        try:
            records.unpack(text.encode())
            sys.exit(repr(text))
        except records.BadRecord:
            pass
"""

JSON_AGREES = r"""
if "no core" in sys.argv:
    sys.modules["_json"] = None
from hermes_supervise.ipc.lightweight import json
import json as ordinary
assert (json.dumps is ordinary.dumps) == ("no core" in sys.argv)
VALUES = [None, True, 1, 2.5, 1e400, "\ud800\u00e9\n", [], {}, [1, [2, {"a": None}]], {"b": {}}]
for value in VALUES + [VALUES]:
    assert json.dumps(value) == ordinary.dumps(value)
    assert json.compact(value) == ordinary.dumps(value, separators=(",", ":"))
    assert json.loads(" " + json.dumps(value) + "\n") == value
assert json.compact([1j]) == '["1j"]' and json.quoted("\u00e9") == '"\\u00e9"'
for text in ("", "[", "{} x", '{"a":1,}', "[" * 100000):
    try:
        json.loads(text)
        sys.exit(repr(text))
    except json.NotJson:
        pass
try:
    json.dumps({1, 2})
    sys.exit("a set was written")
except TypeError:
    pass
"""

SIGNAL_AGREES = r"""
import signal as ordinary, types
if "no core" in sys.argv:
    sys.modules["_signal"] = types.ModuleType("_signal")
from hermes_supervise.ipc.lightweight import signal
names = [name for name in vars(ordinary) if name.startswith("SIG")]
assert len(names) > 30
for name in names:
    assert getattr(signal, name) == getattr(ordinary, name), name
assert (signal.signal is ordinary.signal) == ("no core" in sys.argv)
hits = []
before = signal.signal(signal.SIGUSR1, lambda *given: hits.append(given[0]))
assert before == ordinary.SIG_DFL
assert signal.getsignal(signal.SIGUSR1) is ordinary.getsignal(ordinary.SIGUSR1)
signal.raise_signal(signal.SIGUSR1)
assert hits == [ordinary.SIGUSR1]
assert signal.SIGUSR2 not in signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
assert ordinary.SIGUSR2 in ordinary.pthread_sigmask(ordinary.SIG_BLOCK, [])
assert signal.set_wakeup_fd(-1) == -1
"""

SOCKET_AGREES = r"""
import os, socket as ordinary, tempfile, types
if "no core" in sys.argv:
    sys.modules["_socket"] = types.ModuleType("_socket")
from hermes_supervise.ipc.lightweight import socket
assert (socket.socket is ordinary.socket) == ("no core" in sys.argv)
for name in ("AF_UNIX", "SOCK_STREAM", "SOL_SOCKET", "SO_SNDBUF", "SO_PEERCRED"):
    assert getattr(socket, name, None) == getattr(ordinary, name, None), name
with tempfile.TemporaryDirectory() as folder:
    for of in (socket, ordinary):
        path = f"{folder}/{of.__name__}"
        listener = of.socket(of.AF_UNIX, of.SOCK_STREAM)
        listener.bind(path)
        listener.listen(1)
        client = of.socket(of.AF_UNIX, of.SOCK_STREAM)
        client.setblocking(False)
        client.connect(path)
        fd, _ = listener._accept()
        peer = of.socket(fileno=fd)
        assert peer.fileno() == fd and client.send(b"hello") == 5 and peer.recv(10) == b"hello"
        try:
            client.recv(1)
            sys.exit("there was nothing to receive")
        except BlockingIOError:
            pass
        assert os.get_inheritable(fd) is False
        for each in (listener, client, peer):
            each.close()
        assert client.fileno() == -1
"""

SHA256_AGREES = r"""
import hashlib as ordinary
if "no core" in sys.argv:
    sys.modules["_sha2"] = sys.modules["_sha256"] = None
from hermes_supervise.ipc.lightweight.sha256 import sha256
assert (sha256 is ordinary.sha256) == ("no core" in sys.argv)
for data in (b"", b"a", b"\x00" * 1000):
    assert sha256(data).hexdigest() == ordinary.sha256(data).hexdigest()
    assert sha256(data).digest() == ordinary.sha256(data).digest()
"""

CTYPES_AGREES = r"""
import os
if "no core" in sys.argv:
    import ctypes as ordinary, types
    sys.modules["_ctypes"] = types.ModuleType("_ctypes")
from hermes_supervise.ipc.lightweight import ctypes
assert ctypes.call("getpid") == os.getpid() and ctypes.call("abs", -7) == 7
assert ("ctypes" in sys.modules) == ("no core" in sys.argv)
try:
    ctypes.call("no_such_function_anywhere", 1)
    sys.exit("it was called")
except OSError:
    pass
"""


@every_python
def test_malformed_json_is_one_error_where_json_was_never_imported(
    python: str, tmp_path: Path
) -> None:
    """Before 3.12 the C core raises SystemError there, which ended a whole run's supervision."""
    ran = run(python, MALFORMED, tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


@every_python
@pytest.mark.parametrize("core", ["core", "no core"])
@pytest.mark.parametrize(
    "program",
    [JSON_AGREES, SIGNAL_AGREES, SOCKET_AGREES, CTYPES_AGREES, SHA256_AGREES],
    ids=["json", "signal", "socket", "ctypes", "sha256"],
)
def test_a_stand_in_agrees_with_the_ordinary_module(
    python: str, program: str, core: str, tmp_path: Path
) -> None:
    ran = run(python, program, tmp_path, core)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


@every_python
def test_stand_ins_load_none_of_the_modules_that_they_stand_in_for(
    python: str, tmp_path: Path
) -> None:
    ran = run(
        python,
        """
from hermes_supervise.ipc.lightweight import ctypes, dataclass, json, sha256, signal, socket
heavy = {"ctypes", "dataclasses", "enum", "hashlib", "json", "re", "selectors", "signal", "socket"}
print(sorted(heavy & set(sys.modules)))
""",
        tmp_path,
    )
    assert (ran.stdout, ran.stderr) == ("[]\n", "")


def test_nobody_else_imports_a_private_module_or_looks_into_frames() -> None:
    """So that what depends on the inside of one Python has one place, with a way out."""
    pattern = (
        r"^\s*(import|from) _(json|signal|socket|ctypes|sha2|sha256|thread|io|collections)\b"
        r"|sys\._[g]etframe|gi_[f]rame"
    )
    found = subprocess.run(
        ["git", "grep", "-nE", pattern, "--", "*.py", ":!ipc/lightweight"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert found.stdout == ""


# -- what a launch loads ----------------------------------------------------------------------

# Before the agent starts; also everything that is needed to wait for it, to forward its signals and
# to exit with its status. Each module takes about a hundredth of the time that the agent waits.
BEFORE_THE_AGENT = {
    "supervisor", "supervisor.__main__",
    "ipc", "ipc.endpoint", "ipc.handlers",
    "ipc.lightweight", "ipc.lightweight.ctypes", "ipc.lightweight.json", "ipc.lightweight.signal",
    "ipc.lightweight.socket",
    "supervisor.agents", "supervisor.agents.protocol", "supervisor.agents.registry",
    "supervisor.agents.state_db", "supervisor.agents.unknown",
    "supervisor.cli", "supervisor.cli.arguments",
    "supervisor.ingest", "supervisor.ingest.listener",
    "supervisor.model", "supervisor.model.options",
    "supervisor.process", "supervisor.process.launch", "supervisor.process.linux",
    "supervisor.process.linux_proc", "supervisor.process.loop", "supervisor.process.package",
    "supervisor.process.platform", "supervisor.process.polled_watch", "supervisor.process.signals",
    "supervisor.run", "supervisor.run.forwarding", "supervisor.run.start", "supervisor.run.waiting",
    "supervisor.storage", "supervisor.storage.run_folder", "supervisor.storage.run_lock",
    "supervisor.storage.run_notes",
}  # fmt: skip
# Of the standard library; those that Python loads itself are not counted.
STANDARD = {"__future__", "_ctypes", "_json", "_socket", "errno", "fcntl", "select"}
# Until the end, by a run whose command says nothing and exits.
AFTERWARDS = BEFORE_THE_AGENT | {
    "ipc.clock", "ipc.lightweight.dataclass",
    "supervisor.hooks", "supervisor.hooks.launcher",
    "supervisor.ingest.observer", "supervisor.ingest.server", "supervisor.ingest.streams",
    "supervisor.model.checked", "supervisor.model.job_result", "supervisor.model.text",
    "supervisor.process.cause", "supervisor.process.death", "supervisor.process.memory",
    "supervisor.process.orphans", "supervisor.process.own_program", "supervisor.process.tree",
    "supervisor.run.event_log", "supervisor.run.held_terminal", "supervisor.run.jobs",
    "supervisor.run.processes", "supervisor.run.recoveries", "supervisor.run.states",
    "supervisor.run.summary", "supervisor.run.supervision", "supervisor.run.transcript_process",
    "supervisor.transcripts", "supervisor.transcripts.settings",
}  # fmt: skip

# Its own modules, and those of the standard library: when the agent is started, and at the end.
LAUNCH = """
import gc, os
before = set(sys.modules)
spawn, leave, supervisor = os.posix_spawnp, os._exit, os.getpid()
def note(file):
    loaded = {name.removeprefix("hermes_supervise.") for name in set(sys.modules) - before}
    with open(file, "w") as notes:
        notes.write(" ".join(loaded - {"hermes_supervise"}))
    with open(f"{file}.collects", "w") as notes:
        notes.write(str(gc.isenabled()))
def spawn_and_note(*words, **more):
    note("started")
    return spawn(*words, **more)
def leave_and_note(status):
    if os.getpid() == supervisor:
        note("ended")
    leave(status)
os.posix_spawnp, os._exit = spawn_and_note, leave_and_note
from hermes_supervise.supervisor.__main__ import main
main()
"""


def bare(python: str, program: str, folder: Path, *arguments: str) -> None:
    """Run a program in which all of ours can be imported, and nothing else is loaded."""
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}
    start = f"import sys; sys.path.append({view_of_the_tree(folder, *ROOMS)!r})\n"
    ran = subprocess.run(
        [python, "-S", "-B", "-c", start + program, *arguments],
        env=env, cwd=folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def launched(python: str, folder: Path, *command: str) -> tuple[set[str], set[str]]:
    """The modules that a supervised run of a command loads: until it starts, until it has ended."""
    bare(python, LAUNCH, folder, *command)
    started, ended = ((folder / name).read_text().split() for name in ("started", "ended"))
    return set(started), set(ended)


@every_python_of_ours
def test_a_launch_loads_nothing_that_its_agent_need_not_wait_for(
    python: str, tmp_path: Path
) -> None:
    """A module more is a decision: the agent waits for it, at every launch. One that waiting for
    the agent needs must not go: after the start it may be gone (tests/process/test_waiting_only.py
    holds that)."""
    started, ended = launched(python, tmp_path, "--", "true")
    assert started - STANDARD == BEFORE_THE_AGENT
    assert ended - STANDARD == AFTERWARDS


@every_python_of_ours
def test_a_launch_without_the_dashes_loads_the_names_of_our_commands_besides(
    python: str, tmp_path: Path
) -> None:
    started, _ = launched(python, tmp_path, "true")
    assert started - STANDARD == BEFORE_THE_AGENT | {"supervisor.cli.usage"}


@every_python_of_ours
def test_an_option_loads_the_table_of_options_and_nothing_else(python: str, tmp_path: Path) -> None:
    started, ended = launched(python, tmp_path, "--quiet", "--", "true")
    assert started - STANDARD == BEFORE_THE_AGENT | {"supervisor.cli.options"}
    assert ended - STANDARD == AFTERWARDS | {"supervisor.cli.options"}


@every_python_of_ours
def test_the_collector_is_at_work_once_the_agent_runs(python: str, tmp_path: Path) -> None:
    """It is off while modules are loaded; a supervisor that never collects would grow."""
    launched(python, tmp_path, "--", "true")
    assert (tmp_path / "started.collects").read_text() == "False"
    assert (tmp_path / "ended.collects").read_text() == "True"


@every_python_of_ours
def test_a_replica_loads_no_hashlib_and_no_importlib_into_the_supervisor(
    python: str, tmp_path: Path
) -> None:
    """These two would take more memory there than all of ours that a replica needs."""
    (tmp_path / "psycopg.py").touch()
    program = LAUNCH.replace("return spawn(*words, **more)", "leave(0)")
    bare(python, program, tmp_path, "--replica", "host=nowhere", "--", "true")
    started = set((tmp_path / "started").read_text().split())
    assert "supervisor.replica.places" in started
    assert not started & {"hashlib", "_hashlib", "importlib", "importlib.util", "re", "psycopg"}


@every_python_of_ours
def test_the_end_of_a_codex_that_had_no_thread_loads_nothing(python: str, tmp_path: Path) -> None:
    program = """
from hermes_supervise.supervisor.agents.codex import AGENT
before = set(sys.modules)
assert AGENT.goes_on(sys.argv[1], {}) is None
sys.exit(", ".join(set(sys.modules) - before) or 0)
"""
    (tmp_path / "tap").mkdir()
    bare(python, program, tmp_path, str(tmp_path / "tap"))


# -- dataclasses and enum ----------------------------------------------------------------------


def example(module: Any) -> Any:
    class Example:
        first: int
        second: str = "two"
        third: list[int] = module.field(default_factory=list)

    return module.dataclass(Example)


@pytest.mark.parametrize("before", [0, 100])
def test_objects_are_made_as_by_dataclasses(before: int) -> None:
    """The first object, and the hundredth: a class with many objects gets compiled code."""
    ours, theirs = example(lightweight), example(dataclasses)
    for _ in range(before):
        ours(0)
    for args, named in [
        ((1,), {}), ((1, "b"), {}), ((1, "b", [3]), {}), ((), {"first": 1}),
        ((1,), {"third": [4]}), ((), {"third": [4], "first": 2, "second": "c"}),
        ((1, "b", (5, [6])), {}),
    ]:  # fmt: skip
        value = ours(*args, **named)
        assert vars(value) == vars(theirs(*args, **named))
        assert list(vars(value)) == ["first", "second", "third"]
        assert lightweight.asdict(value) == dataclasses.asdict(theirs(*args, **named))
        assert value == ours(*args, **named) and value != ours(9)
        assert repr(value) == repr(theirs(*args, **named))
        assert lightweight.replace(value, first=7) == ours(7, value.second, value.third)
    assert ours(1).third is not ours(1).third
    nested = (ours(1, third=[ours(2)]), theirs(1, third=[theirs(2)]))
    assert lightweight.asdict(nested[0]) == dataclasses.asdict(nested[1])


@pytest.mark.parametrize("before", [0, 100])
def test_what_dataclasses_refuse_is_refused_with_the_same_error(before: int) -> None:
    ours, theirs = example(lightweight), example(dataclasses)
    for _ in range(before):
        ours(0)
    for args, named in [
        ((), {}), ((1, "b", [], 4), {}), ((1,), {"first": 2}), ((1,), {"more": 2}),
        ((), {"second": "b"}),
    ]:  # fmt: skip
        with pytest.raises(TypeError) as expected:
            theirs(*args, **named)
        with pytest.raises(TypeError) as refused:
            ours(*args, **named)
        assert str(refused.value) == str(expected.value)
    with pytest.raises(TypeError):
        hash(ours(1))


def test_members_are_those_of_an_enum() -> None:
    def colours(base: Any) -> Any:
        class Colour(base):  # type: ignore[misc]
            """With a method, which is no member."""

            RED = "r"
            BLUE = 2

            def shown(self) -> str:
                return f"{self.name}={self.value}"

        return Colour

    ours, theirs = colours(lightweight.Enum), colours(enum.Enum)
    for of in (ours, theirs):
        assert [(each.name, each.value, each.shown()) for each in of] == [
            ("RED", "r", "RED=r"), ("BLUE", 2, "BLUE=2"),
        ]  # fmt: skip
        assert len(of) == 2 and of.RED is of("r") and of.RED != of.BLUE
        assert isinstance(of.RED, of) and of.RED in {of.RED: 1}
        with pytest.raises(ValueError, match="not a valid"):
            of("g")
    assert str(ours.RED) == str(theirs.RED) and repr(ours.RED) == repr(theirs.RED)
