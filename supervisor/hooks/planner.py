"""Decides which hooks a trigger runs, and with which input.

Never queues or runs a hook.

The event has the form of Hermes' shell hooks. The order after a death:

    on_session_end        the user's commands, then plugins
    the agent's own       its on_session_end and on_session_finalize; one process
    on_session_finalize   the user's commands, then plugins

so that every end comes before every finalize. A failed hook is retried later and nobody waits for
it: a hook that cleans up must not depend on another hook's network.
"""

from __future__ import annotations

import time

from ...ipc.lightweight.dataclass import replace
from ..agents import registry
from ..model.options import END, FINALIZE, RESET
from ..model.stream import ReplayedStream, Session
from ..process.cause import Cause
from ..recovery.report import SessionReport
from . import plugins
from .entry import COMMAND, PLUGIN, RETRY_DELAYS, Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..recovery.idle import Silence

TIMEOUT = 300.0


class Plan:
    """The hooks of one trigger for one session, in the order in which they run."""

    def __init__(
        self, run: str, stream: str, session: str, settings: dict[str, Any], trigger: str = ""
    ) -> None:
        self._ids = (run, stream, session)
        self._trigger = trigger
        self._settings = settings
        self._now = time.time()
        self.entries: list[Entry] = []

    def add(
        self, name: str, event: str, kind: str, command: str, words: list[str],
        payload: dict[str, Any], **more: Any,
    ) -> None:  # fmt: skip
        run, stream, session = self._ids
        fields: dict[str, Any] = {
            "timeout": float(self._settings.get("hook_timeout", TIMEOUT)),
            "back_off": _retry_delays(self._settings.get("hook_retry")),
            **more,
        }
        key = f"{run}:{stream}:{session}:{self._trigger}{name}"
        fields |= {"queued": self._now, "place": len(self.entries)}
        entry = Entry(key, run, stream, session, event, kind, command, words, payload, **fields)
        self.entries.append(entry)

    def add_commands_and_plugins(self, event: dict[str, Any]) -> None:
        name, folder = event["hook_event_name"], event["cwd"]
        for index, command in enumerate(self._settings.get(name) or ()):
            words = _split(command)
            self.add(f"{name}:{index}", name, COMMAND, command, words, event, folder=folder)
        for plugin, words in plugins.for_event(name):
            self.add(f"{name}:{plugin}", name, PLUGIN, plugin, words, event, folder=folder)


def for_death(
    session: Session,
    replayed: ReplayedStream,
    settled: SessionReport,
    cause: Cause,
    settings: dict[str, Any],
) -> list[Entry]:
    """The hooks for a session that the death of its process interrupted."""
    if settled.subagent:
        return []  # its parent's session is the one that somebody waits for
    extra = {
        "completed": False,
        "interrupted": True,
        "model": settled.model,
        "platform": settled.platform,
        "reason": settled.cause,
        "signal": cause.signal,
        "exit_code": cause.code,
        "out_of_memory": cause.oom,
        "terminal_closed": cause.terminal_closed,
        "recovered": dict(vars(settled.recovered)),
        "written": settled.complete,
        "state_db": settled.db,
        "parent_session_id": session.about.get("parent"),
        "recovery_id": f"{settled.run}:{settled.stream}",
    }
    plan = Plan(settled.run, settled.stream, session.id, settings)
    if END not in session.hooks_fired:
        plan.add_commands_and_plugins(_event(END, session, replayed, extra))
    timeout = float(settings.get("hook_timeout", TIMEOUT))
    agent = registry.of_stream(replayed)
    own = agent.own_hooks(session, replayed, extra, timeout)
    if own is not None:
        folder = _event(END, session, replayed, extra)["cwd"]
        text = f"{agent.name}: {', '.join(own.events)}"
        plan.add(
            agent.name, own.events[0], agent.name, text, own.words, own.request,
            folder=folder, env=own.env,
            # Each callback has its own limit; this one is for the process that runs them.
            timeout=10 * timeout,
        )  # fmt: skip
    if FINALIZE not in session.hooks_fired:
        plan.add_commands_and_plugins(_event(FINALIZE, session, replayed, extra))
    return plan.entries


def for_running_agent(
    run: str,
    stream: str,
    replayed: ReplayedStream,
    silences: list[Silence],
    settings: dict[str, Any],
    db_of: Callable[[Session], str],
) -> list[Entry]:
    """The hooks that were triggered before the process died, or while it runs.

    When a new conversation replaced a session: finalize of the old one, then reset of the new one.
    When a session became idle: its finalize.
    """
    entries: list[Entry] = []

    def plan_for(id: str, trigger: str) -> tuple[Session, Plan]:
        session = replayed.sessions.get(id) or Session(id)
        return session, Plan(run, stream, id, settings, trigger)

    def extra(session: Session, reason: str, **more: Any) -> dict[str, Any]:
        about = session.about
        return {
            "completed": True,
            "interrupted": False,
            "model": about.get("model"),
            "platform": about.get("platform") or about.get("source"),
            "reason": reason,
            "signal": None,
            "exit_code": None,
            "state_db": db_of(session),
            "parent_session_id": about.get("parent"),
            "recovery_id": f"{run}:{stream}",
            **more,
        }

    for seq, reset in sorted(replayed.resets.items()):
        ids = {"old_session_id": reset.old, "new_session_id": reset.new}
        for id, name in ((reset.old, FINALIZE), (reset.new, RESET)):
            session, plan = plan_for(id, f"reset-{seq}:")
            about = extra(session, "new_session", **ids)
            plan.add_commands_and_plugins(_event(name, session, replayed, about))
            entries += plan.entries
    for silence in silences:
        session, plan = plan_for(silence.session, f"idle-{silence.heard}:")
        about = extra(session, "idle")
        plan.add_commands_and_plugins(_event(FINALIZE, session, replayed, about))
        entries += plan.entries
    return [replace(entry, place=place) for place, entry in enumerate(entries)]


def _event(
    name: str, session: Session, replayed: ReplayedStream, extra: dict[str, Any]
) -> dict[str, Any]:
    folder = session.about.get("cwd") or replayed.hello.get("cwd")
    return {
        "hook_event_name": name,
        "tool_name": None,
        "tool_input": None,
        "session_id": session.id,
        "cwd": folder if isinstance(folder, str) else None,
        "extra": extra,
    }


def _retry_delays(wanted: object) -> list[float]:
    if not isinstance(wanted, str):
        return list(RETRY_DELAYS)
    return [] if wanted == "none" else [float(word) for word in wanted.split(",")]


def _split(command: str) -> list[str]:
    import shlex  # start-up: most sessions have no commands

    try:
        return shlex.split(command)
    except ValueError:
        return [command]  # cannot be split; starting it will fail and say so
