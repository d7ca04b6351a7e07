"""What happened to a session: the facts of its report and of state.db, put in order. Pure.

Never invents anything: a moment that nobody recorded is not in the timeline, and what is not known
is called unknown.
"""

from __future__ import annotations

import json
from typing import Any

from ....ipc.lightweight.dataclass import dataclass
from ...agents import registry
from ...recovery.report import SessionReport
from ...run import notice
from .formatting import number, one_line, size

# Kinds of death that nobody saw.
_UNSEEN = ("machine restarted", "machine lost", "supervisor lost", "unknown")
_MAX_EVENTS = 60
# The name of an agent that is known only by a file which the user named.
_TRANSCRIPT = "a transcript"


@dataclass
class Event:
    at: float
    kind: str
    """How it is drawn: start, user, reply, tool, death, recovery, hook, failed (a failed hook)."""
    text: str
    until: float | None = None
    """When it ended; None: it has no duration, or nobody knows."""
    command: str = ""
    """The part of the text that is a command."""


def timeline(report: SessionReport, messages: list[dict[str, Any]]) -> list[Event]:
    """From the launch to the last hook, in order of time; of the conversation, the last turn."""
    events = []
    if report.launched:
        agent = "the agent" if report.agent in (None, _TRANSCRIPT) else report.agent
        events.append(Event(report.launched, "start", f"launched {agent}"))
    if report.began:
        events.append(Event(report.began, "start", "session started or resumed"))
    if report.outcome != "empty":
        events += _conversation(report, messages)
    end = "last sign of life" if report.reason.get("kind") in _UNSEEN else report.cause
    events.append(Event(report.died_at, "death", end))
    if report.settled_at:
        events.append(Event(report.settled_at, "recovery", notice.recovered(report)))
    for hook in report.hooks:
        at = hook.get("at")
        if isinstance(at, int | float):
            command = one_line(str(hook["command"]))
            kind = "hook" if hook["outcome"] in ("ok", "waiting", "running") else "failed"
            text = f"hook {command}: {hook['outcome']}"
            events.append(Event(float(at), kind, text, command=command))
    return sorted(events, key=lambda event: event.at)


def _conversation(report: SessionReport, messages: list[dict[str, Any]]) -> list[Event]:
    """The messages of the last turn before the death."""
    dated = [m for m in said(report, messages) if isinstance(m.get("timestamp"), int | float)]
    dated = [m for m in dated if m["timestamp"] <= report.died_at]
    questions = [index for index, m in enumerate(dated) if m.get("role") == "user"]
    turn = dated[questions[-1] :] if questions else dated
    events: list[Event] = []
    open_calls = {call["call"] for call in report.open_calls}
    ended = {m.get("tool_call_id"): m["timestamp"] for m in turn if m.get("role") == "tool"}
    for message in turn[-_MAX_EVENTS:]:
        at, role = float(message["timestamp"]), message.get("role")
        if role == "user":
            events.append(Event(at, "user", "last user message"))
        elif role == "assistant":
            partial = message.get("finish_reason") == "interrupted"
            if message.get("content") and not partial:
                length = len(str(message["content"]))
                events.append(Event(at, "reply", f"reply of {number(length, 'character')}"))
            for id, name, _ in calls_of(message):
                if id not in open_calls:
                    events.append(Event(at, "tool", f"tool {name}", ended.get(id)))
    for call in report.open_calls:
        if call["started"] and call["since"]:
            events.append(Event(call["since"], "tool", f"tool {call['name']}", report.died_at))
    if report.doing == "replying" and report.doing_since:
        events.append(Event(report.doing_since, "reply", "reply started", report.died_at))
    return events


