"""The agent's end is our end, and its streams are its own: as if we had not been there (G5)."""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import World, alive, child_of, children, kill, until, wait_dead

CODES = [0, 1, 2, 7, 125, 126, 127, 128, 255]
DEADLY = ["HUP", "INT", "QUIT", "ILL", "ABRT", "KILL", "SEGV", "PIPE", "TERM", "USR1"]
# Without 32 and 33, which are the C library's own.
STANDARD = (1 << 31) - 1


def end_without_us(world: World, command: list[str]) -> int:
    plain = subprocess.run(command, env=world.env, cwd=world.folder, capture_output=True)
    return plain.returncode


# -- how it ends -------------------------------------------------------------------------------


@pytest.mark.parametrize("code", CODES)
def test_an_exit_code_is_passed_through(world: World, code: int) -> None:
    command = ["/bin/sh", "-c", f"exit {code}"]
    agent = world.run(command)
    assert agent.finish() == end_without_us(world, command) == code
    assert agent.errors == b""


@pytest.mark.parametrize("name", DEADLY)
def test_death_by_a_signal_is_seen_as_that_signal(world: World, name: str) -> None:
    command = ["/bin/sh", "-c", f"kill -{name} $$"]
    agent = world.run(command)
    assert agent.finish() == end_without_us(world, command) == -signal.Signals[f"SIG{name}"]


def test_an_agent_that_is_dead_at_once_is_not_missed(world: World) -> None:
    """Its SIGCHLD may come before the loop runs."""
    for code in range(20):
        assert world.run(["/bin/sh", "-c", f"exit {code}"]).finish() == code


def test_sigchld_blocked_by_whoever_started_us_does_not_hide_the_end(world: World) -> None:
    agent = world.supervise(
        "ready(str(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])) == [signal.SIGCHLD]))",
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD]),
    )
    agent.wait_for("True")  # it has the mask that it would have had
    assert agent.finish() == 0


def test_no_second_core_file_is_written(world: World) -> None:
    """The agent forbids its own; one that appears is ours."""

    def allow() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)

    agent = world.run(["/bin/sh", "-c", "ulimit -c 0; kill -ABRT $$"], preexec_fn=allow)
    status = os.waitpid(agent.pid, 0)[1]
    assert os.WTERMSIG(status) == signal.SIGABRT
    assert not os.WCOREDUMP(status)
    assert not list(world.folder.glob("*core*"))
    agent.process.returncode = 0


def test_trouble_with_our_own_folder_does_not_change_the_agents_status(world: World) -> None:
    agent = world.run(["/bin/sh", "-c", f"rm -r {world.state}; exit 7"])
    assert agent.finish() == 7
    assert b"Traceback" not in agent.errors


