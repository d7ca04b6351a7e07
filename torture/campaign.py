"""Runs many scenarios in several workers, until the time is up or a violation is found.

Never goes on after a violation: the first one stops everything, and its output says how to repeat
it.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import select
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import NoReturn

from hermes_supervise.supervisor.process.platform import become_subreaper

from . import actors, judge, plan
from .conduct import TRACE, Lived, Stuck, kill_everyone
from .ledger import Ledger
from .model import Earlier
from .wide import plan as wide_plan
from .wide import run as wide_run


@dataclass
class Wanted:
    seed: str
    jobs: int
    seconds: float
    kills: int
    share: float
    folder: str
    only: str | None = None
    again: int = 1
    keep: bool = False
    wide: float = 0.0
    """The share of scenarios of the wider campaign."""
    kind: str = ""
    """Only this kind of them."""
    product: str = ""
    """Where the product is that the wider campaign runs; as installed, if empty."""


@dataclass
class Tally:
    scenarios: int = 0
    chapters: int = 0
    processes: int = 0
    messages: int = 0
    real: int = 0
    wide: int = 0
    seconds: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    violations: list[dict[str, str]] = field(default_factory=list)

    @property
    def deaths(self) -> int:
        return sum(self.kills.values())


def run_one(seed: str, share: float, folder: str, template: str, ledger: Ledger) -> Tally:
    """Run one scenario. A violation is noted in the tally, and the folder is kept."""
    scenario = plan.scenario(seed, share)
    world = actors.World(folder)
    if scenario.ready_made:
        actors.use_template(template, world)
    tally = Tally(scenarios=1, real=int(scenario.chapters[0].lanes[0].real))
    earlier: dict[str, Earlier] = {}
    number = 0
    try:
        for number in range(len(scenario.chapters)):
            lived = Lived(world, scenario, number, ledger, share)
            try:
                lived.live()
                try:
                    judge.judge(lived, earlier)
                except judge.Violation as found:
                    found.text += f"\n{lived.story()}"
                    raise
                if scenario.chapters[number].once_more:
                    before = judge.read(world)
                    lived.once_more()
                    if judge.read(world) != before:
                        raise judge.Violation("misreported", "a second recovery changed something")
            finally:
                tally.kills += lived.kills
                tally.chapters += 1
                tally.processes += sum(len(lane.processes) for lane in lived.chapter.lanes)
        tally.messages = sum(len(session.rows) for session in earlier.values())
    except judge.Violation as found:
        tally.violations.append(_violation(seed, number, found.category, found.text, folder))
    except Stuck as found:
        tally.violations.append(
            _violation(seed, number, "misreported", f"did not end: {found}", folder)
        )
    else:
        shutil.rmtree(folder)
    return tally


def _violation(seed: str, number: int, category: str, text: str, folder: str) -> dict[str, str]:
    where = f"chapter {number}: {text}"
    return {"seed": seed, "category": category, "text": where, "folder": folder}


def run_wide(kind: str, seed: str, folder: str, product: str) -> Tally:
    """Run one scenario of the wider campaign."""
    done = wide_run.run_one(kind, seed, folder, product)
    scenario = wide_plan.scenario(kind, seed)
    tally = Tally(scenarios=1, wide=1, kills=Counter(done["kills"]))
    tally.chapters = len(scenario.lives)
    tally.processes = sum(len({s.actor for s in life.steps} - {-1}) for life in scenario.lives)
    tally.messages = done["messages"]
    if done["found"] is not None:
        category, text = done["found"]
        tally.violations.append(
            {"seed": seed, "kind": kind, "category": category, "text": text, "folder": folder}
        )
    return tally


def is_wide(wanted: Wanted, seed: str) -> bool:
    # A generator of its own: with another share, the same seed still gives the same scenario.
    return bool(wanted.kind) or Random(f"wide {seed}").random() < wanted.wide


# -- workers ---------------------------------------------------------------------------------


def run(wanted: Wanted) -> Tally:
    """Run the whole campaign; its totals."""
    os.makedirs(wanted.folder, 0o700, exist_ok=True)
    template = os.path.join(wanted.folder, "template.db")
    actors.make_template(template)
    actors.warm_up()
    gc.collect()
    gc.freeze()
    began = time.monotonic()
    workers = [_worker(wanted, number, template) for number in range(wanted.jobs)]
    total = Tally()
    try:
        _collect(wanted, dict(workers), total, began)
    finally:
        for _, pid in workers:
            try:
                os.killpg(pid, signal.SIGTERM)
            except ProcessLookupError:
                pass
            os.waitpid(pid, 0)
    total.seconds = time.monotonic() - began
    os.unlink(template)
    if not total.violations:
        shutil.rmtree(wanted.folder, ignore_errors=True)
    return total


def _worker(wanted: Wanted, number: int, template: str) -> tuple[int, int]:
    """Fork a process that runs scenarios and writes a line about each; its pipe and its pid."""
    out, into = os.pipe()
    pid = os.fork()
    if pid:
        os.close(into)
        return out, pid
    try:
        os.setpgid(0, 0)
        os.close(out)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, _end)
        become_subreaper()
        faulthandler.register(TRACE, file=2)
        _live_on(wanted, number, template, into)
    except BaseException:
        sys.stderr.write(traceback.format_exc())
        sys.stderr.flush()
    finally:
        _end()


def _end(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    kill_everyone()
    os._exit(0)


def _live_on(wanted: Wanted, number: int, template: str, into: int) -> None:
    folder = os.path.join(wanted.folder, f"w{number}")
    os.mkdir(folder, 0o700)
    ledger = Ledger(os.path.join(folder, "ledger"))
    index = number
    while not wanted.only or index < wanted.again:
        seed = wanted.only or f"{wanted.seed}:{index}"
        where = os.path.join(folder, f"{index:x}")
        if is_wide(wanted, seed):
            kind = wanted.kind or wide_plan.any_kind(seed)
            tally = run_wide(kind, seed, where, wanted.product)
        else:
            tally = run_one(seed, wanted.share, where, template, ledger)
        os.write(into, json.dumps(vars(tally)).encode() + b"\n")
        index += wanted.jobs
        if tally.violations:
            return


def _collect(wanted: Wanted, workers: dict[int, int], total: Tally, began: float) -> None:
    end = began + wanted.seconds
    poller = select.poll()
    unread = dict.fromkeys(workers, b"")
    for pipe in workers:
        poller.register(pipe, select.POLLIN)
    printed_at = began
    while unread and not total.violations:
        now = time.monotonic()
        enough = now >= end or (wanted.kills and total.deaths >= wanted.kills)
        if enough and not wanted.only:
            return
        if now - printed_at > 10:
            printed_at = now
            print(progress(total, now - began), flush=True)
        for pipe, _ in poller.poll(200):
            data = os.read(pipe, 65536)
            if not data:
                poller.unregister(pipe)
                del unread[pipe]
                if not wanted.only and not total.violations:
                    raise RuntimeError("a worker ended by itself")
                continue
            *lines, unread[pipe] = (unread[pipe] + data).split(b"\n")
            for line in lines:
                _add(total, json.loads(line))


def _add(total: Tally, more: dict[str, object]) -> None:
    for name, value in more.items():
        if isinstance(value, dict):
            total.kills.update(value)
        elif isinstance(value, list):
            total.violations += value
        elif isinstance(value, int):
            setattr(total, name, getattr(total, name) + value)


def progress(total: Tally, seconds: float) -> str:
    per = max(seconds, 0.001)
    return (
        f"{seconds:6.0f} s  {total.scenarios} scenarios ({total.scenarios / per:.1f}/s)  "
        f"{total.deaths} kills ({total.deaths / per:.1f}/s)  {total.messages} messages"
    )
