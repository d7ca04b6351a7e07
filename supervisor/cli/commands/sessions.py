"""`hermes-supervise sessions`: interrupted and recovered sessions, and how to resume each.

Never changes a database. `sessions forget` deletes reports, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from ....ipc.lightweight.dataclass import asdict
from ...model.text import printable
from ...recovery import report as reports
from ...recovery.report import SessionReport
from ...run import notice, out_of_reach
from ...storage import run_folder as runs
from ...storage import run_lock
from ...storage.run_notes import living_agent
from ..errors import PROBLEMS, USAGE, CommandError, Parser
from ..output import pager, style, table
from ..output.formatting import ago, number, one_line
from ..output.table import Column, Row
from ..session_lookup import Rows, current_rows, latest, matching, not_found

_STYLES = {"interrupted": "yellow", "resumed since": "green", "not written": "red"}


def parser() -> argparse.ArgumentParser:
    command = Parser(
        prog="hermes-supervise sessions",
        usage="%(prog)s [--all] [--json] [SESSION ...]\n       %(prog)s forget SESSION ...|--all",
        description="List interrupted and recovered sessions and how to resume each, newest first.",
        epilog="`hermes-supervise sessions forget` deletes reports that you are done with.",
    )
    command.add_argument(
        "session",
        nargs="*",
        metavar="SESSION",
        help="only these: an id or its first characters, a title, or `last`",
    )
    command.add_argument(
        "--all",
        action="store_true",
        help="include sessions that ended normally, and those of subagents",
    )
    pager.add_option(command)
    style.add_options(command)
    return command


def _forget_parser() -> argparse.ArgumentParser:
    command = Parser(
        prog="hermes-supervise sessions forget",
        description="Delete the reports about sessions that you are done with. They disappear "
        "from `sessions` and `show`; state.db is not changed.",
    )
    command.add_argument(
        "session",
        nargs="*",
        metavar="SESSION",
        help="an id or its first characters, a title, or `last`",
    )
    command.add_argument("--all", action="store_true", help="forget all sessions")
    style.add_options(command)
    return command


SUBCOMMANDS = {"forget": ("delete the reports about sessions", _forget_parser)}


def main(argv: list[str]) -> int:
    if argv[:1] == ["forget"]:
        return _forget(argv[1:])
    args = parser().parse_args(argv)
    everything = reports.every()
    rows = current_rows(latest(everything))
    shown = [_standing(r, everything, rows) for r in _chosen(args, everything, rows)]
    if not args.session and not args.all:
        shown = [report for report in shown if _needs_attention(report)]
    if args.json:
        print(json.dumps([{**asdict(r), **_now(r, rows)} for r in shown], indent=2))
        return 0
    styled = style.for_output(args)
    lines = _lines(shown, rows, styled)
    listed = {report.run for report in shown if not report.complete}
    for agent in out_of_reach.find():
        sentence, command = str(agent).split("\n")
        lines += [*table.fold(sentence, styled.width, "  "), styled(command, table.COMMAND)]
    waiting = [run for run in to_recover() if run not in listed]
    if waiting:
        verb = "waits" if len(waiting) == 1 else "wait"
        what = number(len(waiting), "run")
        lines.append(f"{what} {verb} to be recovered: hermes-supervise recover")
    elif not lines:
        others = len(latest(everything))
        more = f"; --all lists {number(others, 'other session')}" if others else ""
        lines.append("no sessions yet" if args.all else f"no interrupted sessions{more}")
    pager.show(lines, use_pager=not args.no_pager)
    return 0


def _chosen(
    args: argparse.Namespace, everything: list[SessionReport], rows: Rows
) -> list[SessionReport]:
    if not args.session:
        return latest(everything)
    chosen: list[SessionReport] = []
    for word in args.session:
        found = matching(word, everything, rows)
        if not found:
            raise not_found(word, everything)
        chosen += [r for r in found if r not in chosen]
    return chosen


def to_recover() -> list[str]:
    """The runs that wait to be recovered: neither supervised nor alive. Takes no lock.

    Among them are those that a dead supervisor's job still holds: a start skips them, and `recover`
    waits for the job."""
    waiting = []
    for folder in runs.left_behind():
        run = runs.Run(folder, -1)
        if run_lock.holder_of(folder) is not None and not run_lock.is_held_by_orphan(folder):
            continue
        if living_agent(run.folder) is not None:
            continue
        if not runs.has_nothing_to_recover(run):
            waiting.append(run.name)
    return waiting


def _standing(report: SessionReport, everything: list[SessionReport], rows: Rows) -> SessionReport:
    """The report that counts of a session whose latest is this one: an interruption counts until
    something is said in the session again, whoever opened and closed it meanwhile."""
    if _needs_attention(report) or report.subagent:
        return report
    row = rows.get((report.db, report.session), {})
    earlier = [
        r for r in everything
        if (r.db, r.session, r.outcome) == (report.db, report.session, "interrupted")
        and r.died_at < report.died_at
    ]  # fmt: skip
    before = max(earlier, key=lambda r: r.died_at, default=report)
    return before if before.complete and not _said_since(before, row) else report


def _said_since(report: SessionReport, row: dict[str, Any]) -> bool:
    """False if it is known that the session has no message from after its recovery."""
    last, settled = row.get("last"), report.settled_at
    return not (isinstance(last, int | float) and settled is not None and last <= settled)


def _needs_attention(report: SessionReport) -> bool:
    own = report.outcome == "interrupted" and not report.subagent
    return own or not report.complete


def _now(report: SessionReport, rows: Rows) -> dict[str, Any]:
    """Title and state as they are now."""
    row = rows.get((report.db, report.session), {})
    state = report.outcome
    if not report.complete:
        state = "not written"
    elif row and report.outcome == "interrupted" and _went_on(report, row):
        state = "resumed since"
    return {"title": row.get("title"), "state": state}


def _offered(report: SessionReport, current: dict[str, Any], row: dict[str, Any]) -> bool:
    """True if resuming it is the next step. A session that was opened again and left without a
    message is still where it was interrupted."""
    if current["state"] != "resumed since":
        return bool(current["state"] == "interrupted")
    return not _said_since(report, row)


def _went_on(report: SessionReport, row: dict[str, Any]) -> bool:
    """True if the session was opened again after the interruption, whoever ended it then."""
    if row.get("end_reason") != (report.end_reason or "interrupted"):
        return True
    ended, settled = row.get("ended_at"), report.settled_at
    return isinstance(ended, int | float) and settled is not None and ended > settled


def _lines(shown: list[SessionReport], rows: Rows, styled: style.Style) -> list[str]:
    if not shown:
        return []
    now = time.time()
    columns = [Column("SESSION"), Column("WHEN"), Column("STATE"),
               Column("HOW", least=14), Column("TITLE", least=8)]  # fmt: skip
    return table.render(columns, [_row(r, rows, now) for r in shown], styled)


def _row(report: SessionReport, rows: Rows, now: float) -> Row:
    current = _now(report, rows)
    cells = [
        one_line(printable(report.session)),
        ago(report.died_at, now),
        current["state"],
        printable(report.cause),
        one_line(printable(str(current["title"] or ""))),
    ]
    notes = []
    if report.outcome == "interrupted":
        no_reply = notice.missing_reply(report)
        recovered = notice.recovered(report)
        notes.append((f"{recovered}; {no_reply}" if no_reply else recovered, "dim"))
        if _offered(report, current, rows.get((report.db, report.session), {})):
            show = f"hermes-supervise show {shell_word(report.session)}"
            notes.append((notice.resume_command(report) or show, table.COMMAND))
    if not report.complete:
        notes += [(printable(problem), "") for problem in report.problems]
        notes.append(("hermes-supervise recover", table.COMMAND))
    return Row(cells, {0: "bold", 2: _STYLES.get(current["state"], "")}, notes)


def shell_word(name: str) -> str:
    from shlex import quote  # start-up: completions do not need it

    return printable(quote(name))


# -- forget ------------------------------------------------------------------------------------


def _forget(argv: list[str]) -> int:
    args = _forget_parser().parse_args(argv)
    if bool(args.session) == args.all:
        raise CommandError("name the sessions to forget: SESSION..., or --all", USAGE)
    everything = reports.every()
    rows = current_rows(latest(everything)) if args.session else {}
    chosen = {r.session for r in everything} if args.all else set()
    for word in args.session:
        found = {r.session for r in matching(word, everything, rows)}
        if not found:
            raise not_found(word, everything)
        if len(found) > 1:
            raise CommandError(f"{word!r} matches {len(found)} sessions; name one", USAGE)
        chosen |= found
    forgotten, kept = reports.forget(chosen)
    if args.json:
        print(json.dumps({"forgotten": forgotten, "kept": kept}, indent=2))
    else:
        for session in kept:
            print(f"{printable(session)}  not forgotten: its run is not recovered yet, or not over")
        print(f"forgot {number(len(forgotten), 'session')}")
    return PROBLEMS if kept else 0