def test_a_fault_of_ours_leaves_the_agent_running_and_its_status_alone(world: World) -> None:
    """A journal that raises what nobody foresaw: supervision ends, the agent does not."""
    broken = world.folder / "broken.py"
    broken.write_text(
        """
from hermes_supervise.supervisor.storage import journal
from hermes_supervise.supervisor.__main__ import main
def fault(self, data): raise ZeroDivisionError
journal.Journal.append = fault
main()
"""
    )
    source = """
with session("chat") as chat:
    chat.message("user", "hello")
    while os.path.exists(os.environ["HERMES_SUPERVISE_SOCKET"]):
        chat.delta("more")
        time.sleep(0.01)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    ready()
    forever()
"""
    process = subprocess.Popen(
        [sys.executable, str(broken), "--", sys.executable, world.script(source)],
        env=world.env, cwd=world.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.terminate()
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 7
    assert errors.count(b"\n") == 1, errors
    assert b"ZeroDivisionError" in errors


# -- what cannot be run ------------------------------------------------------------------------


def test_a_command_that_is_not_there_is_127(world: World) -> None:
    for command in ("no-such-agent", "/no/such/agent", ""):
        agent = world.run([command])
        assert agent.finish() == 127
        assert agent.errors == f"hermes-supervise: {command}: not found\n".encode()
        assert world.runs() == [], "nothing is left of a run that never was"


def test_a_command_that_cannot_be_executed_is_126_and_says_how_to_change_that(
    world: World,
) -> None:
    plain = world.folder / "plain"
    plain.write_text("text")
    for command, remedy in ((plain, f"chmod +x {plain}"), (world.folder, "is a directory")):
        agent = world.run([str(command)])
        assert agent.finish() == 126
        assert remedy in agent.errors.decode()


@pytest.mark.parametrize("supervised", [True, False])
def test_a_script_without_a_first_line_runs_as_in_a_shell(world: World, supervised: bool) -> None:
    folder = world.folder / "bin"
    folder.mkdir()
    script = folder / "agent"
    script.write_text('echo "$1"; exit 7\n')
    script.chmod(0o755)
    world.env["PATH"] = f"{folder}:{world.env['PATH']}"
    if not supervised:
        world.state.write_text("in the way")
    for command in ("agent", str(script)):
        agent = world.run([command, "an argument"])
        assert agent.finish() == 7
        assert agent.output == b"an argument\n"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--quiet"], "no command given"),
        (["--"], "no command given"),
        (["--nonsense", "--", "true"], "unknown option --nonsense"),
        (["-x", "true"], "unknown option -x"),
        (["--ophans", "leave", "true"], "--orphans"),
        (["--orphans", "levae", "true"], "'levae' is not terminate, report or leave"),
        (["--grace"], "--grace needs a value"),
        (["--grace", "soon", "true"], "--grace: 'soon'"),
        (["--grace=-1", "true"], "--grace: '-1'"),
        (["--grace=nan", "true"], "--grace: 'nan'"),
        (["--sync", "never", "true"], "--sync: 'never'"),
        (["--strict=yes", "true"], "--strict takes no value"),
        (["--on-session-end", "notes 'x", "true"], "is not a command: no closing quotation"),
        (["--on-session-reset", " ", "true"], "--on-session-reset: ' ' is not a command"),
    ],
)
def test_what_is_not_understood_is_125_and_says_what(
    world: World, arguments: list[str], word: str
) -> None:
    answer = world.call(*arguments)
    assert answer.returncode == 125
    assert word in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert answer.stdout == ""


def test_without_any_argument_it_says_how_it_is_used(world: World) -> None:
    answer = world.call()
    assert (answer.returncode, answer.stdout) == (125, "")
    brief, _, more = answer.stderr.rpartition("\n\n")
    assert world.call("--help").stdout.startswith(brief), "without the options, which are long"
    assert "\noptions:" not in brief and "--help" in more


def test_help_and_version_are_commands_as_well(world: World) -> None:
    assert world.call("help").stdout == world.call("--help").stdout
    assert world.call("version").stdout == world.call("--version").stdout
    assert world.call("help", "hooks").stdout == world.call("hooks", "--help").stdout
    assert world.call("help", "no-such").returncode == 2


@pytest.mark.parametrize(
    ("status", "arguments"),
    [
        (2, ["show", "no-such"]), (2, ["sessions", "no-such"]), (2, ["sessions", "forget"]),
        (2, ["sweep", "--db", "/no/such.db"]), (2, ["hooks", "retry"]), (2, ["ps", "--nonsense"]),
        (125, ["show"]), (125, ["recover"]), (125, ["hooks"]), (125, ["ps"]),
    ],
)  # fmt: skip
def test_an_error_is_on_standard_error_with_a_status_and_an_object_for_programs(
    world: World, status: int, arguments: list[str]
) -> None:
    if status == 125:
        spoil(world, "a state folder open to others")
    plain = world.call(*arguments)
    assert (plain.returncode, plain.stdout) == (status, "")
    assert "hermes-supervise: " in plain.stderr
    answer = world.call(*arguments, "--json")
    assert answer.returncode == status
    assert list(json.loads(answer.stdout)) == ["error"]
    assert answer.stderr == plain.stderr


def test_a_home_that_cannot_be_written_is_named_with_the_variable_that_moves_the_folder(
    world: World,
) -> None:
    world.env["HOME"] = "/sys"  # nobody can make a folder there, not even root
    del world.env["XDG_STATE_HOME"]
    answer = world.call("--", "echo", "ran")
    assert (answer.returncode, answer.stdout) == (0, "ran\n")
    assert "/sys/.local/state/hermes-supervise" in answer.stderr
    assert "ermi" in answer.stderr, "why"
    assert "XDG_STATE_HOME" in answer.stderr


def test_a_word_that_is_neither_a_program_nor_ours_is_answered_with_what_there_is(
    world: World,
) -> None:
    for word, hint in (
        ("session", " sessions"),
        ("xyzzy", "hermes-supervise --help"),
        ("./x", "\n"),
    ):
        answer = world.call(word, "chat")
        assert answer.returncode == 127
        assert f"{word}: not found" in answer.stderr
        assert hint in answer.stderr.partition("not found")[2]


