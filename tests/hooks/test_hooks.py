"""The queue of hooks: each runs once to success or is reported, whoever dies on the way."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hermes_supervise.supervisor.hooks import queue, runner
from hermes_supervise.supervisor.hooks.entry import MAX_CUT_OFF, Entry
from page_examples import examples
from support import World, alive, children, has_open, kill, until, wait_dead

TALKS = """
chat = session("chat", model="m")
chat.message("user", "q")
ready()
forever()
"""
ONCE = ("--hook-retry", "none")
AT_ONCE = ("--hook-retry", "0,0")


def noting(world: World, then: str = "") -> str:
    """A command that appends the event it gets to `hooked`, and then does something else."""
    return f"/bin/sh -c 'cat >> {world.hooked}; echo >> {world.hooked}; {then or ':'}'"


def killed(world: World, *options: str, source: str = TALKS) -> str:
    """Run an agent and kill it; what the supervisor said."""
    agent = world.supervise(source, *options)
    agent.wait_for("ready")
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    return str(agent.errors.decode())


def listed(world: World) -> list[dict[str, Any]]:
    answer = world.call("hooks", "list", "--json")
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)["hooks"]
    assert isinstance(found, list)
    return found


def in_state(world: World, state: str) -> list[dict[str, Any]]:
    """The hooks there are, as `hooks list` tells of them, if all are in this state."""
    files = (world.state / "hermes-supervise" / "hooks").rglob("*.json")
    try:
        states = {Entry(**json.loads(file.read_text())).state for file in files}
    except FileNotFoundError:
        return []  # one has just moved
    return listed(world) if states == {state} else []


def attempts(world: World) -> list[tuple[int, bool]]:
    extras = [event["extra"] for event in world.events()]
    return [(extra["attempt"], extra["repeated"]) for extra in extras]


def queued(world: World, *options: str) -> None:
    """A session is finished, its hooks are queued, and nobody is left to run them."""
    agent = world.supervise(TALKS, "--no-adopt", *options)
    agent.wait_for("ready")
    [run] = world.runs()
    until(lambda: any(b'"q"' in f.read_bytes() for f in run.glob("*.log")), "the journal")
    agent.abandon()
    code = (
        "import sys; from hermes_supervise.supervisor.storage import run_folder as run\n"
        "from hermes_supervise.supervisor.run.recover import finish_left_behind\n"
        "found = run.claim(sys.argv[1]); finish_left_behind(found); run.retire(found)"
    )
    subprocess.run([sys.executable, "-c", code, run], env=world.env, check=True)
    assert world.runs() == [], "the run is settled, whatever its hooks do"
    assert in_state(world, "waiting")


# -- failing, given up, asked for anew -------------------------------------------------------


def test_a_hook_that_fails_is_tried_again_given_up_and_tried_by_hand(world: World) -> None:
    mended = world.folder / "mended"
    hook = noting(world, f"echo trouble; test -e {mended}")
    notice = killed(world, *AT_ONCE, "--on-session-end", hook)
    assert "1 failed (exit 1)" in notice
    [dead] = until(lambda: in_state(world, "dead"), "it is given up")
    assert attempts(world) == [(1, False), (2, True), (3, True)]
    assert (dead["attempts"], dead["outcome"], dead["output"]) == (3, "exit 1", "trouble\n")
    shown = world.call("hooks").stdout
    assert dead["id"] in shown
    assert "exit 1 (attempt 3)" in shown
    assert "trouble" in shown
    [report] = world.reports()
    assert [(ran["outcome"], ran["state"]) for ran in report["hooks"]] == [("exit 1", "dead")]

    retried = world.call("hooks", "retry", "--all")
    assert retried.returncode == 1 or "running" in retried.stdout, "it fails as before"
    until(lambda: in_state(world, "dead"), "it is given up again, after as many attempts")
    assert attempts(world)[3:] == [(4, True), (5, True), (6, True)]
    mended.touch()
    again = world.call("hooks", "retry", dead["id"][:6])
    assert again.returncode == 0, again.stdout + again.stderr
    until(lambda: in_state(world, "done"), "mended, it ends well")
    assert attempts(world)[6:] == [(7, True)]
    [report] = world.reports()
    assert [(ran["outcome"], ran["attempt"]) for ran in report["hooks"]] == [("ok", 7)]

    nothing = world.call("hooks", "retry", "--all", "--json")
    assert (nothing.returncode, json.loads(nothing.stdout)["hooks"]) == (0, [])
    refused = world.call("hooks", "retry", dead["id"], "--json")
    [problem] = json.loads(refused.stdout)["problems"]
    assert (refused.returncode, dead["id"] in problem) == (1, True)
    assert world.call("hooks", "retry", "no-such").returncode == 1
    assert len(world.events()) == 7, "what ended well is never run again"


def test_one_that_waits_for_its_next_attempt_is_listed_and_can_be_hastened(world: World) -> None:
    mended = world.folder / "mended"
    options = ("--hook-retry", "600", "--on-session-end", noting(world, f"test -e {mended}"))
    assert "1 failed (exit 1)" in killed(world, *options)
    [failed] = in_state(world, "failed")
    assert failed["next"] > failed["last"] + 500
    mended.touch()
    assert world.call("hooks", "retry", failed["id"]).returncode == 0
    assert attempts(world) == [(1, False), (2, True)]
    assert in_state(world, "done")


def test_a_hook_that_is_forgotten_is_gone_and_one_that_was_to_be_retried_is_not_run(
    world: World,
) -> None:
    options = ("--hook-retry", "600", "--on-session-end", noting(world, "false"))
    killed(world, *options, "--on-session-finalize", "true")
    failed, done = sorted(listed(world), key=lambda hook: hook["state"], reverse=True)
    assert (failed["state"], done["state"]) == ("failed", "done")
    answer = world.call("hooks", "forget", failed["id"][:6], "no-such", "--json")
    assert answer.returncode == 1, "one of them is not there"
    assert json.loads(answer.stdout)["forgotten"] == [failed["id"]]
    assert [hook["id"] for hook in listed(world)] == [done["id"]]
    assert json.loads(world.call("hooks", "forget", "--all", "--json").stdout) == {
        "forgotten": [done["id"]], "problems": [],
    }  # fmt: skip
    assert listed(world) == []
    assert world.call("recover").returncode == 0
    assert attempts(world) == [(1, False)]
    waiting = world.state / "hermes-supervise" / "hooks" / "waiting"
    until(lambda: not any(waiting.iterdir()), "its folder is gone")


def test_a_hook_that_runs_is_not_forgotten(world: World) -> None:
    gate = world.folder / "gate"
    os.mkfifo(gate)
    killed(world, "--hook-wait", "0.1", "--on-session-end", noting(world, f"read line < {gate}"))
    [running] = until(lambda: in_state(world, "running"), "it runs")
    assert world.call("hooks", "forget", running["id"]).returncode == 1
    gate.write_text("go\n")
    until(lambda: in_state(world, "done"), "it ends")


@pytest.mark.parametrize("command", ["/nowhere/to/be found", "/bin/sh -c 'kill -SEGV $$'"])
def test_whatever_failure_it_is_it_is_given_up_in_the_end_and_kept(
    world: World, command: str
) -> None:
    killed(world, *AT_ONCE, "--on-session-end", command)
    [dead] = until(lambda: in_state(world, "dead"), "it is given up")
    assert dead["attempts"] == 3
    assert dead["outcome"].startswith(("could not start: ", "killed by SIGSEGV"))


def test_a_hook_that_hangs_is_killed_with_all_it_started(world: World) -> None:
    pids = world.folder / "pids"
    hook = f"/bin/sh -c 'sleep 300 & echo $$ $! > {pids}; wait'"
    notice = killed(world, *ONCE, "--hook-timeout", "0.5", "--on-session-end", hook)
    assert "1 failed (timed out after 0.5 s)" in notice
    assert [hook["outcome"] for hook in in_state(world, "dead")] == ["timed out after 0.5 s"]
    for pid in map(int, pids.read_text().split()):
        wait_dead(pid)


# -- nobody waits for it ---------------------------------------------------------------------


def test_a_slow_hook_does_not_keep_the_terminal_and_goes_on_without_us(world: World) -> None:
    gate = world.folder / "gate"
    os.mkfifo(gate)
    hook = noting(world, f"read line < {gate}")
    notice = killed(world, "--hook-wait", "0.1", *world.hook, "--on-session-end", hook)
    assert re.search("[12] hooks? still running", notice)
    assert world.runs() == [], "the run's folder does not wait either"
    until(lambda: len(world.events()) == 2, "the first has ended, the second has begun")
    assert sorted(hook["state"] for hook in listed(world)) == ["done", "running"]
    assert "running since" in world.call("hooks").stdout
    gate.write_text("go\n")
    until(lambda: in_state(world, "done"), "it ended after we did")
    [report] = world.reports()
    assert [ran["outcome"] for ran in report["hooks"]] == ["ok", "ok"]
    until(lambda: world.inhabitants() == [], "its runner has gone, too")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a pid namespace here")
def test_as_process_1_it_waits_for_hooks_that_would_die_with_it(world: World) -> None:
    """As the entry point of a container: when it ends, the kernel ends all others."""
    dies = world.script('session("chat").message("user", "q")\nos.kill(os.getpid(), 9)\n')
    hook = noting(world, f"sleep 1; touch {world.folder}/through")
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", *world.command, "--hook-wait", "0.1",
         "--on-session-end", hook, "--", sys.executable, dies],
        env=world.env, cwd=world.folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if "unshare failed" in done.stderr:
        pytest.skip(f"no pid namespace can be made here: {done.stderr}")
    assert "1 hook" in done.stderr
    assert "failed" not in done.stderr
    assert (world.folder / "through").exists()


def test_a_supervisor_that_is_left_while_it_recovers_leaves_the_hooks_to_recovery(
    world: World,
) -> None:
    """Ctrl-C before anything was queued: state.db is locked, and the user does not wait."""
    import sqlite3

    world.home.mkdir()
    with sqlite3.connect(world.db, isolation_level=None) as other:
        agent = world.supervise(TALKS, *world.hook, start_new_session=True)
        agent.wait_for("ready")
        other.execute("BEGIN IMMEDIATE")
        agent.kill_agent()
        recoverer = until(lambda: recoverers(agent.pid, world.db), "a recoverer")[0]
        os.killpg(agent.pid, signal.SIGINT)
        agent.process.wait(30)
        assert alive(recoverer)
        other.execute("COMMIT")
    other.close()
    until(world.events, "the hook has run")
    until(lambda: in_state(world, "done"), "and that is known")


def recoverers(pid: int, db: Path) -> list[int]:
    return [child for child in children(pid) if has_open(child, db)]


# -- whoever dies ----------------------------------------------------------------------------


def test_a_runner_killed_inside_a_hook_is_replaced_and_the_hooks_input_says_so(
    world: World,
) -> None:
    flag, gate = world.folder / "flag", world.folder / "gate"
    os.mkfifo(gate)
    then = f"echo $PPID $$ > {flag}.new; mv {flag}.new {flag}; read line < {gate}"
    agent = world.supervise(TALKS, *ONCE, "--on-session-end", noting(world, then))
    agent.wait_for("ready")
    agent.kill_agent()
    until(flag.exists, "the hook runs")
    runner, hook = map(int, flag.read_text().split())
    flag.unlink()
    kill(runner)
    wait_dead(hook)
    until(flag.exists, "the hook runs again")
    gate.write_text("go\n")
    assert agent.finish() == -signal.SIGKILL
    assert attempts(world) == [(1, False), (2, True)]
    assert in_state(world, "done"), "a run that was cut off is no failure of the hook's"


def test_a_hook_that_always_kills_its_runner_comes_to_an_end(world: World) -> None:
    killed(world, "--on-session-end", noting(world, "kill -9 $PPID; sleep 30"))
    for _ in range(MAX_CUT_OFF):
        if in_state(world, "dead"):
            break
        world.call("recover")
    [dead] = until(lambda: in_state(world, "dead"), "it is given up")
    assert dead["outcome"] == "cut off"
    assert len(world.events()) == MAX_CUT_OFF + 1


DIES = """
import os, sys
from hermes_supervise.supervisor.hooks import process, queue, runner

