"""The notice after a crash: what killed the agent, what was recovered, how to resume or read it.

Never more than a few lines, never contains message text, and empty if there was no crash. The
functions for single facts are also used by `ps`, `sessions`, `show` and the report.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from ..model.text import printable
from ..process.cause import Cause
from ..recovery.report import SessionReport

_MAX_SHOWN = 3
# A full disk, or a quota that is used up.
_DISK_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
# Lines that people copy. They are never wrapped.
_COMMANDS = ("  read it: ", "  resume it: ")
_INDENT = 4
# What our lines on standard error begin with.
_NAME = "hermes-supervise: "
_UNITS = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def lines(reports: list[SessionReport], cause: str | None) -> list[str]:
    """The notice about these sessions; empty if there is nothing to say.

    `cause` is how the started command ended.
    """
    interrupted = [r for r in reports if r.outcome == "interrupted" and not r.subagent]
    with_problems = [r for r in reports if r.problems and r not in interrupted]
    if not interrupted and not with_problems:
        return []
    text = [f"the agent was interrupted: {_why(interrupted[0], cause)}"] if interrupted else []
    for report in (interrupted + with_problems)[:_MAX_SHOWN]:
        name = printable(report.session)
        text.append(f"  session {name}: {recovered(report)}{_hooks(report)}")
        if (no_reply := missing_reply(report)) is not None:
            who = f"session {name}:" if len(interrupted) > 1 else "it"
            text.append(f"  {who} {no_reply}")
        text += [f"  session {name}: {printable(problem)}" for problem in report.problems]
    if lost := sorted({name for report in interrupted for name in report.not_captured}):
        text.append(f"  not captured in this release: {printable(', '.join(lost))}")
    if len(interrupted) > _MAX_SHOWN:
        text.append(f"  and {len(interrupted) - _MAX_SHOWN} more sessions")
    for report in interrupted[:1]:
        resume = resume_command(report)
        show = f"hermes-supervise show {printable(report.session)}"
        text.append(f"  resume it: {resume}" if resume else f"  read it: {show}")
    if any(not report.complete for report in reports):
        text.append(
            "  nothing is lost: make state.db writable, then run `hermes-supervise recover`"
        )
    return text


def not_recovered(cause: str | None, why: str | None) -> list[str]:
    """The notice after a recovery that could not even report. `why`: the run's folder cannot be
    written."""
    first = f"the agent was interrupted: {cause}" if cause else "the agent was interrupted"
    what = f"  its recovery did not finish: {why}" if why else "  its recovery did not finish"
    remedy = "make that folder writable, then run" if why else "try it again:"
    if why and is_disk_full(why):
        remedy = "make room there, then run"
    return [first, what, f"  {remedy} `hermes-supervise recover`"]


def is_disk_full(why: str) -> bool:
    return any(text in why for text in _DISK_FULL)


def wrapped(text: list[str], columns: int | None, *, first: bool = False) -> list[str]:
    """The lines broken at spaces to fit the terminal, except commands that people copy. `first`:
    the first line, which follows our name, may be long as well."""
    if not columns:
        return text
    lines = []
    if first:
        text = [_NAME + text[0], *text[1:]]
    for line in text:
        # Otherwise the first line is short.
        keep = line.startswith(_COMMANDS) or not (first or line.startswith(" "))
        while len(line) > columns and not keep:
            cut = line.rfind(" ", _INDENT + 1, columns + 1)
            cut = cut if cut >= 0 else line.find(" ", columns)
            if cut < 0:
                break
            lines.append(line[:cut])
            line = " " * _INDENT + line[cut + 1 :]
        lines.append(line)
    return [lines[0].removeprefix(_NAME), *lines[1:]] if first else lines


def _why(report: SessionReport, cause: str | None) -> str:
    """The cause of death of the process that owned the session, if known."""
    return cause if cause and report.cause == str(Cause()) else report.cause


def resume_command(report: SessionReport) -> str | None:
    """The command that resumes a session under supervision; None if there is none."""
    command = report.resume_full or report.resume
    return supervised(command) if command else None


def supervised(command: str) -> str:
    return f"hermes-supervise -- {printable(command)}"


def goes_on(title: str, daemon: int, cause: str) -> list[str]:
    """The command has ended, and a daemon goes on with its turn."""
    return [
        f"{title} goes on with its turn in the background: what you saw was a client ({cause})",
        f"  left running: its daemon, process {daemon}",
        "  what it still says is recorded; hermes-supervise ps shows it, "
        "hermes-supervise sessions how to resume it",
    ]


def left_behind(orphans: list[dict[str, Any]]) -> list[str]:
    """Lines about the processes that a dead agent left running; the report has all of them."""
    hidden = len(orphans) - _MAX_SHOWN
    more = [f"  and {hidden} more processes"] if hidden > 0 else []
    return [f"  {line}" for line in orphan_lines(orphans[:_MAX_SHOWN], shortened=80)] + more


def orphan_lines(orphans: list[dict[str, Any]], shortened: int | None = None) -> list[str]:
    """A line for each process, and one for each file in which it left its environment."""
    text = []
    for orphan in orphans:
        kind = "" if orphan["kind"] == "other" else f"{orphan['kind']} "
        command = printable(str(orphan["command"]).replace("\n", " "))[:shortened]
        about = f"{kind}process {orphan['pid']}, {orphan['age']:.0f} s old, {orphan['done']}"
        text.append(f"{about}: {command}")
    dumps = sorted({str(path) for orphan in orphans for path in orphan["dumps"]})
    return text + [
        f"its environment, including secrets, is still in {path}" for path in map(printable, dumps)
    ]


def recovered(report: SessionReport) -> str:
    counts = report.recovered
    if not report.complete:
        return "not written to state.db yet, safe in the journal"
    if not counts.messages:
        known = "everything in its transcript" if report.unseen_reply else "everything"
        return f"{known} was already in state.db"
    parts = [_number(counts.messages, "message")]
    if counts.partial_characters:
        characters = _number(counts.partial_characters, "character")
        parts.append(f"including {characters} of the reply in progress")
    if counts.calls_unknown:
        parts.append(f"{_number(counts.calls_unknown, 'tool call')} with unknown effect")
    if counts.calls_never_started:
        parts.append(f"{_number(counts.calls_never_started, 'tool call')} that never started")
    return "recovered " + ", ".join(parts)


def missing_reply(report: SessionReport) -> str | None:
    """Says that the last turn produced no reply, unless the user had stopped it."""
    turn = report.turn
    if report.outcome == "open elsewhere":
        return None
    if report.unseen_reply and report.recovered.partial_characters:
        return "was writing a reply; the last words that were on screen may be missing"
    if report.unseen_reply:
        return "was due to reply; what the screen showed of that is not in its transcript"
    if turn is None or turn["stopped"] or turn["characters"]:
        return None
    tools = turn["tools"] - report.recovered.calls_never_started
    counts = ((turn["answers"], "API call"), (tools, "tool call"))
    work = [_number(count, noun) for count, noun in counts if count > 0]
    if work:
        return f"worked without replying: {', '.join(work)}"
    if report.doing == "working":
        return "had not started its reply"
    return None


def activity_at_death(report: SessionReport) -> str:
    stopped = report.turn is not None and bool(report.turn["stopped"])
    if report.doing == "ended" and report.outcome == "interrupted":
        return "in the middle of a turn; the agent ended the session itself"
    return activity(
        report.doing, report.doing_since, report.open_calls, report.died_at, stopped=stopped
    )


def activity(
    phase: str | None,
    since: float | None,
    calls: list[dict[str, Any]],
    now: float,
    *,
    stopped: bool = False,
) -> str:
    """What a session is or was doing, and for how long, as far as the agent reported it."""
    running = [call for call in calls if call["started"]]
    if phase == "calling" and running:
        names = [printable(str(call["name"])) for call in running]
        tools = ", ".join(names[:_MAX_SHOWN]) + (", \u2026" if len(names) > _MAX_SHOWN else "")
        first = min((call["since"] or now) for call in running)
        return f"in {'tool' if len(names) == 1 else 'tools'} {tools}{_for(first, now)}"
    if phase == "working" and stopped:
        return "idle: the user stopped the turn"
    known = {"idle": "idle", "working": "thinking", "replying": "replying", "calling": "thinking"}
    shown = known.get(phase or "")
    if shown is None:
        return "nothing: the session had ended" if phase == "ended" else "unknown"
    return shown + _for(since, now)


def _for(since: float | None, now: float) -> str:
    return f" for {duration(now - since)}" if since and now >= since else ""


def duration(seconds: float) -> str:
    """At most two units: the seconds of a day do not matter."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    whole = int(seconds)
    for size, name, smaller, smaller_name in _UNITS:
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {name}" + (f" {rest} {smaller_name}" if rest else "")
    return f"{whole} s"


def _hooks(report: SessionReport) -> str:
    pending = [hook for hook in report.hooks if hook["outcome"] in ("waiting", "running")]
    ended = [hook for hook in report.hooks if hook not in pending]
    failed = [hook for hook in ended if hook["outcome"] != "ok"]
    text = f"; {_number(len(ended), 'hook')} ran" if ended else ""
    if failed:
        abandoned = any(hook.get("state") == "dead" for hook in failed)
        then = "was abandoned" if abandoned else "will be retried"
        text += f", {len(failed)} failed ({printable(failed[0]['outcome'])}) and {then}"
    return text + (f"; {_number(len(pending), 'hook')} still running" if pending else "")


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