@pytest.mark.parametrize("before", [[], ["--quiet", "--grace", "5"]])
def test_help_and_version_work_wherever_an_option_may_be(world: World, before: list[str]) -> None:
    answer = world.call(*before, "--help")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith("usage: hermes-supervise ")
    assert "--on-session-end CMD" in answer.stdout
    assert [line for line in answer.stdout.splitlines() if len(line) > 80] == []
    answer = world.call(*before, "-V")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith("hermes-supervise ")


def test_a_character_that_the_locale_does_not_have_is_no_reason_to_fail(world: World) -> None:
    world.env["PYTHONIOENCODING"] = "ascii"
    answer = world.call("show", "schön")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "sch" in answer.stderr
    assert world.call("--help").returncode == 0


def test_a_setting_in_the_environment_that_is_not_understood_is_named(world: World) -> None:
    world.env["HERMES_SUPERVISE_GRACE"] = "soon"
    answer = world.call("--", "true")
    assert answer.returncode == 125
    assert "HERMES_SUPERVISE_GRACE: 'soon'" in answer.stderr


# -- when supervision cannot be set up ---------------------------------------------------------


def spoil(world: World, what: str) -> None:
    state = world.state / "hermes-supervise"
    runtime = Path(world.env["XDG_RUNTIME_DIR"]) / "hermes-supervise"
    if what == "a file in the way of the state folder":
        world.state.write_text("")
    elif what == "a state folder open to others":
        state.mkdir(parents=True)
        state.chmod(0o755)
    elif what == "a file in the way of the runtime folder":
        runtime.write_text("")
    elif what == "a runtime folder open to others":
        runtime.mkdir()
        runtime.chmod(0o770)
    elif what == "a runtime folder that is a link":
        runtime.symlink_to(world.folder)
    else:
        runtime.mkdir(0o700)
        os.chown(runtime, 12345, 12345)


SPOILED = [
    "a file in the way of the state folder",
    "a state folder open to others",
    "a file in the way of the runtime folder",
    "a runtime folder open to others",
    "a runtime folder that is a link",
]
if os.getuid() == 0:  # nobody else can give a folder away
    SPOILED.append("a runtime folder of another user")


@pytest.mark.parametrize("what", SPOILED)
def test_strict_refuses_to_run_the_agent_unsupervised(world: World, what: str) -> None:
    spoil(world, what)
    agent = world.run(["/bin/sh", "-c", "echo ran; exit 7"], "--strict")
    assert agent.finish() == 125
    assert agent.output == b""
    assert agent.errors.startswith(b"hermes-supervise: cannot supervise: ")
    assert agent.errors.count(b"\n") == 1


@pytest.mark.parametrize("what", SPOILED)
def test_otherwise_the_agent_runs_without_us_after_one_line(world: World, what: str) -> None:
    spoil(world, what)
    agent = world.run(["/bin/sh", "-c", "echo ran; exit 7"])
    assert agent.finish() == 7
    assert agent.output == b"ran\n"
    assert agent.errors.startswith(b"hermes-supervise: cannot supervise, ")
    assert agent.errors.count(b"\n") == 1
    assert world.state.is_file() or world.runs() == []


def test_an_agent_without_us_has_its_signals_and_its_death(world: World) -> None:
    world.state.write_text("in the way")
    agent = world.run(["/bin/sh", "-c", "grep SigIgn /proc/self/status; kill -TERM $$"])
    assert agent.finish() == -signal.SIGTERM
    assert int(agent.output.split()[1], 16) & STANDARD == 0, (
        "Python's ignored SIGPIPE is not passed down"
    )


def test_rubbish_among_the_runs_does_not_keep_us_from_supervising(world: World) -> None:
    runs = world.state / "hermes-supervise" / "runs"
    runs.mkdir(parents=True)
    for folder in (runs.parent, runs):
        folder.chmod(0o700)
    (runs / "stray").write_text("not a run")
    agent = world.run(["/bin/sh", "-c", "test -S $HERMES_SUPERVISE_SOCKET"], "--strict")
    assert agent.finish() == 0, agent.errors


# -- its streams and its environment -----------------------------------------------------------