def said(report: SessionReport, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages without those that the agent wrote in the user's name, and their answers."""
    agent = registry.named((report.agent or "").partition(" ")[0])
    kept, own = [], False
    for message in messages:
        if message.get("role") == "user":
            own = agent.is_own_note(str(message.get("content")))
        if not own:
            kept.append(message)
    return kept


def calls_of(message: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The id, name and arguments of each tool call in a stored message."""
    try:
        calls = json.loads(message.get("tool_calls") or "[]")
        return [
            (str(call.get("id")), str(call["function"]["name"]), str(call["function"]["arguments"]))
            for call in calls
        ]
    except (ValueError, KeyError, TypeError, AttributeError):  # not in the usual form
        return []


def facts(report: SessionReport) -> list[tuple[str, list[str]]]:
    """What is known besides the timeline: names, each with one or more lines."""
    known = [("activity", [notice.activity_at_death(report)])]
    if (no_reply := notice.missing_reply(report)) is not None:
        known.append(("no reply", [no_reply]))
    known.append(("agent", [_agent(report)]))
    known.append(("memory", [memory(report)]))
    known.append(("recovered", [notice.recovered(report).removeprefix("recovered ")]))
    known.append(("not recovered", missing(report)))
    known.append(("hooks", [hook_line(hook) for hook in report.hooks] or ["none"]))
    if report.orphans:
        known.append(("left running", process_tree(report)))
    return known


def _agent(report: SessionReport) -> str:
    parts = [report.agent or "unknown"]
    if report.agent == _TRANSCRIPT:
        parts = ["tracked through its transcript"]
    parts += [f"pid {report.pid}"] if report.pid else []
    parts += [report.model] if report.model else []
    if report.launched and report.died_at >= report.launched:
        parts.append(f"ran for {notice.duration(report.died_at - report.launched)}")
    return ", ".join(parts)


def memory(report: SessionReport) -> str:
    known = report.memory
    parts = []
    if known.get("last") is not None:
        before = report.died_at - known.get("last_at", report.died_at)
        parts.append(f"{size(known['last'])} {notice.duration(before)} before the end")
    if known.get("peak") is not None:
        parts.append(f"peak {size(max(known['peak'], known.get('last') or 0))}")
    if known.get("group_limit") is not None:
        peak, limit = size(known.get("group_peak")), size(known["group_limit"])
        parts.append(f"control group peak {peak}, limit {limit}")
    if known.get("cpu") is not None:
        parts.append(f"{known['cpu']:g} s of CPU time")
    return "; ".join(parts) or "unknown"


def missing(report: SessionReport) -> list[str]:
    """What recovery could not bring back, or cannot know."""
    text = []
    if not report.complete:
        text.append("nothing is written to state.db yet; everything is in the journal")
    if report.recovered.calls_unknown:
        count = report.recovered.calls_unknown
        calls = "a tool call" if count == 1 else f"{count} tool calls"
        text.append(f"the result of {calls}: it is unknown whether it took effect")
    if report.unseen_reply and report.recovered.partial_characters:
        text.append("perhaps the last words of the reply in progress that were on screen")
    elif report.unseen_reply:
        text.append("a reply in progress, if there was one: its transcript does not have it")
    if report.reason.get("kind") in _UNSEEN:
        text.append(f"how it ended: {report.cause}")
    text += [f"{name}: not captured in this release of the agent" for name in report.not_captured]
    text += report.problems
    return text or ["nothing that is known of"]


def hook_line(hook: dict[str, Any]) -> str:
    attempt = f", attempt {hook['attempt']}" if hook.get("attempt", 1) != 1 else ""
    abandoned = ", abandoned" if hook.get("state") == "dead" else ""
    return f"{hook['outcome']}{attempt}{abandoned}: {one_line(str(hook['command']))}"


def process_tree(report: SessionReport) -> list[str]:
    """The processes that the dead agent left running, each with its children."""
    described = notice.orphan_lines(report.orphans)
    lines = []
    for line, orphan in zip(described, report.orphans, strict=False):
        lines.append(line + _memory_of(orphan))
        lines += _branches(orphan.get("below") or [], orphan["pid"], "  ")
    return lines + described[len(report.orphans) :]


def _branches(below: list[dict[str, Any]], parent: int, indent: str) -> list[str]:
    children = [process for process in below if process["parent"] == parent]
    lines = []
    for child in children:
        last = child is children[-1]
        branch = "\u2514" if last else "\u251c"
        command = one_line(str(child["command"]))
        lines.append(f"{indent}{branch} {child['pid']} {command}{_memory_of(child)}")
        lines += _branches(below, child["pid"], indent + ("  " if last else "\u2502 "))
    return lines


def _memory_of(process: dict[str, Any]) -> str:
    return f" ({size(process['memory'])})" if process.get("memory") else ""


def last_words(report: SessionReport, messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """What was said last before the death, in order of time, each with its heading; the session may
    have continued since."""
    words: list[tuple[str, str]] = []
    answered = False
    for message in reversed(said(report, messages)):
        at, role = message.get("timestamp"), message.get("role")
        text = str(message.get("content") or "")
        if (isinstance(at, int | float) and at > report.died_at) or not text.strip():
            continue
        if role == "user" and "Last user message" not in dict(words):
            words.append(("Last user message", text))
        elif role == "assistant" and not answered:
            answered = True
            words.append(("Previous reply" if words else "Last reply", text))
    return words[::-1]


def open_call(report: SessionReport, messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The name and stored arguments of each tool call that was running."""
    running = {call["call"]: str(call["name"]) for call in report.open_calls if call["started"]}
    arguments = {id: text for m in messages for id, _, text in calls_of(m) if id in running}
    return [(name, arguments.get(id, "")) for id, name in running.items()]
