"""`hermes-supervise show`: the story of a session's death, and its transcript from state.db.

Never changes anything, and never lets a message command the terminal.
"""

from __future__ import annotations

import argparse
import json
import textwrap
import time
from typing import Any

from .. import notice
from ..plain import asdict
from ..recovery import report
from ..recovery.report import Settled
from ..recovery.statedb import StateDb, Trouble
from ..text import printable
from . import paint, sessions, story, table
from .words import ago, clock, one_line

_STYLES = {
    "failed": "red",
    "death": "red",
    "recovery": "green",
    "user": "bold",
    "hook": "blue",
    "start": "dim",
}
_LONGEST_WORDS = 400
_NARROW = 60


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="hermes-supervise show",
        description="The story of a session's death, and its transcript. Without SESSION, a list "
        "of all there are, as `sessions --all` prints it.",
    )
    made.add_argument("session", nargs="?", metavar="SESSION", help="the id of a session")
    paint.add_options(made)
    return made


def main(arguments: list[str]) -> int:
    wanted = parser().parse_args(arguments)
    every = report.every()
    brush = paint.chosen(wanted)
    if wanted.session is None and wanted.json:
        print(json.dumps([asdict(one) for one in every], indent=2))
        return 0
    if wanted.session is None:
        return sessions.main(["--all", "--color", wanted.color])
    found = [one for one in every if one.session == wanted.session]
    if not found:
        print("\n".join(unknown(wanted.session)))
        return 1
    session, messages = read(found[-1])
    if wanted.json:
        told = {
            "reports": [asdict(one) for one in found],
            "timelines": [[asdict(e) for e in story.timeline(one, messages)] for one in found],
            "session": session,
            "messages": messages,
        }
        print(json.dumps(told, indent=2))
    else:
        for one in reversed(found):
            _tell(one, session, messages, brush)
            print()
        print(brush("Transcript", "bold"))
        transcript(session, messages, brush)
    return 0


def unknown(name: str) -> list[str]:
    return [
        f"no report of a session {printable(name)}; `hermes-supervise sessions --all` lists what",
        "there is, and `hermes-supervise ps` what is still running",
    ]


def read(one: Settled) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """A session and its messages as they are now; trouble with that becomes one of its problems."""
    try:
        database = StateDb(one.db, read_only=True)
        try:
            return database.transcript(one.session)
        finally:
            database.close()
    except Trouble as trouble:
        if not any(str(trouble) in told for told in one.problems):
            one.problems.append(str(trouble))
        return None, []


def _tell(
    one: Settled, session: dict[str, Any] | None, messages: list[dict[str, Any]], brush: paint.Paint
) -> None:
    title = one_line(str((session or {}).get("title") or ""))
    heading = printable(one.session) + (f"  {printable(title)}" if title else "")
    for line in table.fold(heading, brush.width):
        print(brush(line, "bold"))
    style = "red" if one.outcome == "interrupted" else "green"
    when = f"{clock(one.died_at)}, {ago(one.died_at, time.time())}"
    for line in table.fold(f"{one.outcome}; {printable(one.cause)}; {when}", brush.width):
        print(brush(line, style))
    facts = story.facts(one)
    facts.append(("state.db", [one.db]))
    if one.outcome == "interrupted" and one.resume:
        facts.append(("resume it", [one.resume]))
    narrow = brush.width is not None and brush.width < _NARROW
    room = None if brush.width is None else brush.width - (4 if narrow else 16)
    for name, lines in facts:
        lead = f"  {name:<14}"
        if narrow:
            print(brush(f"  {name}", "dim"))
            lead = "    "
        for line in lines:
            for part in table.fold(printable(line), room, "  "):
                print(brush(lead, "dim") + part)
                lead = " " * len(lead)
    print(brush("\nTimeline", "bold"))
    for line in _timeline(one, messages, brush):
        print(line)
    for heading, text in _words(one, messages):
        print(brush(f"\n{heading}", "bold"))
        print(textwrap.indent(printable(text), "  "))


def _timeline(one: Settled, messages: list[dict[str, Any]], brush: paint.Paint) -> list[str]:
    lines, before = [], None
    for event in story.timeline(one, messages):
        at = time.strftime("%H:%M:%S", time.localtime(event.at)) + f"{event.at % 1:.3f}"[1:5]
        step = "" if before is None else f"+{notice.duration(event.at - before)}"
        before = event.at
        length = "" if event.until is None else f" ({notice.duration(event.until - event.at)})"
        lead = f"  {brush(at, 'dim')}  {step:>9}  "
        room = None if brush.width is None else max(12, brush.width - 27)
        for part in table.fold(one_line(printable(event.text)) + length, room, "  "):
            lines.append(lead + brush(part, _STYLES.get(event.kind, "")))
            lead = " " * 27
    return lines


def _words(one: Settled, messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """What stands at the end, shortened: the whole of it is in the transcript."""
    told = []
    for heading, role in (("The user's last words", "user"), ("Its last words", "assistant")):
        said = story.last_words(one, messages, role)
        if said is not None:
            more = f"… ({len(said):,} characters in all)" if len(said) > _LONGEST_WORDS else ""
            told.append((heading, said[:_LONGEST_WORDS] + more))
    for name, arguments in story.open_call(one, messages):
        told.append(("The call that was running", f"{name} {arguments[:_LONGEST_WORDS]}"))
    return told


def transcript(
    session: dict[str, Any] | None,
    messages: list[dict[str, Any]],
    brush: paint.Paint | None = None,
) -> None:
    brush = brush or paint.Paint()
    room = None if brush.width is None else max(12, brush.width - 8)
    if session is not None:
        shown = ("id", "source", "model", "title", "end_reason", "message_count", "tool_call_count")
        known = [name for name in shown if session.get(name) is not None]
        line = "  ".join(f"{name}={printable(str(session[name]))}" for name in known)
        for part in table.fold(line, room):
            print(f"    {part.strip()}")
    for message in messages:
        marks = [message.get("finish_reason"), message.get("effect_disposition")]
        told = "".join(f" ({mark})" for mark in marks if mark and mark != "stop")
        print(f"\n{message['id']:>6}  {brush(printable(message['role'] + told), 'cyan')}")
        for text in texts(message):
            for line in printable(text).splitlines():
                # What is indented is code or a table, whose lines are not ours to break.
                prose = not line.startswith((" ", "\t"))
                for part in table.fold(line, room) if prose else [line]:
                    print(f"        {part}")


def texts(message: dict[str, Any]) -> list[str]:
    """What a message says, in the order it was said."""
    said = [f"(reasoning) {message['reasoning']}"] if message.get("reasoning") else []
    if message.get("content"):
        said.append(str(message["content"]))
    if message.get("tool_calls"):
        calls = [f"(calls {name}) {arguments}" for _, name, arguments in story.calls_of(message)]
        said += calls or [str(message["tool_calls"])]
    return said
