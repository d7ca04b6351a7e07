"""The few lines after a crash: what killed the agent, what was recovered, how to read it.

Never more than a handful, never a message's text, nothing where there was no crash.
"""

from __future__ import annotations

from typing import Any

from .cause import Cause
from .recovery.report import Settled
from .text import printable

_MOST = 3
_TYPED = ("  read it: ", "  resume it: ")
_INDENT = 4
_UNITS = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def lines(settled: list[Settled], cause: str | None) -> list[str]:
    """What to tell the user; nothing if there is nothing to tell."""
    interrupted = [one for one in settled if one.outcome == "interrupted" and not one.subagent]
    troubled = [one for one in settled if one.problems and one not in interrupted]
    if not interrupted and not troubled:
        return []
    told = [f"the agent was interrupted: {_why(interrupted[0], cause)}"] if interrupted else []
    for one in (interrupted + troubled)[:_MOST]:
        name = printable(one.session)
        told.append(f"  session {name}: {recovered(one)}{_hooks(one)}")
        if (quiet := silence(one)) is not None:
            told.append(f"  session {name}: {quiet}" if len(interrupted) > 1 else f"  it {quiet}")
        told += [f"  session {name}: {printable(problem)}" for problem in one.problems]
    if len(interrupted) > _MOST:
        told.append(f"  and {len(interrupted) - _MOST} more sessions")
    for one in interrupted[:1]:
        read = f"hermes-supervise show {printable(one.session)}"
        told.append(f"  resume it: {printable(one.resume)}" if one.resume else f"  read it: {read}")
    if any(not one.complete for one in settled):
        told.append("  nothing is lost: hermes-supervise recover writes it once that is mended")
    return told


def fitted(told: list[str], columns: int | None) -> list[str]:
    """Broken at blanks where a terminal would break them anywhere; but not what is to be typed."""
    if not columns:
        return told
    lines = []
    for line in told:
        # The first follows our name, and is short.
        whole = line.startswith(_TYPED) or not line.startswith(" ")
        while len(line) > columns and not whole:
            cut = line.rfind(" ", _INDENT + 1, columns + 1)
            cut = cut if cut >= 0 else line.find(" ", columns)
            if cut < 0:
                break
            lines.append(line[:cut])
            line = " " * _INDENT + line[cut + 1 :]
        lines.append(line)
    return lines


def _why(one: Settled, cause: str | None) -> str:
    """Of the process that had the session, which need not be the one that was started."""
    return cause if cause and one.cause == str(Cause()) else one.cause


def left_behind(found: list[dict[str, Any]]) -> list[str]:
    """What a dead agent left running; the rest is in the report."""
    more = [f"  and {len(found) - _MOST} more processes"] if len(found) > _MOST else []
    return [f"  {line}" for line in orphans(found[:_MOST], shortened=80)] + more


def orphans(found: list[dict[str, Any]], shortened: int | None = None) -> list[str]:
    """A line a process, and one for the dump of its environment that it leaves on the disk."""
    told = []
    for one in found:
        what = "" if one["kind"] == "other" else f"{one['kind']} "
        command = printable(str(one["command"]).replace("\n", " "))[:shortened]
        told.append(f"{what}process {one['pid']}, {one['age']:.0f} s old, {one['done']}: {command}")
    dumps = sorted({str(path) for one in found for path in one["dumps"]})
    return told + [
        f"its environment, secrets included, is still in {d}" for d in map(printable, dumps)
    ]


def recovered(one: Settled) -> str:
    counts = one.recovered
    if not one.complete:
        return "kept in the journal"
    if not counts.messages:
        return "all of it was in state.db already"
    parts = [_number(counts.messages, "message")]
    if counts.partial_characters:
        parts.append(f"with {counts.partial_characters:,} characters of the reply in progress")
    if counts.calls_unknown:
        parts.append(f"{_number(counts.calls_unknown, 'tool call')} closed as unknown")
    if counts.calls_never_started:
        parts.append(f"{_number(counts.calls_never_started, 'tool call')} never started")
    return "recovered " + ", ".join(parts)


def silence(one: Settled) -> str | None:
    """A turn that came to no word of a reply is named, unless the user wanted no more of it."""
    turn = one.turn
    if turn is None or turn["stopped"] or turn["characters"] or one.outcome == "open elsewhere":
        return None
    worked = [
        _number(count, what)
        for count, what in (
            (turn["answers"], "API call"),
            (turn["tools"] - one.recovered.calls_never_started, "tool call"),
        )
        if count > 0
    ]
    if worked:
        return f"did work, said nothing: {', '.join(worked)}, and no reply"
    if one.doing == "working":
        return "was at work on a reply, and had not begun it"
    return None


def doing(one: Settled) -> str:
    """What it was doing when it died."""
    stopped = one.turn is not None and bool(one.turn["stopped"])
    return activity(one.doing, one.doing_since, one.open_calls, one.died_at, stopped=stopped)


def activity(
    phase: str | None,
    since: float | None,
    calls: list[dict[str, Any]],
    now: float,
    *,
    stopped: bool = False,
) -> str:
    """What a session is or was doing, and for how long, as far as somebody said so."""
    running = [call for call in calls if call["started"]]
    if phase == "calling" and running:
        names = [printable(str(call["name"])) for call in running]
        tools = ", ".join(names[:_MOST]) + (", \u2026" if len(names) > _MOST else "")
        first = min((call["since"] or now) for call in running)
        return f"in {'tool' if len(names) == 1 else 'tools'} {tools}{_for(first, now)}"
    if phase == "working" and stopped:
        return "idle: the user broke the turn off"
    known = {"idle": "idle", "working": "thinking", "replying": "replying", "calling": "thinking"}
    words = known.get(phase or "")
    if words is None:
        return "nothing: it had ended the session" if phase == "ended" else "unknown"
    return words + _for(since, now)


def _for(since: float | None, now: float) -> str:
    return f" for {duration(now - since)}" if since and now >= since else ""


def duration(seconds: float) -> str:
    """Two figures at most: nobody wants the seconds of a day."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    whole = int(seconds)
    for size, name, smaller, its_name in _UNITS:
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {name}" + (f" {rest} {its_name}" if rest else "")
    return f"{whole} s"


def _hooks(one: Settled) -> str:
    pending = [ran for ran in one.hooks if ran["outcome"] in ("waiting", "running")]
    ended = [ran for ran in one.hooks if ran not in pending]
    failed = [ran for ran in ended if ran["outcome"] != "ok"]
    told = f"; {_number(len(ended), 'hook')} run" if ended else ""
    if failed:
        again = "" if any(ran.get("state") == "dead" for ran in failed) else ", to be tried again"
        told += f", {len(failed)} failed ({printable(failed[0]['outcome'])}){again}"
    return told + (f"; hooks: {len(pending)} still running" if pending else "")


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