def dies(*a): os.kill(os.getpid(), 9)

save, saved = queue.save, 0
def save_and_count(*a):
    global saved
    saved += 1
    if sys.argv[1] == f"before save {saved}": dies()
    save(*a)
    if sys.argv[1] == f"after save {saved}": dies()
queue.save = save_and_count
if sys.argv[1] == "while it moves":
    queue._drop_old = dies
runner.work(None, lambda: None)
"""


@pytest.mark.parametrize(
    ("moment", "heard", "who"),
    [
        ("before save 1", [(1, False)], "start"),
        # Noted as begun: nobody can know that it was not.
        ("after save 1", [(2, True)], "start"),
        ("before save 2", [(1, False), (2, True)], "start"),
        ("before save 2", [(1, False), (2, True)], "recover"),
        ("after save 2", [(1, False)], "start"),
        ("while it moves", [(1, False)], "start"),
    ],
)
def test_a_runner_killed_at_any_step_leaves_the_rest_to_the_next_start(
    world: World, moment: str, heard: list[tuple[int, bool]], who: str
) -> None:
    """As after a restart of the machine: no process is left, and the queue is."""
    queued(world, *ONCE, *world.hook)
    done = subprocess.run([sys.executable, "-c", DIES, moment], env=world.env)
    assert done.returncode == -signal.SIGKILL
    if who == "recover":
        assert world.call("recover").returncode == 0
    else:
        next_agent = world.run(["/bin/true"])
        assert next_agent.finish() == 0
    until(lambda: in_state(world, "done"), "the next one saw to it")
    assert attempts(world) == heard
    assert world.call("recover").stdout == "nothing to recover\n"
    assert attempts(world) == heard


def test_what_was_queued_is_not_queued_again_however_finishing_is_cut_off(world: World) -> None:
    agent = world.supervise(TALKS, "--no-adopt", *world.hook)
    agent.wait_for("ready")
    [run] = world.runs()
    until(lambda: any(b'"q"' in f.read_bytes() for f in run.glob("*.log")), "the journal")
    agent.abandon()
    code = (
        "import os, sys; from hermes_supervise.supervisor.storage import run_folder as run\n"
        "from hermes_supervise.supervisor.recovery import finish\n"
        "from hermes_supervise.supervisor.run.recover import finish_left_behind\n"
        "finish.Finisher._retire = lambda *a: os.kill(os.getpid(), 9)\n"
        "found = run.claim(sys.argv[1]); finish_left_behind(found)"
    )
    for _ in range(2):
        cut = subprocess.run([sys.executable, "-c", code, run], env=world.env)
        assert cut.returncode == -signal.SIGKILL
    assert len(in_state(world, "waiting")) == 1
    work = "from hermes_supervise.supervisor.hooks.runner import work; work(None, lambda: None)"
    subprocess.run([sys.executable, "-c", work], env=world.env, check=True)
    for path in (world.state / "hermes-supervise" / "hooks" / "done").iterdir():
        path.unlink()  # as if it had been so long ago that it is no longer kept
    assert world.call("recover").returncode == 0
    assert world.runs() == []
    assert len(world.events()) == 1


def test_of_many_runners_one_runs_each_hook(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(world.state))
    event = {"hook_event_name": "on_session_end", "extra": {}}
    words = ["/bin/sh", "-c", f"echo $0 >> {world.hooked}"]
    names = [f"run-{number % 4}:{number}" for number in range(20)]
    for number, name in enumerate(names):
        queue.add(
            Entry(name, f"run-{number % 4}", "0" * 32, "chat", "on_session_end", "command", name,
                  [*words, name], event, queued=1.0, place=number)
        )  # fmt: skip
    ready, go = os.pipe()
    code = (
        "import os; from hermes_supervise.supervisor.hooks import runner\n"
        "runner._INTERVAL = 0.05; os.read(0, 1); runner.work(None, lambda: None)"
    )
    runners = [
        subprocess.Popen([sys.executable, "-c", code], env=world.env, stdin=ready) for _ in range(6)
    ]
    os.close(ready)
    os.write(go, b"!" * len(runners))
    os.close(go)
    assert [runner.wait(60) for runner in runners] == [0] * len(runners)
    ran = world.hooked.read_text().split()
    assert sorted(ran) == sorted(names)
    for group in range(4):
        mine = [name for name in names if name.startswith(f"run-{group}:")]
        assert [name for name in ran if name in mine] == mine, "one process' hooks, in their order"


# -- order, sources --------------------------------------------------------------------------


def events_of(world: World) -> list[tuple[str, str]]:
    return [(event["hook_event_name"], event["session_id"]) for event in world.events()]


def test_every_end_comes_before_the_finalize_of_its_session_even_one_that_fails(
    world: World,
) -> None:
    killed(
        world,
        *("--hook-retry", "600"),
        *("--on-session-finalize", noting(world)),
        *("--on-session-end", noting(world, "false"), "--on-session-end", noting(world)),
        source="""
