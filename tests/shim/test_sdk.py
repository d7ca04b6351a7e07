"""The SDK in the agent's code: never in the way, whatever it is given and whoever is there."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support import DEADLINE, World, short, until

# Everything the SDK offers, with arguments no one should give it.
ODD = r"""
class Odd:
    def __str__(self): raise RuntimeError("no text")
    __repr__ = __str__

class OddError(Exception):
    def __str__(self): raise RuntimeError("no text")

loop = []
loop.append(loop)
odd = [None, 5, 1.5, True, b"\xff", "\ud800", "x" * 70000, [], {}, {(1, 2): 3}, loop, Odd(),
       object(), float("nan"), {"a": Odd()}, [{"role": Odd()}], lambda: None, Exception, 10 ** 5000]
for value in odd:
    for chat in (session(value), session("named", source=value, model=value, platform=value,
                 parent=value, history=value, kind=value, session=value, at=value, started=value)):
        chat.message(value, value)
        chat.message("user", value, kind=value, session=value, at=value, extra=value)
        chat.message("user", "hello", uid=value if isinstance(value, str) else None)
        chat.delta(value)
        chat.delta(value, reasoning=value is not None)
        chat.delta(value, restart=True)
        chat.turn(value)
        chat.title(value)
        chat.settled(value, value)
        chat.rewritten()
        chat.hook(value)
        with chat.tool(value, value) as tool:
            tool.result = value
        with chat.tool(value, value, call="c1"):
            pass
        try:
            with chat.tool("raises", value):
                raise OddError(value)
        except OddError as error:
            assert error.args == (value,) or value != value
        chat.rotate(value)
        chat.delta("after")
        chat.reset(value).delta("in its place")
        chat.end(value)
print("still here")
print("and here", file=sys.stderr)
"""


def run(
    world: World, source: str, *switches: str, **variables: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, *switches, world.script(source)],
        env=world.env | variables,
        cwd=world.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=DEADLINE,
    )


@pytest.fixture
def waiting(world: World) -> socket.socket:
    """A listening socket, and a spool folder to go with it."""
    (world.folder / "spool").mkdir()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.path.join(world.env["XDG_RUNTIME_DIR"], "w.sock"))
    listener.listen(1)
    listener.setblocking(False)
    return listener


def variables(world: World, waiting: socket.socket) -> dict[str, str]:
    return {
        "HERMES_SUPERVISE_SOCKET": str(waiting.getsockname()),
        "HERMES_SUPERVISE_SPOOL": str(world.folder / "spool"),
    }


# -- not supervised ------------------------------------------------------------------------


@pytest.mark.parametrize("left", ["", "SOCKET", "SPOOL", "SOCKET SPOOL off"])
def test_unsupervised_it_does_nothing_at_all(
    world: World, waiting: socket.socket, left: str
) -> None:
    env = {"HERMES_SUPERVISE": "0"} if "off" in left else {}
    for name, value in variables(world, waiting).items():
        if name.rpartition("_")[2] in left.split():
            env[name] = value
    before = sorted(world.folder.rglob("*"))
    with waiting:
        ran = run(
            world,
            ODD
            + """
files = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")[:-1]]
assert not any("socket" in name or "spool" in name for name in files), files
""",
            "-X", "dev", "-W", "error", **env,
        )  # fmt: skip
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"still here\n", b"and here\n")
        with pytest.raises(BlockingIOError):
            waiting.accept()
    assert [path for path in sorted(world.folder.rglob("*")) if path.name != "agent.py"] == before


def test_acknowledged_says_whether_everything_is_journalled(world: World) -> None:
    agent = world.supervise(
        """
chat = session("chat")
for line in sys.stdin:
    chat.message("user", line.strip())
    ready(str(chat.acknowledged(0.2 if line.strip() == "unheard" else 20)))
    if line.strip() == "odd":
        for odd in (None, "soon", 10 ** 5000, float("nan")):
            chat.message("user", "odd")
            ready(str(chat.acknowledged(odd)))
