"""`hermes-supervise show`: what happened to a session, and its transcript from state.db.

Never changes anything, and never lets a message control the terminal.
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
from ...run import notice
from ...statedb.writer import StateDb, StateDbError
from ..errors import Parser
from ..output import pager, replicated, story, style, table
from ..output.formatting import ago, date_and_time, one_line, time_of_day
from ..session_lookup import find, reports_about
from . import sessions

SESSION_HELP = "an id or its first characters, a title, or `last` for the latest"
_STYLES = {
    "failed": "red",
    "death": "red",
    "recovery": "green",
    "user": "bold",
    "hook": "blue",
    "start": "dim",
}
_MAX_QUOTED = 400
_NARROW = 60


def parser() -> argparse.ArgumentParser:
    command = Parser(
        prog="hermes-supervise show",
        description="Show what happened to a session, and its transcript. Without SESSION, list "
        "all sessions, as `sessions --all` does.",
    )
    command.add_argument("session", nargs="?", metavar="SESSION", help=SESSION_HELP)
    command.add_argument("--no-transcript", action="store_true", help="leave out the transcript")
    pager.add_option(command)
    style.add_options(command)
    return command


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    if args.session is None:
        if args.json:
            print(json.dumps([asdict(r) for r in reports.every()], indent=2))
            return 0
        no_pager = ["--no-pager"] if args.no_pager else []
        return sessions.main(["--all", "--color", args.color, *no_pager])
    found = find(args.session, reports_about(args.session))
    session, messages = read(found[-1])
    if args.json:
        answer = {
            "reports": [asdict(r) for r in found],
            "timelines": [[asdict(e) for e in story.timeline(r, messages)] for r in found],
            "session": session,
            "messages": [] if args.no_transcript else messages,
        }
        print(json.dumps(answer, indent=2))
        return 0
    styled = style.for_output(args)
    lines: list[str] = []
    for report in reversed(found):
        lines += [*_death(report, session, messages, styled), ""]
    if not args.no_transcript:
        lines += [styled("Transcript", "bold"), *transcript(session, messages, styled)]
    pager.show(lines, use_pager=not args.no_pager)
    return 0


def read(report: SessionReport) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """A session and its messages as they are now. An error becomes one of its problems."""
    try:
        database = StateDb(report.db, read_only=True)
        try:
            return database.reader.transcript(report.session)
        finally:
            database.close()
    except StateDbError as error:
        if not any(str(error) in problem for problem in report.problems):
            report.problems.append(str(error))
        return None, []


def _death(
    report: SessionReport,
    session: dict[str, Any] | None,
    messages: list[dict[str, Any]],
    styled: style.Style,
) -> list[str]:
    title = one_line(str((session or {}).get("title") or ""))
    heading = printable(report.session) + (f"  {printable(title)}" if title else "")
    lines = [styled(line, "bold") for line in table.fold(heading, styled.width)]
    colour = "red" if report.outcome == "interrupted" else "green"
    when = f"{date_and_time(report.died_at)}, {ago(report.died_at, time.time())}"
    summary = f"{report.outcome}; {printable(report.cause)}; {when}"
    lines += [styled(line, colour) for line in table.fold(summary, styled.width)]
    facts = story.facts(report) + replicated.facts(report.stream)
    facts.append(("state.db", [report.db]))
    resume = notice.resume_command(report)
    if report.outcome == "interrupted" and resume:
        facts.append(("resume it", [resume]))
    lines += _fact_lines(facts, styled)
    lines += [styled("\nTimeline", "bold"), *_timeline(report, messages, styled)]
    for heading, text in _last_messages(report, messages):
        lines.append(styled(f"\n{heading}", "bold"))
        room = None if styled.width is None else max(12, styled.width - 2)
        for line in printable(text).splitlines():
            lines += [f"  {part}" for part in table.fold(line, room)]
    return lines


def _fact_lines(facts: list[tuple[str, list[str]]], styled: style.Style) -> list[str]:
    narrow = styled.width is not None and styled.width < _NARROW
    room = None if styled.width is None else styled.width - (4 if narrow else 16)
    lines = []
    for name, values in facts:
        lead = f"  {name:<14}"
        if narrow:
            lines.append(styled(f"  {name}", "dim"))
            lead = "    "
        for value in values:
            # A path or a command is copied, so it is not broken.
            whole = name in ("state.db", "resume it")
            for part in [printable(value)] if whole else table.fold(printable(value), room, "  "):
                lines.append(styled(lead, "dim") + part)
                lead = " " * len(lead)
    return lines


def _timeline(
    report: SessionReport, messages: list[dict[str, Any]], styled: style.Style
) -> list[str]:
    lines, before = [], None
    for event in story.timeline(report, messages):
        at = time_of_day(event.at)
        step = "" if before is None else f"+{notice.duration(event.at - before)}"
        before = event.at
        length = "" if event.until is None else f" ({notice.duration(event.until - event.at)})"
        lead = f"  {styled(at, 'dim')}  {step:>9}  "
        room = None if styled.width is None else max(12, styled.width - 27)
        for part in table.fold(one_line(printable(event.text)) + length, room, "  "):
            lines.append(lead + styled(part, _STYLES.get(event.kind, "")))
            lead = " " * 27
    return lines


def _last_messages(report: SessionReport, messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Headings and texts, shortened: the transcript has all of it."""
    quoted = []
    for heading, text in story.last_words(report, messages):
        more = f"… ({len(text):,} characters in all)" if len(text) > _MAX_QUOTED else ""
        quoted.append((heading, text[:_MAX_QUOTED] + more))
    for name, arguments in story.open_call(report, messages):
        quoted.append(("Running tool call", f"{name} {arguments[:_MAX_QUOTED]}"))
    return quoted


def transcript(
    session: dict[str, Any] | None,
    messages: list[dict[str, Any]],
    styled: style.Style | None = None,
) -> list[str]:
    styled = styled or style.Style()
    room = None if styled.width is None else max(12, styled.width - 8)
    lines = []
    if session is not None:
        shown = ("id", "source", "model", "title", "end_reason", "message_count", "tool_call_count")
        known = [name for name in shown if session.get(name) is not None]
        line = "  ".join(f"{name}={printable(str(session[name]))}" for name in known)
        lines += [f"    {part.strip()}" for part in table.fold(line, room)]
    for message in messages:
        marks = [message.get("finish_reason"), message.get("effect_disposition")]
        suffix = "".join(f" ({mark})" for mark in marks if mark and mark != "stop")
        role = styled(printable(message["role"] + suffix), "cyan")
        lines += ["", f"{message['id']:>6}  {role}"]
        for text in texts(message):
            for line in printable(text).splitlines():
                # An indented line is code or a table, which must not be folded.
                prose = not line.startswith((" ", "\t"))
                lines += [f"        {p}" for p in (table.fold(line, room) if prose else [line])]
    return lines


def texts(message: dict[str, Any]) -> list[str]:
    """What a message contains, in order: reasoning, text, tool calls."""
    parts = [f"(reasoning) {message['reasoning']}"] if message.get("reasoning") else []
    if message.get("content"):
        parts.append(str(message["content"]))
    if message.get("tool_calls"):
        calls = [f"(calls {name}) {arguments}" for _, name, arguments in story.calls_of(message)]
        parts += calls or [str(message["tool_calls"])]
    return parts