for name in ("a", "b"):
    session(name).message("user", "q")
ready()
forever()
""",
    )
    one_session = ["on_session_end", "on_session_end", "on_session_finalize"]
    assert events_of(world) == [(name, id) for id in ("a", "b") for name in one_session]
    end, _, finalize = world.events()[:3]
    same = [(event["cwd"], event["extra"]) for event in (end, finalize)]
    assert same[0] == same[1]
    assert end["cwd"] == str(world.folder)
    assert end["extra"]["signal"] == signal.SIGKILL
    assert (end["extra"]["completed"], end["extra"]["interrupted"]) == (False, True)
    assert end["extra"]["recovered"]["calls_unknown"] == 0


def test_an_event_has_the_fields_that_the_page_shows(world: World) -> None:
    killed(world, *world.hook)
    [event] = world.events()
    page = (Path(__file__).parents[2] / "docs" / "hooks.md").read_text()
    shown = json.loads(page.partition("```json\n")[2].partition("```")[0])
    assert list(event) == list(shown)
    assert list(event["extra"]) == list(shown["extra"])
    assert list(event["extra"]["recovered"]) == list(shown["extra"]["recovered"])


def test_the_plugin_on_the_page_is_called(world: World) -> None:
    fenced = [example for example in examples("docs/hooks.md") if example.language]
    shown = {example.language: example.text for example in fenced}
    [(group, points)] = tomllib.loads(shown["toml"])["project"]["entry-points"].items()
    [(event, where)] = points.items()
    module = world.folder / "packages" / (where.partition(":")[0].replace(".", "/") + ".py")
    metadata = world.folder / "packages" / "mine-1.0.dist-info"
    for folder in (module.parent, metadata):
        folder.mkdir(parents=True)
    module.write_text(shown["python"] + "\n")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{event} = {where}\n")
    world.env["PYTHONPATH"] = str(module.parents[1])
    killed(world, *ONCE)
    [hook] = listed(world)
    assert (hook["event"], hook["outcome"]) == (event, "ok")
    assert hook["output"] == "chat killed by SIGKILL\n"


PLUGIN = """
import json, os, sys