""",
        "--sync", "always", stdin=subprocess.PIPE,
    )  # fmt: skip
    said = agent.process.stdin
    assert said is not None

    def say(word: bytes) -> str:
        said.write(word + b"\n")
        said.flush()
        return agent.wait_for("")

    assert say(b"heard") == "True"
    [journal] = [path for run in world.runs() for path in run.glob("*.log")]
    assert b"heard" in journal.read_bytes()
    os.kill(agent.pid, signal.SIGSTOP)
    assert say(b"unheard") == "False"
    os.kill(agent.pid, signal.SIGCONT)
    assert say(b"heard again") == "True"
    assert b"unheard" in journal.read_bytes()
    assert say(b"odd") == "True"
    for _ in range(4):
        assert agent.wait_for("") in ("True", "False"), "whatever the timeout is"
    agent.finish()


STRUCK = """
from hermes_supervise.agent_shim import ring, stream

chat = session("chat")
chat.message("user", "begin")
assert chat.acknowledged(20)

def strike(owner, name, what):
    \'\'\'Have this happen once, where `owner` handles the record.\'\'\'
    real = getattr(owner, name)
    def struck(*arguments):
        if any(b"struck" in one for one in arguments if isinstance(one, bytes)):
            setattr(owner, name, real)
            what()
        return real(*arguments)
    setattr(owner, name, struck)
"""


def test_acknowledged_is_false_within_a_call_that_sends(world: World) -> None:
    """A handler reports, asks and exits: the call that it interrupted has not sent it yet."""
    agent = world.supervise(
        STRUCK
        + """
def handler():
    chat.message("user", "by the handler")
    before = time.process_time()
    ready(f"in it {chat.acknowledged(3)} {time.process_time() - before < 1}")

strike(stream.frames, "encode", handler)
chat.message("user", "struck")
ready(f"behind it {chat.acknowledged(20)}")
forever()
"""
    )
    assert agent.wait_for("in it") == "in it False True", "at once, and truthfully"
    assert agent.wait_for("behind it") == "behind it True"
    agent.kill_agent()
    agent.finish()
    said = [content for _, content in short(world.messages("chat"))]
    assert said == ["begin", "struck", "by the handler"]


@pytest.mark.parametrize("place", ['stream.frames, "encode"', 'ring.Ring, "put"'])
def test_acknowledged_first_sends_what_an_interrupted_call_has_left(
    world: World, place: str
) -> None:
    agent = world.supervise(
        STRUCK
        + f"""
def interrupt():
    raise KeyboardInterrupt

strike({place}, interrupt)
try:
    chat.message("user", "struck")
except KeyboardInterrupt:
    ready("cut off")
ready(f"asked {{chat.acknowledged(20)}}")
forever()
"""
    )
    agent.wait_for("cut off")
    assert agent.wait_for("asked") == "asked True"
    [run] = world.runs()
    assert any(b"struck" in path.read_bytes() for path in run.glob("*.log"))
    agent.kill_agent()
    agent.finish()
    assert [content for _, content in short(world.messages("chat"))] == ["begin", "struck"]


def test_what_the_supervisor_read_from_the_ring_need_not_be_sent(world: World) -> None:
    agent = world.supervise(
        STRUCK
        + """
chat.message("assistant", "long " * 10_000)
sys.stdin.readline()
ready(f"asked {chat.acknowledged(float('inf'))} {chat._link.faults}")
""",
        stdin=subprocess.PIPE,
    )
    until(lambda: any(b"long" in p.read_bytes() for r in world.runs() for p in r.glob("*.log")),
          "the supervisor has looked into the ring")  # fmt: skip
    agent.send_line()
    assert agent.wait_for("asked") == "asked True 0"
    agent.finish()


def test_unsupervised_nothing_is_acknowledged(world: World) -> None:
    ran = run(world, 'print(session("chat").acknowledged(20))')
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"False\n", b"")


def test_unsupervised_it_imports_next_to_nothing(world: World) -> None:
    ran = run(
        world,
        """
with session("chat") as chat:
    chat.message("user", "hello")
    with chat.tool("look", {"at": 1}) as tool:
        tool.result = {"seen": True}
