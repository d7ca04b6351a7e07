"""What hostile, broken or merely simultaneous neighbours do to a run: it loses nothing by it."""

from __future__ import annotations

import errno
import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hermes_supervise.ipc import frames, records
from hermes_supervise.ipc.endpoint import process_start
from hermes_supervise.supervisor.run.jobs import JobQueue
from support import DEADLINE, World, kill, short, until, wait_dead

# Makes and ends runs, as many starts at once do.
STARTER = """
from hermes_supervise.supervisor.storage import run_folder as run
for _ in range(150):
    run.retire(run.create({"command": ["true"]}))
"""
# Looks for runs left behind, as every start and `recover` do, until nobody wants it any more.
LOOKER = """
import sys, select
from hermes_supervise.supervisor.storage import run_folder as run
while not select.select([sys.stdin], [], [], 0)[0]:
    for folder in run.left_behind():
        found = run.claim(folder)
        if found is not None:
            run.retire(found)
"""


def test_starts_at_the_same_moment_take_nothing_from_each_other(world: World) -> None:
    def python(source: str) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [sys.executable, "-c", source], env=world.env, stdin=pipe, stderr=pipe
        )

    lookers = [python(LOOKER) for _ in range(2)]
    starters = [python(STARTER) for _ in range(3)]
    for process in [*starters, *lookers]:  # the end of its input ends each looker
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()
    assert world.runs() == []


# -- when the world is full, or gone -----------------------------------------------------------


def test_a_segment_that_cannot_be_begun_is_no_reason_to_stop_supervising(world: World) -> None:
    """Its folder is away when the first segment is full, and comes back."""
    agent = world.supervise(
        """
from hermes_supervise.agent_shim import sdk
chat = session("chat")
chat.message("user", "first")
assert sdk.connection().acknowledged(20)
folder = os.environ["HERMES_SUPERVISE_SPOOL"]
os.rename(folder, folder + ".away")
for _ in range(9):
    chat.message("assistant", "x" * 1024 * 1024)
    if not sdk.connection().acknowledged(20):
        break
os.rename(folder + ".away", folder)
chat.message("user", "last")
ready()
forever()
"""
    )
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()
    assert b"supervision failed" not in agent.errors
    rows = short(world.messages("chat"))
    assert (rows[0], rows[-1]) == (("user", "first"), ("user", "last"))
    assert {content for _, content in rows[1:-1]} == {"x" * 1024 * 1024}
    assert len(rows) >= 9
    assert world.runs() == []


def test_leftovers_that_take_long_keep_nobody_waiting_for_the_end_of_our_errors(
    world: World,
) -> None:
    folder = left(world, "20260101-000000-00000001")
    (folder / f"{STREAM}.spool").write_bytes(spool(said()))
    world.home.mkdir()
    with closing(sqlite3.connect(world.db, isolation_level=None)) as held:
        held.execute("CREATE TABLE foreign_to_us (x)")
        held.execute("BEGIN EXCLUSIVE")
        assert world.run(["true"]).finish() == 0
        assert world.runs() == [folder], "it is still waiting for the file"
        held.execute("COMMIT")
    until(lambda: world.runs() == [], "what was left is finished")
    assert short(world.messages("chat")) == [("user", "hello")]


def test_a_job_that_cannot_be_forked_is_reported_and_the_next_job_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_more() -> int:
        raise BlockingIOError(errno.EAGAIN, "too many processes")

    warned: list[str] = []
    jobs = JobQueue(lambda: None, warned.append)
    with monkeypatch.context() as full:
        full.setattr(os, "fork", no_more)
        jobs.add(lambda: None, failing="could not be done")
    assert warned == ["could not be done"]
    assert not jobs.busy
    jobs.add(lambda: None, failing="could not be done either")
    assert jobs.reaped(*os.waitpid(jobs.pid, 0))
    assert warned == ["could not be done"]


def test_a_connection_that_waits_when_the_launcher_ends_is_read_before_we_exit(
    world: World,
) -> None:
    """A launcher starts the agent and dies, while the supervisor is held up."""
    agent = world.supervise(
        """
if os.fork() == 0:
    sys.stdin.readline()
    chat = session("chat")
    chat.message("user", "hello")
    ready("said by %d" % os.getpid())
    forever()
ready("launched")
forever()
""",
        stdin=subprocess.PIPE,
    )
    agent.wait_for("launched")
    launcher = agent.agent
    kill(agent.pid, signal.SIGSTOP)
    agent.send_line()
    sender = int(agent.wait_for("said by").split()[2])
    kill(launcher)
    wait_dead(launcher)
    kill(agent.pid, signal.SIGCONT)
    until(lambda: list((world.state / "hermes-supervise").glob("runs/*/*.log")), "its journal")
    kill(sender)
    agent.finish()
    assert short(world.messages("chat")) == [("user", "hello")]


