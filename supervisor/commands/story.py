"""The story of a death: what is written in its report and in state.db, put in order. Pure.

Never makes anything up: a moment that nobody noted has no place in the timeline, and what is not
known is said to be unknown.
"""

from __future__ import annotations

import json
from typing import Any

from .. import notice
from ..plain import dataclass
from ..recovery.report import Settled
from .words import one_line, size

_UNSEEN = ("machine restarted", "supervisor lost", "unknown")
_MOST_EVENTS = 60


@dataclass
class Event:
    at: float
    kind: str
    """start, user, reply, tool, death, recovery, hook, failed (a hook): what it is drawn as"""
    text: str
    until: float | None = None
    """When what began here ended; None: it has no length, or nobody knows."""


def timeline(one: Settled, messages: list[dict[str, Any]]) -> list[Event]:
    """From the launch to the last hook; of the conversation, the turn that was cut off."""
    events = []
    if one.launched:
        events.append(Event(one.launched, "start", f"launched {one.agent or 'the agent'}"))
    if one.began:
        events.append(Event(one.began, "start", "session began, or was taken up again"))
    if one.outcome != "empty":
        events += _conversation(one, messages)
    died = "last sign of life" if one.reason.get("kind") in _UNSEEN else one.cause
    events.append(Event(one.died_at, "death", died))
    if one.settled_at:
        events.append(Event(one.settled_at, "recovery", notice.recovered(one)))
    for ran in one.hooks:
        at = ran.get("at")
        if isinstance(at, int | float):
            text = f"hook {one_line(str(ran['command']))}: {ran['outcome']}"
            went = ran["outcome"] in ("ok", "waiting", "running")
            events.append(Event(float(at), "hook" if went else "failed", text))
    return sorted(events, key=lambda event: event.at)


def _conversation(one: Settled, messages: list[dict[str, Any]]) -> list[Event]:
    """The last turn, message by message, as far as it was before the death."""
    known = [m for m in messages if isinstance(m.get("timestamp"), int | float)]
    known = [m for m in known if m["timestamp"] <= one.died_at]
    asked = [index for index, m in enumerate(known) if m.get("role") == "user"]
    turn = known[asked[-1] :] if asked else known
    events: list[Event] = []
    began = {call["call"]: call["since"] for call in one.open_calls}
    ended = {m.get("tool_call_id"): m["timestamp"] for m in turn if m.get("role") == "tool"}
    for message in turn[-_MOST_EVENTS:]:
        at, role = float(message["timestamp"]), message.get("role")
        if role == "user":
            events.append(Event(at, "user", "the user's last words"))
        elif role == "assistant":
            made = calls_of(message)
            partial = message.get("finish_reason") == "interrupted"
            if message.get("content") and not partial:
                events.append(
                    Event(at, "reply", f"said {len(str(message['content'])):,} characters")
                )
            for id, name, _ in made:
                if id in began:
                    continue
                events.append(Event(at, "tool", f"tool {name}", ended.get(id)))
    for call in one.open_calls:
        if call["started"] and call["since"]:
            events.append(Event(call["since"], "tool", f"tool {call['name']}", one.died_at))
    if one.doing == "replying" and one.doing_since:
        events.append(Event(one.doing_since, "reply", "the reply began", one.died_at))
    return events