print([name for name in ("json", "socket", "_socket", "select", "typing") if name in sys.modules])
""",
        "-S",
        PYTHONPATH=str(_importable(world)),
    )
    assert (ran.stdout, ran.stderr) == (b"[]\n", b"")


def _importable(world: World) -> Path:
    """A folder with nothing but our package, as a supervised agent without it has it."""
    import hermes_supervise.agent_shim as shim

    home = world.folder / "importable"
    package = home / "hermes_supervise"
    package.mkdir(parents=True)
    source = Path(shim.__file__).parent
    (package / "agent_shim").symlink_to(source)
    (package / "ipc").symlink_to(source.parent / "ipc")
    return home


# -- silence -------------------------------------------------------------------------------


def test_supervised_it_takes_odd_arguments_as_well(world: World) -> None:
    agent = world.run([sys.executable, "-X", "dev", "-W", "error", world.script(ODD)], "--quiet")
    assert agent.finish() == 0
    assert (agent.output, agent.errors) == (b"still here\n", b"and here\n")


@pytest.mark.parametrize("fault", ["nobody listens", "nowhere to spool", "both", "a dead line"])
def test_output_is_byte_for_byte_the_same_with_every_fault(
    world: World, waiting: socket.socket, fault: str
) -> None:
    source = """
with session("chat") as chat:
    chat.message("user", "hello")
    for number in range(200):
        chat.delta("x" * 3000)
    ready("out")
    print("err", file=sys.stderr)
thread = threading.Thread(target=session("other").delta, args=("from a thread",))
thread.start()
thread.join()
child = os.fork()
if child == 0:
    chat.delta("from a child")
    sys.exit(5)
os.waitpid(child, 0)
raise SystemExit("last words")
"""
    plain = run(world, source, "-X", "dev", "-W", "error")
    env = variables(world, waiting)
    if fault in ("nobody listens", "both"):
        waiting.close()
    if fault in ("nowhere to spool", "both"):
        (world.folder / "spool").rmdir()
    if fault == "a dead line":
        waiting.shutdown(socket.SHUT_RDWR)
    with waiting:
        faulty = run(world, source, "-X", "dev", "-W", "error", **env)
    assert (plain.returncode, plain.stdout, plain.stderr) == (1, b"out\n", b"err\nlast words\n")
    assert (faulty.returncode, faulty.stdout, faulty.stderr) == (
        plain.returncode,
        plain.stdout,
        plain.stderr,
    )


def test_an_agents_own_exceptions_pass_through_unchanged(world: World) -> None:
    source = """
import traceback
class Mine(BaseException):
    def __str__(self): raise RuntimeError("no text")
def attempt(error):
    try:
        with session("chat") as chat:
            with chat.tool("look"):
                raise error
    except BaseException as caught:
        assert caught is error
        assert caught.__context__ is None and caught.__cause__ is None
        print([frame.name for frame in traceback.extract_tb(caught.__traceback__)])
for error in (ValueError("x"), KeyboardInterrupt(), SystemExit(3), GeneratorExit(), Mine()):
    attempt(error)
with session("chat") as chat, chat.tool("look"):
    raise ZeroDivisionError("to the end")
"""
    plain = run(world, source)
    assert plain.stdout == b"['attempt']\n" * 5
    assert plain.returncode == 1
    agent = world.supervise(source, "--quiet")
    assert agent.finish() == 1
    assert (agent.output, agent.errors) == (plain.stdout, plain.stderr)
    ended = world.session("chat")
    assert ended is not None and ended["end_reason"] == "failed: ZeroDivisionError"


# -- what arrives --------------------------------------------------------------------------


def test_content_of_every_shape_is_recovered_in_some_shape(world: World) -> None:
    agent = world.supervise(
        r"""
class Odd:
    def __repr__(self): raise RuntimeError("no text")
loop = ["round"]
loop.append(loop)
chat = session("chat")
chat.message("user", None)
chat.message("user", [{"type": "text", "text": "a list"}])
chat.message("user", "lone \ud800 surrogate")
chat.message("user", "nul \x00 inside")
chat.message("user", b"bytes")
chat.message("user", {"set": {1}})
chat.message("user", {"keys": {(1, 2): "three"}})
chat.message("user", loop)
chat.message("user", {"odd": Odd()})
chat.delta(None)
chat.delta("stream\ud800ed")
ready()
forever()
"""
    )
    agent.wait_for("ready")
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    rows = world.messages("chat")
    assert len(rows) == 10
    texts = [row["content"] for row in rows]
    assert texts[0] is None
    assert "a list" in texts[1]
    assert texts[2].startswith("lone ") and texts[2].endswith(" surrogate")
    assert texts[3].startswith("nul ")
    assert "bytes" in texts[4]
    assert "{1}" in texts[5]
    assert "(1, 2)" in texts[6] and "three" in texts[6]
    assert "round" in texts[7]
    assert "<Odd>" in texts[8]
    assert texts[9].startswith("stream") and texts[9].endswith("ed")
    assert [problem for report in world.reports() for problem in report["problems"]] == []


def test_two_objects_for_one_session_do_not_replace_each_others_messages(world: World) -> None:
    agent = world.supervise(
        """