def ended(event):
    with open(os.environ["NOTED"], "a") as file:
        file.write(json.dumps([event, os.getpid(), os.getcwd()]) + "\\n")

def broken(event):
    raise RuntimeError("a plugin is broken")
"""


def test_a_python_plugin_is_found_by_its_entry_point_and_called_in_its_own_process(
    world: World,
) -> None:
    packages = world.folder / "packages"
    metadata = packages / "noter-1.0.dist-info"
    metadata.mkdir(parents=True)
    (packages / "noter.py").write_text(PLUGIN)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: noter\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[hermes_supervise.hooks]\non_session_end.a = noter:broken\n"
        "on_session_end.b = noter:ended\non_session_finalize = noter:ended\n"
        "on_session_reset = noter:broken\n"
    )
    noted = world.folder / "noted"
    world.env |= {"PYTHONPATH": str(packages), "NOTED": str(noted)}
    notice = killed(world, *ONCE)
    assert "3 hooks" in notice
    assert "1 failed (exit 1)" in notice
    lines = [json.loads(line) for line in noted.read_text().splitlines()]
    assert [(event["hook_event_name"], event["session_id"]) for event, *_ in lines] == [
        ("on_session_end", "chat"), ("on_session_finalize", "chat")
    ]  # fmt: skip
    assert len({pid for _, pid, _ in lines}) == 2
    assert {folder for *_, folder in lines} == {str(world.folder)}
    assert lines[0][0]["extra"]["attempt"] == 1
    [dead] = [hook for hook in listed(world) if hook["state"] == "dead"]
    assert dead["command"] == "noter:broken (on_session_end.a)"
    assert "RuntimeError: a plugin is broken" in dead["output"]


# -- bounded, private ------------------------------------------------------------------------


def test_what_a_dead_writer_left_of_a_hook_goes_and_what_is_being_written_stays(
    world: World,
) -> None:
    queued(world, *world.hook)
    [folder] = (world.state / "hermes-supervise" / "hooks" / "waiting").iterdir()
    half = folder / ".0.json.1.new"
    half.write_text("{")
    lasting = folder / ".1.json.2.new"
    writer = subprocess.Popen(["flock", lasting, "sh", "-c", "echo locked; cat"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert writer.stdout is not None and writer.stdout.readline() == b"locked\n"
    assert world.call("recover").returncode == 0
    until(lambda: len(world.events()) == 1, "the hook")
    until(lambda: not half.exists(), "what nobody will finish")
    assert lasting.exists()
    writer.communicate()
    world.call("recover")
    until(lambda: not folder.exists(), "the folder")


def test_a_hook_that_cannot_be_written_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(world.state))
    entry = Entry("k", "run", "0" * 32, "chat", "on_session_end", "command", "hook", ["x"], {})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(OSError):
            queue.add(entry)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    [folder] = queue.groups()
    assert os.listdir(folder) == []
    assert queue.add(entry) is entry


def test_a_hook_that_is_run_before_its_queueing_is_over_is_not_queued_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runner takes the folder away with the last hook in it, under who makes that last."""
    monkeypatch.setenv("XDG_STATE_HOME", str(world.state))
    entry = Entry("k", "run", "0" * 32, "chat", "on_session_end", "command", "hook", ["true"],
                  {"extra": {}})  # fmt: skip
    real, first = queue.sync_folder, [True]

    def run_first(folder: str) -> None:
        if folder.endswith(entry.group) and first:
            first.pop()
            runner._run_group(folder, wait=False)
            assert not os.path.exists(folder)
        real(folder)

    monkeypatch.setattr(queue, "sync_folder", run_first)
    added = queue.add(entry)
    monkeypatch.setattr(queue, "sync_folder", real)
    assert (added.state, len(added.attempts)) == ("done", 1)
    assert queue.groups() == []
    [(state, done)] = queue.all_entries()
    assert (state, len(done.attempts)) == ("done", 1)


