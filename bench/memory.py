"""Memory: what a supervisor holds while its one child sleeps, and after hours of streaming."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import contenders, ground, procfs
from .contenders import OURS, WAITER, Contender
from .launch import folder_of
from .stats import target

_AN_HOUR = 360_000  # deltas, at a hundred a second
_HOURS = 6  # an allocator has seen it all after some; from half of them on it must be flat


def measure(quick: bool) -> dict[str, Any]:
    stamp = ground.stamp()
    found, missing = contenders.present()
    held: dict[str, dict[str, float]] = {}
    with ground.world() as world, _own_libpython() as library:
        world.env["LD_LIBRARY_PATH"] = library
        for one in found:
            if stamp is not None and (seen := _resident(one, stamp, world)):
                held[one.name] = seen
        hour, hours = (_AN_HOUR // 20, 1) if quick else (_AN_HOUR, _HOURS)
        before, *after = _streamed(world, hour, hours)
    rows: list[list[Any]] = [
        [name, seen["processes"], seen["rss"], seen["pss"], seen["uss"]]
        for name, seen in held.items()
    ]
    for number, seen in enumerate([before, *after]):
        name = f"{OURS}, after {number * hour:,} deltas"
        rows.append([name, seen["processes"], seen["rss"], seen["pss"], seen["uss"]])
    floor = held[WAITER]["pss"]
    others = [held[one.name]["pss"] for one in found if one.python and one.name in held]
    targets = [
        target("idle, against the bare interpreter", held[OURS]["pss"] / floor, 1.6, "x"),
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
        targets.append(target("against the lightest Python peer", held[OURS]["pss"] / lightest,
                              1.0, "x"))  # fmt: skip
    columns = ["supervisor", "processes", "RSS, MiB", "PSS, MiB", "USS, MiB"]
    return {
        "title": "Idle memory",
        "tables": [{"columns": columns, "rows": rows}],
        "targets": targets,
        "left_out": missing,
        "notes": [
            "Of all processes but the child, which is a static program asleep. Ours are two: the "
            "supervisor and the witness, which is a fork of it. Those that exec away hold nothing "
            "and are not listed. With a copy of libpython of their own, so that interpreters "
            "elsewhere on the machine do not take a share of the PSS. The process that now and "
            "then stores what was said, or compacts the journal, is not in it: it is gone again.",
        ],
    }


def _resident(one: Contender, stamp: str, world: ground.World) -> dict[str, float] | None:
    noted = world.folder / "stamped"
    noted.unlink(missing_ok=True)
    command = one.command([stamp, str(noted), "stay"], folder_of(one, world))
    process = world.start(command)
    try:
        procfs.until(noted.exists)
        procfs.settled(process.pid)
        return held_by(process.pid, stamp)
    finally:
        _end(process)


def held_by(pid: int, but: str) -> dict[str, float] | None:
    """The memory of a tree of processes without those that run `but`."""
    return _sum(one for one in procfs.tree(pid) if procfs.executable(one) != but)


def _sum(pids: Iterable[int]) -> dict[str, float] | None:
    total: dict[str, float] = {"processes": 0, "rss": 0, "pss": 0, "uss": 0}
    for one in pids:
        try:
            seen = procfs.memory(one)
        except OSError:
            continue  # gone meanwhile
        total["processes"] += 1
        for name, value in seen.items():
            total[name] += value
    return total if total["processes"] else None


def _streamed(world: ground.World, deltas: int, times: int) -> list[dict[str, float]]:
    """Before an agent has streamed, after that much, and after as much again and again."""
    told = world.folder / "told"
    go = world.folder / "told.go"
    os.mkfifo(told)
    os.mkfifo(go)
    speaker = [*ground.program("stream.py"), str(told), str(deltas), str(times)]
    process = world.start([*ground.SUPERVISE, "--", *speaker])
    seen = []
    try:
        for _ in range(1 + times):
            with open(told) as file:
                agent = int(file.read())
            procfs.until(lambda: _only_they_are_left(process.pid))
            seen.append(_sum(one for one in procfs.tree(process.pid) if one != agent) or {})
            go.write_text("go")
    finally:
        _end(process)
    return seen


def _only_they_are_left(pid: int) -> bool:
    """Supervisor, witness and agent: what stores and compacts comes and goes."""
    procfs.settled(pid)
    return len(procfs.tree(pid)) == 3


def _end(process: subprocess.Popen[bytes]) -> None:
    for one in reversed(procfs.tree(process.pid)):
        try:
            os.kill(one, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()


class _own_libpython:
    """A folder with a copy of the interpreter's library; empty where it is not shared."""

    def __enter__(self) -> str:
        self._folder = tempfile.mkdtemp(prefix="hsb")
        folder = sysconfig.get_config_var("LIBDIR") or ""
        for path in Path(folder).glob("libpython3*.so.*"):
            shutil.copy(path, self._folder)
        return self._folder

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