def test_piped_input_and_output_pass_unchanged(world: World) -> None:
    data = bytes(range(256)) * 4096
    agent = world.run(["/bin/cat"], stdin=subprocess.PIPE)
    output, errors = agent.process.communicate(data, timeout=30)
    assert output == data
    assert errors == b""
    assert agent.process.returncode == 0


def test_the_reader_sees_the_end_when_the_agent_closes_its_output_and_lives_on(
    world: World,
) -> None:
    agent = world.run(["/bin/sh", "-c", "echo last; exec >&-; read line"], stdin=subprocess.PIPE)
    assert agent.process.stdout is not None
    assert agent.process.stdout.read() == b"last\n", "ends although agent and supervisor live"
    assert agent.process.poll() is None
    agent.process.communicate(b"go\n", timeout=30)
    assert agent.process.returncode == 0


def test_the_writer_sees_a_broken_pipe_when_the_agent_closes_its_input(world: World) -> None:
    reading, writing = os.pipe()
    source = "os.close(0); ready(); forever()"
    agent = world.supervise(source, stdin=reading)
    os.close(reading)
    agent.wait_for("ready")
    # We let go right after the start, which may be a moment later than the agent does.
    until(lambda: broken(writing), "EPIPE for the writer")
    os.close(writing)
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL


def broken(fd: int) -> bool:
    try:
        os.write(fd, b"x")
    except BrokenPipeError:
        return True
    return False


def test_we_hold_nothing_of_what_the_agent_was_given(world: World) -> None:
    """Standard input and output, and any other descriptor that was handed down."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    agent = world.supervise(
        f"""
os.write({writing}, b"spoken")
os.close({writing})
ready()
forever()
""",
        stdin=subprocess.PIPE,
        pass_fds=[writing],
    )
    os.close(writing)
    agent.wait_for("ready")
    assert agent.agent
    assert os.read(reading, 100) == b"spoken"
    assert os.read(reading, 100) == b"", "the pipe ends although agent and supervisor live"
    os.close(reading)
    given = {f"/proc/{agent.agent}/fd/{fd}" for fd in (0, 1)}
    pipes = {os.readlink(path) for path in given}
    standby = next(pid for pid in children(agent.pid) if pid != agent.agent)
    for pid in (agent.pid, standby):
        held = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}
        assert not held & pipes
    agent.kill_agent()
    agent.finish()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_stay_closed_and_harm_nothing(world: World, closed: str) -> None:
    """With 0, 1 or 2 free, a file of ours could take that number, and be taken for a stream."""
    found = world.folder / "found"
    source = f"""
import json
def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
standard = [is_open(fd) for fd in (0, 1, 2)]
with session("chat") as chat:
    chat.message("user", "hello")
    chat.delta("Hel")
    later = [is_open(fd) for fd in (0, 1, 2)]  # the shim has its socket and its ring by now
    with open({str(found)!r}, "w") as file:
        json.dump([standard, later], file)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    words = [*world.command, "--", sys.executable, world.script(source)]
    line = " ".join(words) + f" {closed}"
    plain = subprocess.run(
        ["/bin/sh", "-c", "exec " + line], env=world.env, cwd=world.folder,
        stdin=subprocess.DEVNULL, capture_output=True, timeout=60,
    )  # fmt: skip
    assert plain.returncode == -signal.SIGKILL
    shut = [sign in f" {closed}" for sign in ("<&-", " >&-", "2>&-")]
    standard, later = json.loads(found.read_text())
    assert standard == later == [not one for one in shut]
    assert plain.stdout == b""
    assert [row["content"] for row in world.messages("chat")] == ["hello", "Hel"]
    assert world.runs() == []


def test_the_environment_and_the_arguments_reach_the_agent(world: World) -> None:
    world.env["GREETING"] = "grüß dich\nzwei"
    agent = world.run(["/bin/sh", "-c", 'printf "%s|%s|%s" "$GREETING" "$1" "$PWD"', "sh", "--x y"])
    assert agent.finish() == 0
    assert agent.output.decode() == f"grüß dich\nzwei|--x y|{world.folder}"