def calls_of(message: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Id, name and arguments of the calls in a message as it is stored."""
    try:
        made = json.loads(message.get("tool_calls") or "[]")
        return [
            (str(one.get("id")), str(one["function"]["name"]), str(one["function"]["arguments"]))
            for one in made
        ]
    except (ValueError, KeyError, TypeError, AttributeError):  # not in the usual form
        return []


def facts(one: Settled) -> list[tuple[str, list[str]]]:
    """What is known beside the timeline, by name; each name has one line or more."""
    told = [("it was", [notice.doing(one)])]
    if (quiet := notice.silence(one)) is not None:
        told.append(("silence", [quiet]))
    told.append(("agent", [_agent(one)]))
    told.append(("memory", [memory(one)]))
    told.append(("recovered", [notice.recovered(one).removeprefix("recovered ")]))
    told.append(("not recovered", missing(one)))
    told.append(("hooks", [hook(ran) for ran in one.hooks] or ["none"]))
    if one.orphans:
        told.append(("left running", tree(one)))
    return told


def _agent(one: Settled) -> str:
    words = [one.agent or "unknown"]
    words += [f"pid {one.pid}"] if one.pid else []
    words += [one.model] if one.model else []
    if one.launched and one.died_at >= one.launched:
        words.append(f"launched {notice.duration(one.died_at - one.launched)} before")
    return ", ".join(words)


def memory(one: Settled) -> str:
    known = one.memory
    words = []
    if known.get("last") is not None:
        before = one.died_at - known.get("last_at", one.died_at)
        words.append(f"{size(known['last'])} {notice.duration(before)} before")
    if known.get("peak") is not None:
        words.append(f"{size(max(known['peak'], known.get('last') or 0))} at most")
    if known.get("group_limit") is not None:
        used = size(known.get("group_peak"))
        words.append(f"its control group {used} at most, of {size(known['group_limit'])}")
    if known.get("cpu") is not None:
        words.append(f"{known['cpu']:g} s of processor time")
    return "; ".join(words) or "unknown"


def missing(one: Settled) -> list[str]:
    """What recovery could not bring back, or cannot know."""
    told = []
    if not one.complete:
        told.append("nothing could be written yet; it is all in the journal")
    if one.recovered.calls_unknown:
        count = one.recovered.calls_unknown
        what = "a tool call" if count == 1 else f"{count} tool calls"
        told.append(f"the result of {what}: whether it took effect is unknown")
    if one.reason.get("kind") in _UNSEEN:
        told.append(f"how it died: {one.cause}")
    told += one.problems
    return told or ["nothing is known to be missing"]


def hook(ran: dict[str, Any]) -> str:
    outcome = f"{ran['outcome']}: {one_line(str(ran['command']))}"
    again = f", attempt {ran['attempt']}" if ran.get("attempt", 1) != 1 else ""
    return outcome + again + (", given up" if ran.get("state") == "dead" else "")


def tree(one: Settled) -> list[str]:
    """What the dead process left running, and what was below that."""
    lines = []
    for line, orphan in zip(notice.orphans(one.orphans), one.orphans, strict=False):
        weight = f" ({size(orphan['memory'])})" if orphan.get("memory") else ""
        lines.append(line + weight)
        below = orphan.get("below") or []
        lines += _branches(below, orphan["pid"], "  ")
    return lines + notice.orphans(one.orphans)[len(one.orphans) :]


def _branches(below: list[dict[str, Any]], parent: int, indent: str) -> list[str]:
    children = [one for one in below if one["parent"] == parent]
    lines = []
    for child in children:
        last = child is children[-1]
        weight = f" ({size(child['memory'])})" if child.get("memory") else ""
        branch = "\u2514" if last else "\u251c"
        lines.append(f"{indent}{branch} {child['pid']} {one_line(str(child['command']))}{weight}")
        lines += _branches(below, child["pid"], indent + ("  " if last else "\u2502 "))
    return lines


def last_words(one: Settled, messages: list[dict[str, Any]], role: str) -> str | None:
    """Said before that death: somebody may have gone on since."""
    for message in reversed(messages):
        at = message.get("timestamp")
        if isinstance(at, int | float) and at > one.died_at:
            continue
        if message.get("role") == role and str(message.get("content") or "").strip():
            return str(message["content"])
    return None


def open_call(one: Settled, messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Name and arguments of the calls that were running; the arguments as they are stored."""
    running = {call["call"]: str(call["name"]) for call in one.open_calls if call["started"]}
    arguments = {id: text for m in messages for id, _, text in calls_of(m) if id in running}
    return [(name, arguments.get(id, "")) for id, name in running.items()]
