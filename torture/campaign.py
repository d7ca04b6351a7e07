"""Many scenarios, in several workers, until the time is up or something is wrong.

Never goes on behind a violation: the first one stops everything, with what it takes to see it
again.
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
from typing import NoReturn

from hermes_supervise.supervisor.signals import become_subreaper

from . import actors, judge, plan
from .conduct import TRACE, Lived, Stuck, kill_everyone
from .ledger import Ledger
from .model import Earlier


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


@dataclass
class Tally:
    scenarios: int = 0
    chapters: int = 0
    processes: int = 0
    messages: int = 0
    real: int = 0
    seconds: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    violations: list[dict[str, str]] = field(default_factory=list)

    @property
    def deaths(self) -> int:
        return sum(self.kills.values())


def run_one(seed: str, share: float, folder: str, template: str, ledger: Ledger) -> Tally:
    """Live one scenario through. A violation is in the tally, and the folder stays."""
    told = plan.scenario(seed, share)
    world = actors.World(folder)
    if told.ready_made:
        actors.use_template(template, world)
    tally = Tally(scenarios=1, real=int(told.chapters[0].lanes[0].real))
    earlier: dict[str, Earlier] = {}
    number = 0
    try:
        for number in range(len(told.chapters)):
            lived = Lived(world, told, number, ledger, share)
            try:
                lived.live()
                try:
                    judge.judge(lived, earlier)
                except judge.Violation as found:
                    found.text += f"\n{lived.story()}"
                    raise
                if told.chapters[number].once_more:
                    before = judge.read(world)
                    lived.once_more()
                    if judge.read(world) != before:
                        raise judge.Violation("misreported", "a second recovery changed something")
            finally:
                tally.kills += lived.kills
                tally.chapters += 1
                tally.processes += sum(len(lane.processes) for lane in lived.chapter.lanes)
        tally.messages = sum(len(one.rows) for one in earlier.values())
    except judge.Violation as found:
        tally.violations.append(_told(seed, number, found.category, found.text, folder))
    except Stuck as found:
        tally.violations.append(_told(seed, number, "misreported", f"did not end: {found}", folder))
    else:
        shutil.rmtree(folder)
    return tally


def _told(seed: str, number: int, category: str, text: str, folder: str) -> dict[str, str]:
    where = f"chapter {number}: {text}"
    return {"seed": seed, "category": category, "text": where, "folder": folder}


# -- workers ---------------------------------------------------------------------------------


def run(wanted: Wanted) -> Tally:
    """The whole campaign; what came of it."""
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
    """A process that lives scenarios and writes a line about each; the pipe, and its pid."""
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
    told_at = began
    while unread and not total.violations:
        now = time.monotonic()
        enough = now >= end or (wanted.kills and total.deaths >= wanted.kills)
        if enough and not wanted.only:
            return
        if now - told_at > 10:
            told_at = now
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


def _add(total: Tally, one: dict[str, object]) -> None:
    for name, value in one.items():
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
