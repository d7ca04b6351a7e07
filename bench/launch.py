"""Launch: the time until the child's first instruction, and until an empty command has ended."""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

from . import contenders, environment, procfs
from .contenders import FLOOR, OUR_NAME, Contender
from .stats import ratio, summary, target


def measure(quick: bool) -> dict[str, Any]:
    stamp = environment.stamp()
    found, missing = contenders.present()
    found.insert(found.index(contenders.BY_NAME[OUR_NAME]) + 1, contenders.OLDER)
    rounds = 15 if quick else 60
    began: dict[str, list[float]] = {contender.name: [] for contender in found}
    total: dict[str, list[float]] = {
        contender.name: [] for contender in found if not contender.stays
    }
    with environment.world() as world:
        for turn in range(rounds):
            for contender in random.sample(found, len(found)):
                # Slow contenders need fewer rounds.
                if contender.python and turn % 5:
                    continue
                if stamp is not None:
                    began[contender.name].append(
                        _until_first_instruction(contender, stamp, world, turn)
                    )
                if not contender.stays:
                    total[contender.name].append(_until_over(contender, world))
    rows = []
    for contender in found:
        row: list[Any] = [contender.name]
        for samples in (began.get(contender.name), total.get(contender.name)):
            row += [summary(samples) if samples else None]
        row.append(ratio(began[contender.name], began[FLOOR]) if began[contender.name] else None)
        rows.append(row)
    columns = ["started by", "child starts, ms", "`-- true` over, ms", "child starts, x floor"]
    others = [
        min(began[contender.name])
        for contender in found
        if contender.python and began[contender.name]
    ]
    targets = [
        target("the child starts, against the bare Python that execs",
               min(began[OUR_NAME]) / min(began[FLOOR]), 1.9, "x"),
        target("`-- true` is over, against the same floor",
               min(total[OUR_NAME]) / min(total[FLOOR]), 2.8, "x"),
    ]  # fmt: skip
    if others:
        targets.append(
            target("against the fastest Python peer", min(began[OUR_NAME]) / min(others), 1.0, "x")
        )
    return {
        "title": "Launch",
        "tables": [{"columns": columns, "rows": rows}],
        "targets": targets,
        "left_out": missing + ([] if stamp else ["the child's first instruction: no C compiler"]),
        "notes": [
            "The time from just before `posix_spawn` to the child's first instruction (a static "
            "program that notes the clock), and to the end of `true`. Daemons do not end with "
            "their child. An entry point that pip made before 25.1 imports `re`; pip since then, "
            "pipx and uv make one that does not. The targets are for an ordinary entry point.",
        ],
    }


def _until_first_instruction(
    contender: Contender, stamp: str, world: environment.World, turn: int
) -> float:
    noted = world.folder / "stamped"
    noted.unlink(missing_ok=True)
    folder = world.folder / f"{contender.name.replace(' ', '-')}-{turn}"
    command = contender.command([stamp, str(noted)], folder)
    start, pid = _spawn(command, world)
    if contender.stays:
        procfs.until(noted.exists)
        _end(pid)
    else:
        os.waitpid(pid, 0)
        procfs.until(noted.exists)
    shutil.rmtree(folder, ignore_errors=True)
    return (int(noted.read_text()) - start) / 1e6


def _until_over(contender: Contender, world: environment.World) -> float:
    start, pid = _spawn(contender.command(["/bin/true"], world.folder / "true"), world)
    os.waitpid(pid, 0)
    return (time.monotonic_ns() - start) / 1e6


def _spawn(command: list[str], world: environment.World) -> tuple[int, int]:
    nothing = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    path = shutil.which(command[0], path=world.env["PATH"]) or command[0]
    os.chdir(world.folder)
    start = time.monotonic_ns()
    pid = os.posix_spawn(path, command, world.env, file_actions=nothing)
    return start, pid


def _end(pid: int) -> None:
    """Kill a daemon and everything that it started."""
    procfs.kill_tree(pid)
    os.waitpid(pid, 0)


def folder_of(contender: Contender, world: environment.World) -> Path:
    return world.folder / contender.name.replace(" ", "-")