def test_old_ones_go_and_it_is_said_of_those_that_were_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(world.state))
    monkeypatch.setattr(queue, "_DONE_KEPT", 3)
    monkeypatch.setattr(queue, "_DEAD_KEPT", 2)
    for number in range(10):
        outcome = "ok" if number % 2 else "exit 1"
        entry = Entry(f"k{number}", "run", "0" * 32, "chat", "on_session_end", "command",
                      f"hook {number}", ["x"], {"extra": {}}, back_off=[])  # fmt: skip
        queue.add(entry)
        claimed = queue.claim(queue.groups()[0])
        assert claimed is not None
        entry.start_attempt(1.0)
        entry.end_attempt(2.0, outcome, "")
        queue.save(claimed, entry)
        queue.finish(claimed, entry)
        queue.release(claimed)
    assert [hook["command"] for hook in listed(world)] == ["hook 6", "hook 8", *(
        f"hook {number}" for number in (5, 7, 9)
    )]  # fmt: skip
    assert json.loads(world.call("hooks", "--json").stdout)["dropped"] == 3
    assert queue.groups() == []


def test_the_queue_is_for_its_owner_alone_and_holds_no_message(world: World) -> None:
    options = ("--hook-wait", "0.1", "--on-session-end", "sleep 300")
    killed(world, *options, source=TALKS.replace('"q"', '"a secret"'))
    files = list((world.state / "hermes-supervise" / "hooks").rglob("*"))
    assert any(path.suffix == ".json" for path in files)
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
        assert path.is_dir() or b"secret" not in path.read_bytes()
