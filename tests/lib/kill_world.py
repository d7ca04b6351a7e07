"""One run of the kill-point sweep: real processes, killed, recovered, judged.

Supervisor and recoverers are forked from the sweep, which has everything loaded: what they do is
what the installed command does, without an interpreter's start. Agent, successors and hooks are
executed. Whoever is left without a parent becomes ours, so that a run is over when the kernel says
that nobody is left; nothing here sleeps.

The judge believes three things outside of our folders: the agent's ledger, what the hooks wrote,
and the trace of who was killed where.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import kill_points
from kill_script import SCRIPTS, Beginning, cut_off, expected

HERE = Path(__file__).parent
DEADLINE = 180
# Whether what the agent handed over survives if nobody had read it when agent and supervisor
# were both dead. It does where there is a ring, which not every file system allows.
UNREAD_SURVIVES = True

HOOK = """\
read -r event
printf 'begin %s\\n' "$event" >> "$1"
printf 'end\\n' >> "$1"
"""


class Scenario(NamedTuple):
    """What is run. `script` as in kill_script; `stored`: the agent keeps a state.db itself."""

    script: str
    adopt: bool = False
    sync: str = "interval"
    segment: int = 0
    """The size of a segment of the journal, if not the real one."""
    step: int = 0
    """How many rows go in at a time, if not the real number."""
    ring: bool = True
    """False: as on a file system that allows the agent no ring."""
    full: bool = False
    """The journals cannot be written: what arrives stays in the supervisor's memory."""

    @property
    def reopened(self) -> bool:
        """An earlier process of the session was killed and recovered, before anybody counts."""
        return self.script.startswith("reopened")

    @property
    def stored(self) -> bool:
        return self.script.startswith("whole")


SCENARIOS = {
    "small": Scenario("small"),
    "whole": Scenario("whole"),
    "burst": Scenario("whole-burst"),
    "adopted": Scenario("whole", adopt=True),
    "ending": Scenario("ending"),
    "always": Scenario("small", sync="always"),
    "segments": Scenario("whole", segment=700),
    "steps": Scenario("whole", step=2),
    "ringless": Scenario("whole-burst", ring=False),
    "ringless-paced": Scenario("whole", ring=False),
    "reopened": Scenario("reopened"),
    "long": Scenario("long"),
    "full": Scenario("small-burst", ring=False, full=True),
}


class Stuck(Exception):
    """The run did not come to its end."""


class Violation(NamedTuple):
    statement: str
    what: str


def become_the_last_parent() -> None:
    from hermes_supervise.supervisor.process.platform import become_subreaper

    become_subreaper()


def package_of(root: Path, folder: Path) -> Path:
    """A folder to import from: the three rooms below one name, and what arms a successor."""
    home = folder / "hermes_supervise"
    home.mkdir(parents=True)
    (home / "__init__.py").touch()
    for room in ("ipc", "agent_shim", "supervisor"):
        (home / room).symlink_to(root / room)
    (folder / "sitecustomize.py").write_text(
        f"import sys\nsys.path.append({str(HERE)!r})\n"
        "import kill_points\nkill_points.arm_by_environment()\n"
    )
    return folder