# -- what somebody else put into the run's folder ----------------------------------------------

STREAM = "0123456789abcdef" * 2


def spool(*records_: Any, who: tuple[Any, ...] = ()) -> bytes:
    """A spool as any process of this user can write one: handshakes, then records."""
    hello = {"kind": "hello", "stream": STREAM, "pid": 2**22 - 1, "start": 1}
    packed = [
        record if isinstance(record, bytes) else records.pack(record) for record in who or (hello,)
    ]
    made = b"".join(frames.encode(0, payload) for payload in packed)
    for number, record in enumerate(records_, 1):
        made += frames.encode(number, record if isinstance(record, bytes) else records.pack(record))
    return made


def said(text: str = "hello", session: str = "chat", **more: Any) -> dict[str, Any]:
    message = {"role": "user", "content": text, **more}
    return {"kind": "message", "session": session, "at": 1_000_000.0, "message": message}


def left(world: World, name: str) -> Path:
    """The folder of a run that was left behind."""
    folder = world.state / "hermes-supervise" / "runs" / name
    folder.mkdir(parents=True)
    for path in (folder, folder.parent, folder.parent.parent):
        path.chmod(0o700)
    return folder


@pytest.mark.parametrize("kind", ["fifo", "folder", "symlink", "dangling symlink"])
def test_what_is_no_file_is_neither_waited_for_nor_read(world: World, kind: str) -> None:
    folder = left(world, "20260101-000000-00000001")
    path = folder / f"{STREAM}.spool"
    secret = world.folder / "elsewhere"
    secret.write_bytes(spool(said("of somebody else")))
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(secret if kind == "symlink" else world.folder / "nowhere")
    (folder / f"{STREAM}.000001.log").write_bytes(spool(said()))
    done = world.call("recover", deadline=DEADLINE)
    assert done.returncode == 0, done.stderr
    assert short(world.messages("chat")) == [("user", "hello")]
    assert world.runs() == []
    assert secret.exists()


def test_a_spool_cannot_say_that_a_living_process_is_dead_nor_that_a_dead_one_lives(
    world: World,
) -> None:
    us = {"pid": os.getpid(), "start": process_start(os.getpid())}
    nobody = {"pid": 2**22 - 1, "start": 1}
    death = {"kind": "death", "signal": 9, "at": 1_000_000.0}
    for name, real, forged in (
        ("1" * 32, us, ({"kind": "peer", **nobody}, death)),
        ("2" * 32, nobody, ({"kind": "peer", **us},)),
    ):
        folder = left(world, f"20260101-000000-{name[:8]}")
        peers = ({"kind": "hello", "stream": name, **real}, {"kind": "peer", **real})
        (folder / f"{name}.000001.log").write_bytes(spool(said(session=name[0]), who=peers))
        (folder / f"{name}.spool").write_bytes(spool(who=forged))
        (folder / "run.json").write_text(f'{{"boot": "{boot()}"}}')
    assert world.call("recover").returncode == 0
    assert short(world.messages("1")) == []
    assert short(world.messages("2")) == [("user", "hello")]


def nested(depth: int, **record: str) -> bytes:
    """A record whose last field holds a list of lists of lists."""
    inner = "[" * depth + "]" * depth
    return (records.pack(record)[:-1].decode() + f',"model":{inner}}}').encode()


LONG = [{"kind": "rotated", "session": f"r{n}", "new": f"r{n + 1}"} for n in range(1500)]
POISON = {
    "a path with a NUL": spool({"kind": "session", "session": "bad", "db": "a\0b"}, said()),
    "a path that is no text": spool({"kind": "session", "session": "bad", "db": "/\ud800"}, said()),
    "a folder with a NUL": spool(said(), who=({"kind": "hello", "pid": 1, "cwd": "a\0b"},)),
    "a pid that is none": spool(said(), who=({"kind": "hello", "pid": [], "start": {}},)),
    "a name that is a nest": spool(nested(900, kind="session", session="bad"), said()),
    "rotations without end": spool(*LONG),
    "a number at the end of all": frames.encode(2**64 - 1, records.pack(said())),
    "a death at no time": spool(said(), who=(b'{"kind":"death","at":NaN}',)),
    "noise": bytes(range(256)) * 20,
}


