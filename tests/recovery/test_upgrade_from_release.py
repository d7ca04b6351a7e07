"""An upgrade in the middle of a run: an agent starts under release 236a7e9, the files of this tree
replace those of the release, and then somebody dies.

The old processes go on with the modules they have loaded and load the rest from the new files.
Whatever fails in there costs a delay at most: nothing is lost, the exit status is the agent's,
and `recover` of the new version finishes what the old supervisor could not.

When a process of the release loads a module depends on the machine's speed. So the modules that
the release loads while its agent starts are loaded before that here (`STARTED`), and where a test
needs an old supervisor that still serves, also those that it loads for its first records
(`SERVING`). What a standby and a recovery load, they load from the new files.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from installed import InstalledWorld, current_tree, installed_world, release_tree
from support import Supervised, children, kill, short, until, wait_dead

# Obeys lines on its standard input, and reports each one it has carried out.
AGENT = """
chat, number = None, 0
ready("pid %d" % os.getpid())
for line in sys.stdin:
    order, _, value = line.strip().partition(" ")
    if order == "say":
        if chat is None:
            chat = session("chat")
            chat.message("user", "talk")
        for _ in range(int(value)):
            chat.delta(f"w{number} ")
            number += 1
    elif order == "import":
        __import__(value)
    elif order == "answer":
        chat.message("assistant", "".join(f"w{n} " for n in range(number)))
    elif order == "exit":
        sys.exit(int(value))
    loaded = " ".join(sys.modules) if order == "import" else ""
    ready(f"done {line.strip()} {loaded}")
"""


STARTED = ("supervise", "tree", "restart")
SERVING = ("client", "journal", "ringview", "tending", "checkpoints", "hooks.occasions")
PRELOAD = """
import importlib, sys
if sys.orig_argv[1:2] and sys.orig_argv[1].endswith("/hermes-supervise"):
    for name in {names!r}:
        try:
            importlib.import_module("hermes_supervise.supervisor." + name)
        except ImportError:
            pass  # this is not the release
"""


def words(total: int) -> str:
    return "".join(f"w{number} " for number in range(total))


class Upgradable(InstalledWorld):
    """Installed is the release, until it is upgraded."""

    current: Path

    def preload(self, *names: str) -> None:
        (self.site / "sitecustomize.py").write_text(PRELOAD.format(names=names))

    def upgrade(self) -> None:
        self.install(self.current)

    def start(self, *options: str) -> tuple[Supervised, int]:
        run = self.supervise(AGENT, *self.hook, *options, stdin=subprocess.PIPE)
        return run, int(run.wait_for("pid").split()[1])

    def prove_whole(self, total: int, *, reason: str = "interrupted", hooks: int = 1) -> None:
        """Everything the agent said is stored once, the end is right, the hook ran once."""
        assert short(self.messages("chat")) == [("user", "talk"), ("assistant", words(total))]
        session = self.session("chat")
        assert session is not None
        assert session["end_reason"] == reason
        until(lambda: len(self.events()) >= hooks, "the hook")
        again = self.call("recover", "--json")
        assert again.returncode == 0, again.stderr
        assert json.loads(again.stdout)["settled"] == []
        assert len(self.messages("chat")) == 2, "a second recovery changes nothing"
        assert len(self.events()) == hooks
        assert self.runs() == []


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return release_tree(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def current(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return current_tree(tmp_path_factory.mktemp("current"))


@pytest.fixture
def installed(tmp_path: Path, release: Path, current: Path) -> Iterator[Upgradable]:
    with installed_world(tmp_path, release, Upgradable) as world:
        world.current = current
        world.preload(*STARTED)
        yield world


def order(run: Supervised, line: str) -> str:
    """Have the agent carry this out; what it reports."""
    run.send_line(line)
    return run.wait_for(f"done {line}")


def recover(world: Upgradable) -> None:
    done = world.call("recover")
    assert done.returncode == 0, done.stdout + done.stderr


def journalled(world: Upgradable, text: str) -> None:
    """Wait until the supervisor has this in the journal."""
    wanted = text.encode()
    until(
        lambda: [
            1 for run in world.runs() for log in run.glob("*.log") if wanted in log.read_bytes()
        ],
        f"{text} in the journal",
    )


def successor_of(world: Upgradable) -> int:
    """The supervisor that the old standby has become."""
    [pid] = until(world.successors, "a successor")
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    assert words[1:5] == [b"-P", b"-m", b"hermes_supervise.supervisor", b"adopt"]
    return int(pid)


def test_the_release_runs_before_the_upgrade(installed: Upgradable) -> None:
    run, _ = installed.start()
    order(run, "say 1")
    run.send_line("exit 0")
    assert run.finish() == 0
    installed.prove_whole(1, reason="exited", hooks=0)


@pytest.mark.parametrize("first", [0, 50], ids=["silent so far", "in the middle of a reply"])
def test_an_agent_killed_after_the_upgrade_is_recovered(installed: Upgradable, first: int) -> None:
    run, agent = installed.start()
    if first:
        order(run, f"say {first}")
        journalled(installed, "talk")
    installed.upgrade()
    order(run, f"say {100 - first}")
    [folder] = installed.runs()
    assert list(folder.glob("*.ring")), "the shim has its ring, whenever it loaded that module"
    kill(agent)
    assert run.finish() == -signal.SIGKILL, run.errors.decode()
    assert "Traceback" not in run.errors.decode()
    recover(installed)
    installed.prove_whole(100)


@pytest.mark.parametrize(("status", "reason", "hooks"), [(0, "exited", 0), (3, "interrupted", 1)])
def test_an_agent_that_exits_after_the_upgrade_keeps_its_status(
    installed: Upgradable, status: int, reason: str, hooks: int
) -> None:
    # An old supervisor that fails over the new files cannot write down the agent's status.
    installed.preload(*STARTED, *SERVING)
    run, _ = installed.start()
    order(run, "say 50")
    installed.upgrade()
    order(run, "answer")
    run.send_line(f"exit {status}")
    assert run.finish() == status, run.errors.decode()
    assert "Traceback" not in run.errors.decode()
    recover(installed)
    installed.prove_whole(50, reason=reason, hooks=hooks)


def test_the_old_standby_becomes_a_supervisor_of_the_new_version(
    installed: Upgradable,
) -> None:
    installed.preload(*STARTED, *SERVING)
    run, agent = installed.start()
    order(run, "say 40")
    journalled(installed, "talk")
    installed.upgrade()
    kill(run.pid)
    run.process.wait()
    order(run, "say 40")
    successor = successor_of(installed)
    order(run, "say 20")
    kill(agent)
    wait_dead(successor)
    installed.prove_whole(100)


def test_agent_and_supervisor_killed_together_are_finished_by_the_old_standby(
    installed: Upgradable,
) -> None:
    installed.preload(*STARTED, *SERVING)
    run, agent = installed.start()
    order(run, "say 100")
    journalled(installed, "talk")
    installed.upgrade()
    kill(run.pid)
    kill(agent)
    run.process.wait()
    wait_dead(agent)
    until(lambda: not installed.runs(), "the standby finished the run")
    installed.prove_whole(100)


@pytest.mark.parametrize("finisher", ["recover", "the next start"])
def test_when_all_are_killed_the_new_version_finishes_later(
    installed: Upgradable, finisher: str
) -> None:
    run, _ = installed.start()
    order(run, "say 100")
    installed.upgrade()
    run.abandon()
    if finisher == "recover":
        recover(installed)
    else:
        assert installed.call("--", "true").returncode == 0
        until(lambda: not installed.runs(), "the leftovers are finished")
    installed.prove_whole(100)


def test_a_living_agent_loads_the_adapter_of_the_new_version(installed: Upgradable) -> None:
    """The injected `sitecustomize` waits for a known agent's module, however late it comes."""
    (installed.folder / "run_agent.py").write_text("class AIAgent:\n    pass\n")
    installed.env["PYTHONPATH"] = str(installed.folder)
    run, agent = installed.start()
    installed.upgrade()
    loaded = order(run, "import run_agent").split()
    assert "_hermes_supervise.agent_shim.adapters.hermes" in loaded
    kill(agent)
    assert run.finish() == -signal.SIGKILL