class KillWorld:
    """Folders for one run at a time; the same paths each time, so that a picture of them can be
    put back."""

    def __init__(self, package: Path) -> None:
        self.package = package
        shm = "/dev/shm"
        self.folder = Path(tempfile.mkdtemp(prefix="hk", dir=shm if os.path.isdir(shm) else None))
        self.ours = self.folder / "ours"
        self.outside = self.folder / "outside"
        self.db = self.ours / "hermes" / "state.db"
        self.hooked = self.outside / "hooked"
        self._template = self.folder / "template.db"
        _make_database(self._template)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- running -------------------------------------------------------------------------------

    def start_over(self, scenario: Scenario) -> None:
        for folder in (self.ours, self.outside):
            shutil.rmtree(folder, ignore_errors=True)
        for name in ("state", "runtime", "hermes", "tmp"):
            (self.ours / name).mkdir(0o700, parents=True)
        self.outside.mkdir()
        (self.outside / "hook.sh").write_text(HOOK)
        if scenario.stored:
            shutil.copyfile(self._template, self.db)
        if scenario.reopened:
            self._live_once(scenario)

    def _live_once(self, scenario: Scenario) -> None:
        """The life before: what it left is the ground that the next one begins on."""
        if not (self.folder / "lived").exists():
            self.supervise(scenario, life=1)
            for path in self.outside.iterdir():
                if path.name not in ("ledger", "hook.sh"):
                    path.unlink()
            self.picture("lived")
        self.put_back("lived")

    def supervise(
        self, scenario: Scenario, plan: str = "", command: str | None = None, life: int = 2
    ) -> int:
        """One supervised run of the agent, to the end of everybody; the supervisor's status."""
        agent = [sys.executable, "-I", "-S", str(HERE / "kill_agent.py")]
        agent += [str(self.package), str(self.outside), scenario.script, str(self.db)]
        hook = f"/bin/sh {self.outside / 'hook.sh'} {self.hooked}"
        options = ["--quiet", "--sync", scenario.sync, "--on-session-end", hook]
        options += [] if scenario.adopt else ["--no-adopt"]
        words = [*options, "--", *(agent if command is None else [command])]
        more = {"KILL_ADOPT": "1"} if scenario.adopt else {}
        more |= {} if scenario.ring else {"KILL_NO_RING": "1"}
        more |= {kill_points.FULL: "1"} if scenario.full else {}
        more |= {"KILL_LIFE": "2"} if scenario.reopened and life == 2 else {}
        more |= self._sizes(scenario)
        role = "supervisor" if command is None else "next"
        return self._call(role, words, plan, more)

    def recover(self, scenario: Scenario, plan: str = "", role: str = "recover") -> int:
        return self._call(role, ["recover", "--json"], plan, self._sizes(scenario))

    def _sizes(self, scenario: Scenario) -> dict[str, str]:
        sizes = {kill_points.SEGMENT: scenario.segment, kill_points.STEP: scenario.step}
        return {name: str(size) for name, size in sizes.items() if size}

    def _call(self, role: str, words: list[str], plan: str, more: dict[str, str]) -> int:
        child = self.fork(lambda: _main(words), role, plan, more)
        return self.wait()[child]

    def fork(
        self,
        work: Callable[[], int],
        role: str,
        plan: str = "",
        more: dict[str, str] | None = None,
        keep: int = 2,
    ) -> int:
        """A process in this world, in a group of its own, that counts as `role`. It has no
        descriptor of ours but `keep`."""
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            signal.alarm(0)
            os.setpgid(0, 0)
            os.environ.update(self._environment(plan) | (more or {}))
            os.chdir(self.folder)
            null = os.open(os.devnull, os.O_RDONLY)
            said = os.open(self.outside / "said", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            for fd, stands_for in ((null, 0), (said, 1), (said, 2)):
                os.dup2(fd, stands_for)
            os.closerange(3, keep)
            os.closerange(keep + 1, 64)
            sys.stdout = os.fdopen(1, "w", closefd=False)
            tempfile.tempdir = str(self.ours / "tmp")
            kill_points.arm(role, str(self.outside), plan)
            code = work()
        except BaseException:
            import traceback

            traceback.print_exc(file=os.fdopen(2, "w"))
        finally:
            os._exit(code)

    def wait(self) -> dict[int, int]:
        """Until nobody is left: the statuses of all."""
        found: dict[int, int] = {}

        def stuck(*_: object) -> None:
            raise Stuck(f"still running after {DEADLINE} s: {self.trace()[-3:]}")

        before = signal.signal(signal.SIGALRM, stuck)
        signal.alarm(DEADLINE)
        try:
            while True:
                pid, status = os.wait()
                found[pid] = status
        except ChildProcessError:
            return found
        except Stuck:
            self._end_all()
            raise
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)

    def _end_all(self) -> None:
        """Our own children and whoever they leave to us, until there is none."""
        with contextlib.suppress(ChildProcessError):
            while True:
                for task in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
                    for pid in task.read_text().split():
                        os.kill(int(pid), signal.SIGKILL)
                os.wait()

    def _environment(self, plan: str) -> dict[str, str]:
        for name in [n for n in os.environ if n.startswith(("HERMES_", "XDG_", "PYTHON"))]:
            del os.environ[name]
        return {
            "XDG_STATE_HOME": str(self.ours / "state"),
            "XDG_RUNTIME_DIR": str(self.ours / "runtime"),
            "HERMES_HOME": str(self.ours / "hermes"),
            "HOME": str(self.ours),
            "PYTHONPATH": str(self.package),
            "PYTHONSAFEPATH": "1",
            kill_points.FOLDER: str(self.outside),
            kill_points.PLAN: plan,
        }

    # -- a picture of it -----------------------------------------------------------------------

    def picture(self, name: str) -> None:
        shutil.rmtree(self.folder / name, ignore_errors=True)
        for part in (self.ours, self.outside):
            _copy(part, self.folder / name / part.name)

    def put_back(self, name: str) -> None:
        for part in (self.ours, self.outside):
            shutil.rmtree(part)
            _copy(self.folder / name / part.name, part)

    # -- what is there -------------------------------------------------------------------------

    @property
    def state(self) -> Path:
        return self.ours / "state" / "hermes-supervise"

    def has_rings(self) -> bool:
        from hermes_supervise.agent_shim.ring import _keeps_blocks

        return _keeps_blocks(str(self.folder))

    def trace(self) -> list[str]:
        path = self.outside / "trace"
        return path.read_text().splitlines() if path.exists() else []

    def operations(self, role: str) -> list[str]:
        """What a role did, in order; the number of an operation is its place, from 1 on."""
        words = [line.split(" ", 2) for line in self.trace()]
        return [what for who, _, what in words if who == role and not what.startswith("killed")]

    def killed(self) -> list[str]:
        """The roles that died at their point."""
        return [line.split()[0] for line in self.trace() if line.split()[2] == "killed"]

    def ledger(self) -> dict[str, int]:
        """How far the agent got, by word."""
        found = {"begin": 0, "done": 0, "safe": 0, "finished": 0}
        path = self.outside / "ledger"
        for line in path.read_text().splitlines() if path.exists() else []:
            word, _, number = line.partition(" ")
            found[word] = int(number or 1)
        return found

    def events(self) -> list[dict[str, Any]]:
        lines = self.hooked.read_text().splitlines() if self.hooked.exists() else []
        return [json.loads(line[6:]) for line in lines if line.startswith("begin ")]

    def said(self) -> str:
        path = self.outside / "said"
        return path.read_text() if path.exists() else ""

    def reports(self) -> list[dict[str, Any]]:
        """The last word on each session."""
        from hermes_supervise.ipc.lightweight.dataclass import asdict
        from hermes_supervise.supervisor.recovery import report

        paths = sorted(self.state.glob("reports/*.jsonl"))
        return [asdict(session) for path in paths for session in report.read(str(path))]

    def unfinished(self) -> bool:
        return any(self.state.glob("runs/*")) or any(self.state.glob("hooks/waiting/*"))

    def let_time_pass(self) -> None:
        """What somebody was writing when he died is tidied up after a while: this is after."""
        for path in self.ours.rglob(".*.new"):
            os.utime(path, (0, 0))

    @contextlib.contextmanager
    def database(self) -> Iterator[sqlite3.Connection]:
        db = sqlite3.connect(f"file:{self.db}?mode=ro", uri=True)
        db.row_factory = sqlite3.Row
        try:
            yield db
        finally:
            db.close()

    def dump(self) -> dict[str, list[dict[str, Any]]]:
        """Every row of ours and the agent's. Only the moment at which a marker was written may
        differ between two recoveries of the same journal."""
        found: dict[str, list[dict[str, Any]]] = {}
        if not self.db.exists():
            return found
        with self.database() as db:
            tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master")}
            for table in sorted(tables & {"sessions", "messages", "state_meta"}):
                found[table] = [dict(row) for row in db.execute(f"SELECT * FROM {table}")]
        for row in found.get("state_meta", []):
            if row["key"] == "hermes_supervise:made":
                row["value"] = None
            elif row["key"].startswith("hermes_supervise:"):
                row["value"] = {k: v for k, v in json.loads(row["value"]).items() if k != "at"}
        return found