for text in ("one", "two"):
    chat = session("chat")
    chat.message("user", text)
    chat.message("assistant", text.upper())
ready()
forever()
"""
    )
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()
    said = [("user", "one"), ("assistant", "ONE"), ("user", "two"), ("assistant", "TWO")]
    assert short(world.messages("chat")) == said


def test_a_message_with_the_uid_of_an_earlier_one_replaces_it(world: World) -> None:
    agent = world.supervise(
        """
chat = session("chat")
uid = chat.message("user", "draft")
chat.message("assistant", "reply")
chat.message("user", "final", uid=uid)
ready()
forever()
"""
    )
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()
    assert short(world.messages("chat")) == [("user", "final"), ("assistant", "reply")]


def test_a_tool_call_is_announced_and_answered_for_the_agent(world: World) -> None:
    agent = world.supervise(
        """
chat = session("chat")
chat.message("user", "look")
with chat.tool("look", {"at": "it"}) as tool:
    tool.result = {"seen": True}
try:
    with chat.tool("fail", "{}"):
        raise ValueError("cannot")
except ValueError:
    pass
ready()
forever()
"""
    )
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()
    rows = world.messages("chat")
    assert [row["role"] for row in rows] == ["user", "assistant", "tool", "assistant", "tool"]
    [call] = json.loads(rows[1]["tool_calls"])
    assert call["function"] == {"name": "look", "arguments": '{"at": "it"}'}
    assert rows[2]["tool_call_id"] == call["id"]
    assert json.loads(rows[2]["content"]) == {"seen": True}
    assert json.loads(rows[4]["content"]) == {"error": "ValueError: cannot"}


def test_a_session_with_a_very_long_id_streams_as_well(world: World) -> None:
    agent = world.supervise(
        """
chat = session("x" * 70000)
chat.delta("stream")
chat.delta("ed")
chat.delta("thought", reasoning=True)
ready()
forever()
"""
    )
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()
    [row] = world.messages("x" * 70000)
    assert (row["content"], row["reasoning"]) == ("streamed", "thought")


def test_a_restarted_reply_drops_what_was_streamed_before(world: World) -> None:
    agent = world.supervise(
        """
chat = session("chat")
chat.delta("wrong ")
chat.delta("right ", restart=True)
chat.delta("again")
ready()
forever()
"""
    )
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()
    assert short(world.messages("chat")) == [("assistant", "right again")]


def test_a_character_split_between_two_deltas_is_one_character_in_the_end(world: World) -> None:
    """An agent that counts in UTF-16 may split one. A half alone cannot be stored."""
    agent = world.supervise(
        r"""
chat = session("chat")
for piece in ("grin \ud83d", "\ude00 and", " wink \ud83d", "\ude09 ", "alone \ud83d"):
    chat.delta(piece)
    chat.delta(piece, reasoning=True)
ready()
forever()
"""
    )
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()
    [row] = world.messages("chat")
    whole = "grin \U0001f600 and wink \U0001f609 alone \ufffd"
    assert (row["content"], row["reasoning"]) == (whole, whole)


def test_a_supervised_process_loads_the_whole_shim_with_the_sdk(
    world: World, waiting: socket.socket
) -> None:
    """Later an upgrade may have replaced the files."""
    with waiting:
        ran = run(
            world,
            """
def ours():
    return {name for name in sys.modules if "hermes_supervise" in name}
before = ours()
with session("chat") as chat:
    chat.message("user", "hello")
    chat.delta("x" * 200_000)
    with chat.tool("look"):
        pass
    chat.acknowledged(0)
if os.fork() == 0:
    chat.delta("child")
    print(ours() - before, len(before) > 5)
    os._exit(0)
os.wait()
print(ours() - before)
""",
            **variables(world, waiting),
        )
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert b"set()\n" in ran.stdout and b"{" not in ran.stdout