def test_sighup_that_was_ignored_at_the_start_stays_ignored(world: World) -> None:
    """nohup."""
    nohup = shutil.which("nohup")
    assert nohup is not None
    process = subprocess.Popen(
        [nohup, *world.command, "--", "/bin/sh", "-c", "grep SigIgn /proc/self/status; read line"],
        env=world.env, cwd=world.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    ignored = int(process.stdout.readline().split()[1], 16) & STANDARD
    assert ignored == 1 << (signal.SIGHUP - 1)
    process.send_signal(signal.SIGHUP)
    os.kill(child_of(process.pid), signal.SIGHUP)
    process.communicate(b"go on\n", timeout=30)
    assert process.returncode == 0


def test_signals_that_python_ignores_are_default_for_the_agent(world: World) -> None:
    agent = world.run(["/bin/sh", "-c", "grep -E 'SigIgn|SigBlk' /proc/self/status"])
    agent.finish()
    assert [int(line.split()[1], 16) & STANDARD for line in agent.output.splitlines()] == [0, 0]


# -- nothing stays -----------------------------------------------------------------------------


def test_nothing_is_left_of_a_run(world: World) -> None:
    """No process, no zombie, no socket, no folder."""
    agent = world.supervise(
        """
with session("chat") as chat:
    chat.message("user", "hello")
    ready()
    sys.stdin.read(1)
""",
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    agent.wait_for("ready")
    ours = [agent.pid, *until(lambda: (c := children(agent.pid)) and len(c) == 2 and c)]
    runtime = Path(world.env["XDG_RUNTIME_DIR"]) / "hermes-supervise"
    assert len(list(runtime.iterdir())) == 1
    assert len(world.runs()) == 1
    agent.process.communicate(b"x", timeout=30)
    assert agent.process.returncode == 0
    assert not [pid for pid in ours if Path(f"/proc/{pid}").exists()]
    assert not list(runtime.iterdir())
    assert world.runs() == []


@pytest.mark.parametrize("successor", [True, False])
def test_a_standby_ends_with_its_killed_supervisor(world: World, successor: bool) -> None:
    """At once, or with the agent, if it is the successor."""
    agent = world.supervise("ready()\nforever()", *([] if successor else ["--no-adopt"]))
    agent.wait_for("ready")
    child = agent.agent
    standby = until(lambda: [pid for pid in children(agent.pid) if pid != child])[0]
    agent.process.kill()
    agent.process.wait()
    if not successor:
        wait_dead(standby)
    assert alive(child), "the agent goes on"
    os.kill(child, signal.SIGKILL)
    wait_dead(standby)


# -- as the first process of a container -------------------------------------------------------


@pytest.mark.skipif(os.getuid() != 0, reason="only root may make a pid namespace")
def test_as_process_one_it_reaps_orphans_and_reports_a_death_by_its_exit_code(world: World) -> None:
    """Process 1 cannot die of its own signal; 128+n is what a shell would say."""
    source = """
# An orphan that ends: a zombie for ever, if process 1 does not reap it.
orphan = os.path.join(os.getcwd(), "orphan")
if os.fork() == 0:
    if os.fork() == 0:
        with open(orphan + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(orphan + ".new", orphan)
        os._exit(0)
    os._exit(0)
os.wait()
while not os.path.exists(orphan):
    time.sleep(0.001)
pid = open(orphan).read()
for _ in range(3000):
    if not os.path.exists(f"/proc/{pid}"):
        ready(f"reaped, our parent is {os.getppid()}")
        break
    time.sleep(0.01)
with session("chat") as chat:
    chat.message("user", "hello")
    chat.delta("Hel")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    unshare = shutil.which("unshare")
    assert unshare is not None
    done = subprocess.run(
        [unshare, "--pid", "--fork", "--mount-proc", *world.command, "--",
         sys.executable, world.script(source)],
        env=world.env, cwd=world.folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == b"reaped, our parent is 1\n", done.stderr
    assert done.returncode == 128 + signal.SIGKILL
    assert [row["content"] for row in world.messages("chat")] == ["hello", "Hel"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root may make a pid namespace")
def test_as_process_one_it_passes_a_signal_on_and_ends_as_the_agent_does(world: World) -> None:
    """As a container is stopped. Process 1 gets no signal that it has no handler for."""
    source = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
with session("chat") as chat:
    chat.message("user", "hello")
    ready(f"below {os.getppid()}")
    forever()
"""
    inside = shlex.join([*world.command, "--", sys.executable, world.script(source)])
    run = world.shell(f"exec unshare --pid --fork --mount-proc {inside}")
    assert run.wait_for("below") == "below 1"
    kill(child_of(run.pid), signal.SIGTERM)
    assert run.finish() == 7, run.errors
    assert [row["content"] for row in world.messages("chat")] == ["hello"]