def _main(words: list[str]) -> int:
    from hermes_supervise.supervisor.__main__ import main

    sys.argv = ["hermes-supervise", *words]
    try:
        main()
    except SystemExit as end:
        sys.stdout.flush()
        return int(end.code or 0)
    sys.stdout.flush()
    return 0


def _make_database(path: Path) -> None:
    """A state.db as Hermes leaves it, without a word of ours in it."""
    from hermes_supervise.supervisor.statedb import schema

    db = sqlite3.connect(path)
    for statement in schema.statements():
        db.execute(statement)
    db.commit()
    db.execute("PRAGMA journal_mode = WAL")
    db.close()


def _copy(source: Path, target: Path) -> None:
    """All of it, sockets and times included."""
    target.mkdir(0o700, parents=True)
    for entry in os.scandir(source):
        path = target / entry.name
        if entry.is_dir(follow_symlinks=False):
            _copy(Path(entry.path), path)
        elif stat.S_ISSOCK(entry.stat().st_mode):
            os.mknod(path, entry.stat().st_mode)
        else:
            shutil.copy2(entry.path, path)


# -- the judge -----------------------------------------------------------------------------------


def judge(world: KillWorld, scenario: Scenario, *, both_died: bool) -> list[Violation]:
    """What is not as promised, now that everything has been recovered.

    `both_died`: agent and supervisor may have died without anybody reading what lay between.
    """
    found: list[Violation] = []

    def wrong(statement: str, what: str) -> None:
        found.append(Violation(statement, what))

    script = SCRIPTS[scenario.script.removesuffix("-burst")]
    ledger = world.ledger()
    survives = UNREAD_SURVIVES and scenario.ring and world.has_rings()
    least = ledger["safe"] if both_died and not survives else ledger["done"]
    candidates = [expected(script[:n]) for n in range(least, ledger["begin"] + 1)]
    cut = None
    if scenario.script.startswith("long") and ledger["begin"] > ledger["done"]:
        cut = cut_off(script[: ledger["begin"]])
        candidates += [] if cut is None else [cut]
    there = _what_is_there(world, wrong)
    matching = [wanted for wanted in candidates if _same(wanted, there)]
    if not matching:
        wrong("T1", _difference(candidates[0], there, ledger, least))
        nearest = candidates[0]
    else:
        nearest = matching[-1]
    _judge_hooks(world, nearest, matching, wrong)
    _judge_the_agents_rows(world, wrong)
    _judge_report(world, scenario, there, wrong, is_cut=cut is not None and nearest is cut)
    undisturbed = "agent" not in world.killed() and not _group_died(world)
    if undisturbed and ledger["begin"] and not ledger["finished"]:
        wrong("T1", f"the agent was disturbed: {ledger}")
    return found


