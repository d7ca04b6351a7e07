"""Idle: how often the supervisor wakes up, and how much processor time it uses, when idle."""

from __future__ import annotations

import time
from typing import Any

from . import contenders, environment, procfs
from .contenders import OUR_NAME
from .launch import folder_of
from .stats import target


def measure(quick: bool) -> dict[str, Any]:
    stamp = environment.stamp()
    seconds = 5 if quick else 60
    found, missing = contenders.present()
    running = []
    rows: list[list[Any]] = []
    with environment.world() as world:
        try:
            for contender in found if stamp is not None else ():
                noted = world.folder / f"{contender.name}.stamped"
                command = contender.command(
                    [str(stamp), str(noted), "stay"], folder_of(contender, world)
                )
                process = world.start(command)
                running.append((contender, process))
                procfs.until(noted.exists)
            if not quick:
                # An agent that has sent a message and keeps its connection open.
                agent_command = [*environment.program("speak_once.py"), str(world.folder / "said")]
                process = world.start([*environment.SUPERVISE, "--", *agent_command])
                running.append((None, process))
                procfs.until((world.folder / "said").exists)
            # A message is stored within fifteen seconds (--checkpoint); after that all is idle.
            time.sleep(3 if quick else 20)
            kin = {process.pid: _supervisors(process.pid, str(stamp)) for _, process in running}
            before = {pid: _used(pids) for pid, pids in kin.items()}
            time.sleep(seconds)
            for contender, process in running:
                wakes, cpu = _used(kin[process.pid])
                wakes_before, cpu_before = before[process.pid]
                if kin[process.pid]:
                    name = contender.name if contender else f"{OUR_NAME}, a quiet agent connected"
                    rows.append([name, wakes - wakes_before, (cpu - cpu_before) * 1e3])
        finally:
            for _, process in running:
                procfs.kill_tree(process.pid)
                process.wait()
    mine = [row for row in rows if row[0].startswith(OUR_NAME)]
    return {
        "title": "Idle",
        "tables": [{"columns": ["supervisor", f"wake-ups in {seconds} s", "processor, ms"],
                    "rows": rows}],
        "targets": [target("wake-ups while nothing happens", max(row[1] for row in mine), 0, "")],
        "left_out": missing,
        "notes": [],
    }  # fmt: skip


def _supervisors(pid: int, stamp: str) -> list[int]:
    """Every process but the child, which is the static program or the agent."""
    return [
        process for process in procfs.tree(pid)
        if procfs.executable(process) != stamp and b"speak_once" not in _words(process, pid)
    ]  # fmt: skip


def _words(pid: int, root: int) -> bytes:
    if pid == root:
        return b""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read()
    return b"" if b"hermes-supervise" in words else words


def _used(pids: list[int]) -> tuple[int, float]:
    return sum(map(procfs.wake_ups, pids)), sum(map(procfs.processor_time, pids))
