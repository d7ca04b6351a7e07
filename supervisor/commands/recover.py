"""`hermes-supervise recover`: finish what an earlier crash left. Safe at any time.

Never touches a run whose supervisor lives, nor a process that does.
"""

from __future__ import annotations

import argparse
import gc
import json
import os

from .. import launch, notice
from .. import run as runs
from ..hooks import minder, queue
from ..plain import asdict
from ..recovery.finish import finish_left_behind
from ..recovery.report import Settled
from ..signals import PASSED_ON, signal
from ..text import printable
from . import paint
from .progress import Progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# How long a person who asked for it is kept waiting for hooks.
_HOOK_PATIENCE = 10.0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="hermes-supervise recover",
        description="Finish what an earlier crash left: rows, end marks, hooks.",
    )
    made.add_argument(
        "run", nargs="*", metavar="RUN", help="only these runs; without it, all that are left"
    )
    made.add_argument(
        "--notify", action="store_true", help="tell it in a desktop notification, too: for a login"
    )
    paint.add_options(made)
    return made


def main(arguments: list[str]) -> int:
    wanted = parser().parse_args(arguments)
    gc.disable()  # it would look through every message again and again
    runs.runs_folder()  # raises where it may not be used: that is not "nothing to recover"
    folders = {os.path.basename(folder): folder for folder in runs.left_behind()}
    unknown = [name for name in wanted.run if name not in folders]
    settled: list[Settled] = []
    busy: list[str] = []
    living: list[str] = []
    failed: dict[str, str] = {}
    chosen = {n: folder for n, folder in folders.items() if not wanted.run or n in wanted.run}
    progress = Progress(len(chosen))
    for name, folder in chosen.items():
        progress.begin_run()
        try:
            run = runs.claim(folder)
            if run is None:
                busy.append(name)
                continue
            told, alive = finish_left_behind(run, wrote=progress.wrote)
            runs.retire(run)
        except Exception as fault:  # the other runs have nothing to do with it
            failed[name] = str(fault) if isinstance(fault, OSError) else type(fault).__name__
            continue
        settled += told
        living += [name] * bool(alive)
    progress.end()
    hooks_go_on = not see_to_hooks()
    for one in settled:
        one.hooks = [_now(one, ran) for ran in one.hooks]
    if wanted.json:
        what = {"settled": [asdict(one) for one in settled], "supervised": busy, "running": living,
                "unknown": unknown, "failed": failed}  # fmt: skip
        print(json.dumps(what, indent=2))
    else:
        _tell(settled, busy, living, unknown, failed, paint.chosen(wanted))
        if hooks_go_on:
            print("hooks go on in the background: hermes-supervise hooks")
    if wanted.notify:
        _notify(settled, failed)
    return 0 if all(one.complete for one in settled) and not (unknown or failed) else 1


def see_to_hooks() -> bool:
    """Have what is due in the queue run; whether that was over within a moment."""
    if not minder.something_waits():
        return True

    def prepare() -> None:
        for number in (*PASSED_ON, signal.SIGTSTP):
            signal.signal(number, signal.SIG_IGN)
        launch.let_go_of_the_streams()
        launch.let_go_of_standard_error()

    _, first_pass = minder.begin(None, prepare)
    return minder.wait(first_pass, _HOOK_PATIENCE)


def _now(one: Settled, ran: dict[str, Any]) -> dict[str, Any]:
    entry = queue.find(ran["id"], f"{one.run}.{one.stream}")
    return ran if entry is None else entry.as_ran()


def _notify(settled: list[Settled], failed: dict[str, str]) -> None:
    told = notice.lines(settled, None)
    told += [f"run {name} could not be finished: {printable(why)}" for name, why in failed.items()]
    if told:
        from ..desktop import notify

        notify.tell("\n".join(told), loud=True)


def _tell(
    settled: list[Settled],
    busy: list[str],
    living: list[str],
    unknown: list[str],
    failed: dict[str, str],
    brush: paint.Paint,
) -> None:
    for one in settled:
        name = brush(printable(one.session), "bold")
        outcome = brush(one.outcome, "green" if one.complete else "red")
        print(f"{name}  {outcome}; {one.cause}; {notice.recovered(one)}")
        if (quiet := notice.silence(one)) is not None:
            print(f"    {quiet}")
        for problem in one.problems:
            print(f"    {brush(printable(problem), 'yellow')}")
    for name in busy:
        print(f"{name}  is supervised now, or being recovered by another process")
    for name in living:
        print(f"{name}  has a process that is still running; it is left alone")
    for name in unknown:
        print(f"{printable(name)}  is not there: settled already, or never was")
    for name, why in failed.items():
        print(f"{printable(name)}  {brush('could not be finished', 'red')}: {printable(why)}")
    if not (settled or busy or living or unknown or failed):
        print("nothing to recover")