def _group_died(world: KillWorld) -> bool:
    return any(line.endswith("killed group") for line in world.trace())


def _helper_was_for_the_death(world: KillWorld) -> bool:
    """Not for a checkpoint of a living agent, which dies with its group and is not written down."""
    trace = world.trace()
    forks = [number for number, line in enumerate(trace) if line.endswith(" fork helper")]
    return bool(forks) and not any(line.startswith("agent ") for line in trace[forks[-1] :])


def _what_is_there(world: KillWorld, wrong: Callable[[str, str], None]) -> dict[str, Any]:
    there: dict[str, Any] = {}
    if not world.db.exists():
        return there
    with world.database() as db:
        checked = db.execute("PRAGMA integrity_check").fetchone()[0]
        if checked != "ok":
            wrong("T6", f"integrity_check: {checked}")
        if db.execute("PRAGMA foreign_key_check").fetchall():
            wrong("T6", "foreign_key_check")
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'sessions'").fetchall():
            return there
        for session in db.execute("SELECT * FROM sessions ORDER BY rowid"):
            rows = db.execute(
                "SELECT * FROM messages WHERE session_id = ? ORDER BY id", (session["id"],)
            ).fetchall()
            there[session["id"]] = {
                "rows": [_content_of(row) for row in rows],
                "end": session["end_reason"],
                "ended_at": session["ended_at"],
                "title": session["title"],
                "parent": session["parent_session_id"],
                "ours": sum(row["token_count"] is None for row in rows),
            }
            if session["message_count"] != len(rows):
                wrong("T6", f"{session['id']} counts {session['message_count']} of {len(rows)}")
            calls = [id for row in there[session["id"]]["rows"] for id in row["calls"]]
            answers = [row["tool_call_id"] for row in rows if row["tool_call_id"]]
            if sorted(calls) != sorted(answers):
                wrong("T6", f"calls {calls} have the answers {answers}")
    return there


