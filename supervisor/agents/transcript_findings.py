"""What `doctor` says about an agent that is tracked through its own transcripts.

Never changes anything, and reads no transcript.
"""

from __future__ import annotations

import os

from .protocol import BAD, NOTE, OK, Database

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .protocol import Agent, Finding, Place

_NO_TAP = "of --no-tap; leave that option out"
_OTHER_NAME = "only --agent says which agent it is, so the command is started as it is"


def findings(agent: Agent, place: Place) -> list[Finding]:
    """What would be captured of it from outside."""
    found: list[Finding] = []
    if agent.writes_transcripts:
        text = f"{agent.title}, tracked through its own transcripts (docs/watchers.md)"
        found.append(("agent", OK, text))
        if (why := agent.not_recorded(place.arguments)) is not None:
            found.append(("transcripts", BAD, f"nothing will be captured: {why}"))
    sources = agent.sources(place)
    for folder in (folder for source in sources for folder in source.folders()):
        missing = "" if os.path.exists(folder) else ", which does not exist yet"
        found.append(("transcripts", OK, f"read from {folder}{missing}"))
    for source in sources:
        if isinstance(source, Database) and (problem := source.problem()) is not None:
            found.append(("transcripts", BAD, problem))
    if sources:
        found.append(_watching())
        why = agent.why_not_tapped(place) if place.may_tap else _NO_TAP
        if why is None and not place.is_recognised:
            why = _OTHER_NAME
        text = f"captured: {agent.tap_sees}"
        if why is not None:
            text = f"a message is captured once it is complete; a reply in progress is not: {why}"
        found.append(("in progress", OK if why is None else NOTE, text))
    return found


def _watching() -> Finding:
    from importlib.metadata import version  # start-up: only doctor asks

    from watchdog.observers import Observer  # start-up: watchdog is heavy
    from watchdog.observers.polling import PollingObserver  # start-up: the same

    name = f"watchdog {version('watchdog')}"
    if Observer is PollingObserver:
        text = (
            f"{name}, which looks once a second: nothing is lost, it is only read that much later"
        )
        return "watching files", NOTE, text
    return "watching files", OK, f"{name}, notified by the kernel"
