"""Which hooks an occasion owes, and what each of them is told.

Never queues or runs one.

The event has the form of Hermes' shell hooks. The order of what a death owes a session:

    on_session_end        the user's commands, then plugins
    Hermes' own           on_session_end, memory, context, on_session_finalize; one process
    on_session_finalize   the user's commands, then plugins

so that every end comes before every finalize. What failed is tried again later and is not
waited for: a hook that tidies up must not depend on another's network.
"""

from __future__ import annotations

import time

from ..adapters import hermes
from ..cause import Cause
from ..plain import replace
from ..recovery.report import Settled
from ..recovery.told import Session, Told
from . import plugins
from .entry import BACK_OFF, COMMAND, HERMES, PLUGIN, Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .idle import Silence

END, FINALIZE, RESET = "on_session_end", "on_session_finalize", "on_session_reset"
TIMEOUT = 300.0


class Occasion:
    """Something that hooks are owed for; collects them in the order they are to run."""

    def __init__(
        self, run: str, stream: str, session: str, settings: dict[str, Any], what: str = ""
    ) -> None:
        self._who = (run, stream, session)
        self._what = what
        self._settings = settings
        self._now = time.time()
        self.owed: list[Entry] = []

    def add(
        self, name: str, event: str, kind: str, command: str, words: list[str],
        told: dict[str, Any], **more: Any,
    ) -> None:  # fmt: skip
        run, stream, session = self._who
        about: dict[str, Any] = {
            "timeout": float(self._settings.get("hook_timeout", TIMEOUT)),
            "back_off": _back_off(self._settings.get("hook_retry")),
            **more,
        }
        key = f"{run}:{stream}:{session}:{self._what}{name}"
        about |= {"queued": self._now, "place": len(self.owed)}
        entry = Entry(key, run, stream, session, event, kind, command, words, told, **about)
        self.owed.append(entry)

    def commands_and_plugins(self, event: dict[str, Any]) -> None:
        name, folder = event["hook_event_name"], event["cwd"]
        for index, command in enumerate(self._settings.get(name) or ()):
            words = _split(command)
            self.add(f"{name}:{index}", name, COMMAND, command, words, event, folder=folder)
        for called, words in plugins.found(name):
            self.add(f"{name}:{called}", name, PLUGIN, called, words, event, folder=folder)


def at_a_death(
    session: Session, told: Told, settled: Settled, cause: Cause, settings: dict[str, Any]
) -> list[Entry]:
    """What the death of its process owes an interrupted session."""
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
    occasion = Occasion(settled.run, settled.stream, session.id, settings)
    if END not in session.hooks_fired:
        occasion.commands_and_plugins(_event(END, session, told, extra))
    if hermes.is_hermes(told):
        owed = hermes.hooks(session, told, extra, float(settings.get("hook_timeout", TIMEOUT)))
        if owed is not None:
            names, words, asked, env = owed
            folder = _event(END, session, told, extra)["cwd"]
            occasion.add(
                "hermes", names[0], HERMES, f"hermes: {', '.join(names)}", words, asked,
                folder=folder, env=env,
                # Each callback has its own limit; this one is for the runner itself.
                timeout=10 * asked["timeout"],
            )  # fmt: skip
    if FINALIZE not in session.hooks_fired:
        occasion.commands_and_plugins(_event(FINALIZE, session, told, extra))
    return occasion.owed


def while_it_lived(
    run: str,
    stream: str,
    told: Told,
    silent: list[Silence],
    settings: dict[str, Any],
    db_of: Callable[[Session], str],
) -> list[Entry]:
    """What a process owed before it died, or owes now: for a conversation that took another's
    place the old one's finalize and then the new one's reset; a finalize for a long silence."""
    found: list[Entry] = []

    def occasion(id: str, what: str) -> tuple[Session, Occasion]:
        return told.sessions.get(id) or Session(id), Occasion(run, stream, id, settings, what)

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

    for seq, reset in sorted(told.resets.items()):
        ids = {"old_session_id": reset.old, "new_session_id": reset.new}
        for id, name in ((reset.old, FINALIZE), (reset.new, RESET)):
            session, owed = occasion(id, f"reset-{seq}:")
            owed.commands_and_plugins(
                _event(name, session, told, extra(session, "new_session", **ids))
            )
            found += owed.owed
    for one in silent:
        session, owed = occasion(one.session, f"idle-{one.heard}:")
        owed.commands_and_plugins(_event(FINALIZE, session, told, extra(session, "idle")))
        found += owed.owed
    return [replace(entry, place=place) for place, entry in enumerate(found)]


def _event(name: str, session: Session, told: Told, extra: dict[str, Any]) -> dict[str, Any]:
    where = session.about.get("cwd") or told.hello.get("cwd")
    return {
        "hook_event_name": name,
        "tool_name": None,
        "tool_input": None,
        "session_id": session.id,
        "cwd": where if isinstance(where, str) else None,
        "extra": extra,
    }


def _back_off(wanted: object) -> list[float]:
    if not isinstance(wanted, str):
        return list(BACK_OFF)
    return [] if wanted == "none" else [float(word) for word in wanted.split(",")]


def _split(command: str) -> list[str]:
    import shlex

    try:
        return shlex.split(command)
    except ValueError:
        return [command]  # not to be understood, which starting it will say