def _content_of(row: sqlite3.Row) -> dict[str, Any]:
    made = json.loads(row["tool_calls"]) if row["tool_calls"] else []
    names = ("role", "content", "tool_call_id", "finish_reason", "reasoning", "effect_disposition")
    return {name: row[name] for name in names} | {"calls": [call["id"] for call in made]}


def _same(wanted: dict[str, Any], there: dict[str, Any]) -> bool:
    """Whether the rows are those of this much of the script, no more and no fewer."""
    with_rows = {id: session for id, session in wanted.items() if session["rows"]}
    if set(with_rows) != {id for id, session in there.items() if session["rows"]}:
        return False
    for id, session in with_rows.items():
        found = there[id]
        if len(session["rows"]) != len(found["rows"]):
            return False
        for wanted, row in zip(session["rows"], found["rows"], strict=True):
            if wanted["content"] is ... and "unknown" in (row["content"] or ""):
                row = row | {"content": ...}
            if isinstance(wanted["content"], Beginning):
                if not wanted["content"].is_of(row["content"]):
                    return False
                row = row | {"content": wanted["content"]}
            if wanted != row:
                return False
        if (session["end"], session["title"]) != (found["end"], found["title"]):
            return False
        if not found["ended_at"]:
            return False
    return True


def _difference(
    wanted: dict[str, Any], there: dict[str, Any], ledger: dict[str, int], least: int
) -> str:
    def brief(sessions: dict[str, Any]) -> str:
        return "; ".join(
            f"{id} ({session['end']}, {session['title']}): "
            + ", ".join(f"{row['role']} {row['content']!r}" for row in session["rows"])
            for id, session in sessions.items()
        )

    return f"from step {least} of {ledger} on: wanted {brief(wanted)} | there is {brief(there)}"


def _judge_the_agents_rows(world: KillWorld, wrong: Callable[[str, str], None]) -> None:
    """What the agent wrote itself is as it wrote it, in the session it wrote it to."""
    path = world.outside / "stored"
    if not path.exists():
        return
    with world.database() as db:
        query = (
            "SELECT id, session_id, role, content, timestamp FROM messages WHERE token_count = 7"
        )
        rows = [repr(tuple(row)) for row in db.execute(query)]
    if rows != path.read_text().splitlines():
        wrong("T5", f"the agent's own rows became {rows}")


def _judge_hooks(
    world: KillWorld,
    nearest: dict[str, Any],
    matching: list[dict[str, Any]],
    wrong: Callable[[str, str], None],
) -> None:
    events = world.events()
    lines = world.hooked.read_text().splitlines() if world.hooked.exists() else []
    if lines.count("end") != len(events):
        wrong("T3", "a hook did not come to its end")
    if _queued_too_early(world):
        wrong("T3", "a hook was queued before all rows were in")
    sessions = {event["session_id"] for event in events}
    # Two amounts of the script may leave the same rows and owe different hooks.
    choices = [
        {id for id, session in wanted.items() if session["hooks"]}
        for wanted in matching or [nearest]
    ]
    if sessions not in choices:
        wrong("T3", f"hooks ran for {sorted(sessions)}, owed to one of {choices}")
    for path in world.state.glob("hooks/done/*.json"):
        if json.loads(path.read_text())["attempts"][-1].get("outcome") != "ok":
            wrong("T4", "a hook is done, and nobody knows how it ended")
    for id in sorted(sessions):
        extras = [event["extra"] for event in events if event["session_id"] == id]
        attempts = [extra["attempt"] for extra in extras]
        if len(attempts) > 1 + _cut_off(world):
            wrong("T3", f"the hook of {id} ran {attempts}, and was cut off {_cut_off(world)} times")
        if attempts != sorted(set(attempts)) or attempts[-1] > 1 + _cut_off(world):
            wrong("T4", f"the hook of {id} got the attempts {attempts}")
        if any(extra["repeated"] != (extra["attempt"] > 1) for extra in extras):
            wrong("T4", f"the hook of {id} got no `repeated` with its repeats: {attempts}")
        if not all(extra["interrupted"] for extra in extras):
            wrong("T3", f"the hook of {id} got an event without `interrupted`")