def test_a_transcript_is_followed_by_a_reader_of_the_new_version(
    installed: Upgradable,
) -> None:
    """The old supervisor starts another reader when the first one dies."""
    installed.preload(*STARTED, *SERVING)
    transcript = installed.folder / "chat.jsonl"
    run = installed.supervise(
        """
with open("chat.jsonl", "a") as file:
    for line in sys.stdin:
        file.write(line)
        file.flush()
        ready("wrote")
""",
        *installed.hook, "--watch", str(transcript), "--db", str(installed.db),
        stdin=subprocess.PIPE,
    )  # fmt: skip

    def write(role: str, content: str) -> None:
        run.send_line(json.dumps({"role": role, "content": content}))
        run.wait_for("wrote")

    write("user", "first")
    journalled(installed, "first")
    [reader] = [pid for pid in children(run.pid) if b"read-transcripts" in words_of(pid)]
    installed.upgrade()
    kill(reader)
    write("assistant", "second")
    journalled(installed, "second")
    run.kill_agent()
    assert run.finish() == -signal.SIGKILL, run.errors.decode()
    recover(installed)
    with installed.database() as db:
        stored = db.execute("SELECT role, content FROM messages ORDER BY id").fetchall()
    assert [tuple(row) for row in stored] == [("user", "first"), ("assistant", "second")]
    until(lambda: len(installed.events()) == 1, "the hook")


def words_of(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def test_a_hook_that_failed_under_the_release_is_retried_by_the_new_version(
    installed: Upgradable,
) -> None:
    gate = installed.folder / "works now"
    done = installed.folder / "done"
    (installed.folder / "hook.py").write_text(
        f"from pathlib import Path\nPath({str(gate)!r}).stat()\nPath({str(done)!r}).touch()\n"
    )
    run = installed.supervise(
        AGENT, "--on-session-end", f"{installed.python} {installed.folder / 'hook.py'}",
        "--hook-retry", "none", stdin=subprocess.PIPE,
    )  # fmt: skip
    run.wait_for("pid")
    order(run, "say 1")
    run.kill_agent()
    assert run.finish() == -signal.SIGKILL
    [dead] = json.loads(installed.call("hooks", "--json").stdout)["hooks"]
    assert (dead["state"], dead["attempts"]) == ("dead", 1)
    installed.upgrade()
    gate.touch()
    retried = installed.call("hooks", "retry", "--all", "--json")
    assert retried.returncode == 0, retried.stdout + retried.stderr
    [hook] = json.loads(retried.stdout)["hooks"]
    assert (hook["id"], hook["state"], hook["attempts"]) == (dead["id"], "done", 2)
    assert done.exists()
