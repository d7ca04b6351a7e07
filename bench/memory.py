"""Memory: how much a supervisor uses while its child sleeps, and after hours of streaming."""

from __future__ import annotations

import os
import shutil
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import contenders, environment, procfs
from .contenders import OUR_NAME, WAITER, Contender
from .launch import folder_of
from .stats import target

_AN_HOUR = 360_000  # deltas, at a hundred a second
_HOURS = 6  # the allocator has settled halfway through; from there on memory must be flat


def measure(quick: bool) -> dict[str, Any]:
    stamp = environment.stamp()
    found, missing = contenders.present()
    held: dict[str, dict[str, float]] = {}
    with environment.world() as world, _own_libpython() as library:
        world.env["LD_LIBRARY_PATH"] = library
        for contender in found:
            if stamp is not None and (seen := _resident(contender, stamp, world)):
                held[contender.name] = seen
        hour, hours = (_AN_HOUR // 20, 1) if quick else (_AN_HOUR, _HOURS)
        before, *after = _streamed(world, hour, hours)
    rows: list[list[Any]] = [
        [name, seen["processes"], seen["rss"], seen["pss"], seen["uss"]]
        for name, seen in held.items()
    ]
    for number, seen in enumerate([before, *after]):
        name = f"{OUR_NAME}, after {number * hour:,} deltas"
        rows.append([name, seen["processes"], seen["rss"], seen["pss"], seen["uss"]])
    floor = held[WAITER]["pss"]
    others = [
        held[contender.name]["pss"]
        for contender in found
        if contender.python and contender.name in held
    ]
    targets = [
        target("idle, against the bare interpreter", held[OUR_NAME]["pss"] / floor, 1.6, "x"),
        target("after an hour's streaming, against the bare interpreter",
               after[0]["pss"] / floor, 1.6, "x"),
    ]  # fmt: skip
    if quick:
        missing = [*missing, "how memory grows: that takes hours"]
    else:
        growth = after[-1]["pss"] - after[hours // 2 - 1]["pss"]
        targets.append(target(f"grown from hour {hours // 2} to hour {hours}", growth, 0.1, "MiB"))
    if others:
        lightest = min(others)
        targets.append(target("against the lightest Python peer", held[OUR_NAME]["pss"] / lightest,
                              1.0, "x"))  # fmt: skip
    columns = ["supervisor", "processes", "RSS, MiB", "PSS, MiB", "USS, MiB"]
    return {
        "title": "Idle memory",
        "tables": [{"columns": columns, "rows": rows}],
        "targets": targets,
        "left_out": missing,
        "notes": [
            "The memory of all processes except the child, which is a sleeping static program. "
            "hermes-supervise has two: the supervisor, and the standby, which is a fork of it. "
            "Programs that exec the child hold nothing and are not listed. Each uses its own copy"
            " of libpython, so that other interpreters on the machine do not take a share of the "
            "PSS. The short-lived process that stores messages or compacts the journal is not "
            "counted.",
        ],
    }


def _resident(
    contender: Contender, stamp: str, world: environment.World
) -> dict[str, float] | None:
    noted = world.folder / "stamped"
    noted.unlink(missing_ok=True)
    command = contender.command([stamp, str(noted), "stay"], folder_of(contender, world))
    process = world.start(command)
    try:
        procfs.until(noted.exists)
        procfs.settled(process.pid)
        return held_by(process.pid, stamp)
    finally:
        procfs.kill_tree(process.pid)
        process.wait()


def held_by(pid: int, but: str) -> dict[str, float] | None:
    """The memory of a process tree, without the processes that run the program `but`."""
    return _sum(process for process in procfs.tree(pid) if procfs.executable(process) != but)


def _sum(pids: Iterable[int]) -> dict[str, float] | None:
    total: dict[str, float] = {"processes": 0, "rss": 0, "pss": 0, "uss": 0}
    for pid in pids:
        try:
            seen = procfs.memory(pid)
        except OSError:
            continue  # gone meanwhile
        total["processes"] += 1
        for name, value in seen.items():
            total[name] += value
    return total if total["processes"] else None


def _streamed(world: environment.World, deltas: int, times: int) -> list[dict[str, float]]:
    """The memory before an agent streams, and after each of `times` rounds of `deltas`."""
    stopped = world.folder / "stopped"
    go = world.folder / "stopped.go"
    os.mkfifo(stopped)
    os.mkfifo(go)
    agent_command = [*environment.program("stream.py"), str(stopped), str(deltas), str(times)]
    process = world.start([*environment.SUPERVISE, "--", *agent_command])
    seen = []
    try:
        for _ in range(1 + times):
            with open(stopped) as file:
                agent = int(file.read())
            procfs.until(lambda: _no_job_runs(process.pid))
            seen.append(
                _sum(member for member in procfs.tree(process.pid) if member != agent) or {}
            )
            go.write_text("go")
    finally:
        procfs.kill_tree(process.pid)
        process.wait()
    return seen


def _no_job_runs(pid: int) -> bool:
    """Whether only supervisor, standby and agent are left: background jobs come and go."""
    procfs.settled(pid)
    return len(procfs.tree(pid)) == 3


class _own_libpython:
    """A folder with a copy of libpython; empty if the interpreter has no shared library."""

    def __enter__(self) -> str:
        self._folder = tempfile.mkdtemp(prefix="hsb")
        folder = sysconfig.get_config_var("LIBDIR") or ""
        for path in Path(folder).glob("libpython3*.so.*"):
            shutil.copy(path, self._folder)
        return self._folder

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