def _queued_too_early(world: KillWorld) -> bool:
    for role in ("helper", "recover", "again"):
        queued = False
        for line in [line for line in world.trace() if line.startswith(f"{role} ")]:
            what = line.split(" ", 2)[2]
            queued = (queued or what == "replace .*.json.new") and not what.startswith("killed")
            if queued and what.startswith("write state.db"):
                return True
    return False


def _cut_off(world: KillWorld) -> int:
    """How many runs of a hook were cut off: noted as begun, but not as ended."""
    cut = noted = 0
    for what in [line.split(" ", 2)[2] for line in world.trace() if line.startswith("runner ")]:
        noted += what == "replace .*.json.new"
        if what.startswith("killed"):
            cut += noted % 2
            noted = 0
    return cut


def _judge_report(
    world: KillWorld,
    scenario: Scenario,
    there: dict[str, Any],
    wrong: Callable[[str, str], None],
    *,
    is_cut: bool = False,
) -> None:
    """`is_cut`: a long message was not handed over as a whole, and the report has to say so."""
    from hermes_supervise.supervisor.recovery.describe import CUT_SHORT

    reported = {report["session"]: report for report in world.reports()}
    for id, session in there.items():
        if not session["ours"]:
            continue
        if id not in reported:
            wrong("T2", f"{id} was recovered, and no report says so")
            continue
        report = reported[id]
        # Records that only the supervisor had died with it. What it had stored of them is there;
        # whether there were more is not known, and the report says so.
        in_memory = scenario.full and (_group_died(world) or "supervisor" in world.killed())
        says_so = in_memory and report["problems"] == [CUT_SHORT]
        if (bool(report["problems"]) != is_cut and not says_so) or not report["complete"]:
            wrong("T1", f"{id}: {report['problems']}")
        # What was stored for a living agent, that does not do so itself, was not recovered.
        least = session["ours"] if scenario.stored else 0
        if not least <= report["recovered"]["messages"] <= session["ours"]:
            wrong("T2", f"{id}: {report['recovered']} for {session['ours']} rows of ours")
        events = [e["extra"]["attempt"] for e in world.events() if e["session_id"] == id]
        reported_hooks = [(hook["outcome"], hook["attempt"]) for hook in report["hooks"]]
        if events and reported_hooks != [("ok", events[-1])]:
            wrong("T4", f"{id}: hooks {report['hooks']} after the attempts {events}")
        # Who was there to see it says so; who was not claims no other death.
        killed = set(world.killed())
        seen = not _group_died(world) and not {"supervisor", "successor"} & killed
        # Before a helper is forked for a death, the death is written down.
        if "helper" in killed and scenario.stored and not scenario.segment:
            seen = seen or _helper_was_for_the_death(world)
        cause = report["cause"]
        if (
            cause == "exited with code 0"
            and "agent" not in world.killed()
            and session["end"] != ("interrupted")
        ):
            continue
        if cause != "killed by SIGKILL" and (seen or "SIG" in cause or "exited" in cause):
            wrong("T1", f"{id}: died of {cause!r}")


def judge_leftovers(world: KillWorld) -> list[Violation]:
    """What is there that nobody needs any more."""
    kept = (world.db.parent, world.state / "reports", world.state / "hooks" / "done")
    left = [path for path in world.ours.rglob("*") if not path.is_dir() and path.parent not in kept]
    left += [
        path for part in ("runs/*", "damaged", "hooks/waiting/*") for path in world.state.glob(part)
    ]
    left = [path for path in left if path != world.state / "hooks" / "lock"]
    names = sorted({str(path.relative_to(world.ours)) for path in left})
    return [Violation("T11", f"left behind: {names}")] if names else []