def test_nothing_an_agent_says_commands_the_terminal_or_the_shell(world: World) -> None:
    evil = "\x1b]0;owned\x07\x9b2J"
    db = str(world.folder / f"db{evil}")
    announced = {"kind": "session", "session": f"; touch x {evil}", "db": db, "source": evil}
    words = said(evil, session=f"; touch x {evil}", finish_reason=evil, role=f"user{evil}")
    hello = {"kind": "hello", "agent": "hermes", "executable": f"/nowhere/{evil}"}
    folder = left(world, "20260101-000000-00000001")
    (folder / f"{STREAM}.spool").write_bytes(spool(announced, words, who=(hello,)))
    (folder / "run.json").write_text(json.dumps({"on_session_end": [f"/nowhere/{evil}"]}))
    shown = world.call("recover").stdout
    shown += world.call("show").stdout
    alone = world.call("show", f"; touch x {evil}").stdout
    assert "owned" in alone
    assert not set(shown + alone) & {"\x1b", "\x07", "\x9b"}
    [report] = world.reports()
    assert shlex.split(report["resume"]) == ["hermes", "--resume", f"; touch x {evil}"]


def test_a_file_full_of_holes_takes_one_line_of_the_report(world: World) -> None:
    folder = left(world, "20260101-000000-00000001")
    whole = [frames.encode(n, records.pack(said(str(n)))) for n in range(1, 101)]
    (folder / f"{STREAM}.spool").write_bytes(b"!".join([spool(), *whole]))
    done = world.call("recover")
    assert len(world.messages("chat")) == 100
    assert "and 97 more" in done.stdout
    assert len(done.stdout) < 1000


def test_a_report_that_was_cut_off_does_not_swallow_the_next(world: World) -> None:
    folder = left(world, "20260101-000000-00000001")
    (folder / f"{STREAM}.spool").write_bytes(spool(said()))
    (folder / "report.jsonl").write_text('{"session": "ch')
    assert world.call("recover").returncode == 0
    assert [report["session"] for report in world.reports()] == ["chat"]


def test_sessions_whose_names_cannot_be_stored_lose_nothing_to_each_other(world: World) -> None:
    folder = left(world, "20260101-000000-00000001")
    sent = [said("one", session="chat\ud800"), said("two", session="chat\ud801")]
    (folder / f"{STREAM}.spool").write_bytes(spool(*sent))
    assert world.call("recover").returncode == 0
    assert short(world.messages("chat\ufffd")) == [("user", "one"), ("user", "two")]


def test_a_run_that_is_finished_for_its_supervisor_leaves_no_socket(world: World) -> None:
    agent = world.supervise('session("chat").message("user", "hello")\nready()\nforever()')
    agent.wait_for("ready")
    sockets = Path(world.env["XDG_RUNTIME_DIR"]) / "hermes-supervise"
    assert len(list(sockets.iterdir())) == 1
    agent.abandon()
    assert world.call("recover").returncode == 0
    assert list(sockets.iterdir()) == []


@pytest.mark.parametrize("file", ["spool", "000001.log"])
@pytest.mark.parametrize("poison", POISON)
def test_a_poisoned_stream_keeps_no_other_from_being_finished(
    world: World, poison: str, file: str
) -> None:
    folder = left(world, "20260101-000000-00000001")
    (folder / f"{'0' * 32}.{file}").write_bytes(POISON[poison])
    (folder / f"{STREAM}.spool").write_bytes(spool(said(session="beside it")))
    later = left(world, "20260101-000000-00000002")
    (later / f"{STREAM}.spool").write_bytes(spool(said(session="after it")))
    done = world.call("recover")
    assert done.stderr == ""
    for session in ("beside it", "after it"):
        assert short(world.messages(session)) == [("user", "hello")]
    assert later not in world.runs()
    for shown in ((), ("bad",), ("chat",)):
        assert "Traceback" not in world.call("show", *shown).stderr


def test_a_run_that_cannot_be_finished_is_named_and_the_next_start_goes_past_it(
    world: World,
) -> None:
    folder = left(world, "20260101-000000-00000001")
    (folder / "not ours").mkdir()
    later = left(world, "20260101-000000-00000002")
    (later / f"{STREAM}.spool").write_bytes(spool(said()))
    assert world.run(["true"]).finish() == 0
    assert short(world.messages("chat")) == [("user", "hello")]
    assert world.runs() == [folder]
    done = world.call("recover")
    assert (done.returncode, done.stderr) == (1, "")
    assert folder.name in done.stdout


def test_a_supervisor_finishes_what_lies_beside_a_poisoned_stream(world: World) -> None:
    agent = world.supervise(
        f"""
chat = session("chat")
chat.message("user", "hello")
folder = os.environ["HERMES_SUPERVISE_SPOOL"]
with open(os.path.join(folder, "0" * 32 + ".spool"), "wb") as file:
    file.write({POISON["a pid that is none"]!r})
with open(os.path.join(folder, "1" * 32 + ".spool"), "wb") as file:
    file.write({spool(said(session="beside it"))!r})
ready()
forever()
"""
    )
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()
    # The poisoned stream says a hello of its own in "chat": equal words are both kept.
    assert short(world.messages("chat")) == [("user", "hello")] * 2
    assert short(world.messages("beside it")) == [("user", "hello")]


def boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
