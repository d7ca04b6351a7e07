"""`hermes-supervise recover`: recovers what an earlier crash left behind. Safe at any time.

Never touches a run that is supervised, or a process that is alive.
"""

from __future__ import annotations

import argparse
import gc
import json
import os

from ....ipc.lightweight.dataclass import asdict, dataclass, field
from ...hooks import launcher, queue
from ...model.text import printable
from ...process import launch
from ...process.signals import FORWARDED, signal
from ...recovery.finish import NotPutAway
from ...recovery.report import SessionReport
from ...run import notice
from ...run.recover import finish_left_behind
from ...storage import run_folder as runs
from ..errors import PROBLEMS, Parser
from ..output import style, table
from ..output.patience import explained
from ..output.progress import Progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# How long a person who ran a command waits for hooks.
_HOOK_PATIENCE = 10.0
# How long it waits for a job that outlived its supervisor.
_JOB_PATIENCE = 30.0
_INDENT = "    "


@dataclass
class Recovery:
    """The result of one `recover`. The names of runs, except `settled`."""

    settled: list[SessionReport] = field(default_factory=list)
    supervised: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        written = all(report.complete for report in self.settled)
        return written and not (self.unknown or self.failed)


def parser() -> argparse.ArgumentParser:
    command = Parser(
        prog="hermes-supervise recover",
        description="Recover what an earlier crash left behind: messages, session ends, hooks.",
    )
    command.add_argument("run", nargs="*", metavar="RUN", help="only these runs (default: all)")
    command.add_argument(
        "--notify",
        action="store_true",
        help="report by desktop notification as well: for a login script",
    )
    style.add_options(command)
    return command


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    gc.disable()  # the collector would walk through every message again and again
    runs.runs_folder()  # raises if it cannot be used: that is not "nothing to recover"
    result = _recover(args.run)
    hooks_continue = not run_hooks()
    for report in result.settled:
        report.hooks = [_current(report, hook) for hook in report.hooks]
    if args.json:
        settled = [asdict(report) for report in result.settled]
        answer = {"settled": settled, "supervised": result.supervised, "running": result.running,
                  "unknown": result.unknown, "failed": result.failed}  # fmt: skip
        print(json.dumps(answer, indent=2))
    else:
        print("\n".join(_lines(result, style.for_output(args))))
        if hooks_continue:
            print("hooks continue in the background; see `hermes-supervise hooks`")
    if args.notify:
        _notify(result)
    return 0 if result.complete else PROBLEMS


def _recover(names: list[str]) -> Recovery:
    folders = {os.path.basename(folder): folder for folder in runs.left_behind()}
    result = Recovery(unknown=[name for name in names if name not in folders])
    chosen = {n: folder for n, folder in folders.items() if not names or n in names}
    progress = Progress(len(chosen))
    for name, folder in chosen.items():
        progress.begin_run()
        try:
            with explained(f"a process that {name} left is still writing to state.db"):
                run = runs.claim_after_job(folder, _JOB_PATIENCE)
            if run is None:
                result.supervised += [name] * os.path.isdir(folder)  # or it was settled meanwhile
                continue
            with explained(f"still writing to state.db what {name} left; it may be locked"):
                finished = finish_left_behind(run, progress=progress.wrote)
            speakers = runs.retire(run)
        except Exception as fault:  # it must not keep the other runs from being recovered
            result.failed[name] = _why(fault, folder)
            continue
        result.settled += finished.reports
        result.running += [name] * bool(finished.living or speakers)
    progress.end()
    return result


def _why(fault: Exception, folder: str) -> str:
    if isinstance(fault, OSError) and fault.strerror:
        return f"{fault.filename or folder}: {fault.strerror}"
    return str(fault) if isinstance(fault, OSError | NotPutAway) else type(fault).__name__


def run_hooks() -> bool:
    """Run the hooks that are due. True if they were done within a moment."""
    if not launcher.hooks_pending():
        return True

    def prepare() -> None:
        for number in (*FORWARDED, signal.SIGTSTP):
            signal.signal(number, signal.SIG_IGN)
        launch.close_inherited_streams()
        launch.close_standard_error()

    _, first_pass = launcher.start_runner(None, prepare)
    with explained("still waiting for hooks, which continue without you"):
        return launcher.wait_for_first_pass(first_pass, _HOOK_PATIENCE)


def _current(report: SessionReport, hook: dict[str, Any]) -> dict[str, Any]:
    """The result of a hook that may have run since the report was written."""
    entry = queue.find(hook["id"], f"{report.run}.{report.stream}")
    return hook if entry is None else entry.summary()


def _notify(result: Recovery) -> None:
    text = notice.lines(result.settled, None)
    for name, why in result.failed.items():
        text.append(f"run {name} could not be recovered: {printable(why)}")
    if text:
        from ...desktop import notify  # start-up: only with --notify

        notify.tell("\n".join(text), loud=True)


def _lines(result: Recovery, styled: style.Style) -> list[str]:
    lines: list[str] = []

    def about(name: str, what: str, colour: str, more: str = "") -> None:
        """What became of a session or a run, folded before it is coloured."""
        first, *rest = table.fold(f"{name}  {what}{more}", styled.width, _INDENT)
        first = first.removeprefix(name).replace(what, styled(what, colour), 1)
        lines.extend([styled(name, "bold") + first, *rest])

    def below(text: str, colour: str = "") -> None:
        lines.extend(styled(line, colour)
                     for line in table.fold(_INDENT + text, styled.width, _INDENT))  # fmt: skip

    for report in result.settled:
        colour = "green" if report.complete else "red"
        more = f"; {report.cause}; {notice.recovered(report)}"
        about(printable(report.session), report.outcome, colour, more)
        if (no_reply := notice.missing_reply(report)) is not None:
            below(no_reply)
        for problem in report.problems:
            below(printable(problem), "yellow")
    for name in result.supervised:
        about(name, "still supervised, or being recovered by another process", "")
    for name in result.running:
        about(name, "has a process that is still running; left alone", "")
    for name in result.unknown:
        about(printable(name), "no such run; it may have been recovered already", "")
    for name, why in result.failed.items():
        about(printable(name), "could not be recovered", "red", f": {printable(why)}")
        if notice.is_disk_full(why):
            below("make room there, then run `hermes-supervise recover` again")
    return lines or ["nothing to recover"]
