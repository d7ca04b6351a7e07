"""Which open sessions nobody will ever end, and what proves it.

Never writes. A session that is or might be in use is not judged; a session without proof is left
alone and counted.

    a continuation that compression made and nobody took up: by the rule Hermes has itself
        (its parent was ended by compression, it has messages, it made no API call, and it
        began more than seven days ago)                          -> orphaned_compression
    a session whose process was seen to die, by us or by Hermes' own list of open sessions,
        where nothing was said in it since, and nobody who could have taken it up has the
        file open                                                -> as that process ended
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ..agents import registry
from ..model.stream import Session
from ..process.platform import open_files, process_table
from ..storage import run_folder as runs
from . import report
from .gather import gather
from .outcome import Outcome
from .reading import is_alive
from .replay import replay

_WEEK = 7 * 24 * 3600

# Why a session is left alone: keys of `sweep --json`, so they do not change.
IN_USE = "in use"
FOR_RECOVER = "for `hermes-supervise recover` to finish"
A_CHAT = "a chat that the gateway takes up again"
WENT_ON = "went on after its process was gone"
FILE_IN_USE = "its process is gone, but others have the file open and may have taken it up"
NO_EVIDENCE = "no evidence that its process is gone"


@dataclass
class Leaked:
    session: str
    reason: str
    at: float
    why: str
    ended: bool = False


@dataclass
class Gone:
    """The end of the process that had a session."""

    reason: str
    why: str
    at: float | None = None
    """None: not known; the session's last sign of life has to do."""


@dataclass
class Evidence:
    in_use: set[str] = field(default_factory=set)
    for_recover: set[str] = field(default_factory=set)
    gone: dict[str, Gone] = field(default_factory=dict)
    users: list[int] = field(default_factory=list)
    """Processes that have the file open now."""


def judge(
    rows: list[dict[str, Any]], evidence: Evidence, now: float
) -> tuple[list[Leaked], Counter[str]]:
    """The open sessions that are stale, and why the others are left alone."""
    leaked: list[Leaked] = []
    left: Counter[str] = Counter()
    for row in rows:
        verdict = _verdict(row, evidence, now)
        if isinstance(verdict, Leaked):
            leaked.append(verdict)
        else:
            left[verdict] += 1
    return leaked, left


def _verdict(row: dict[str, Any], evidence: Evidence, now: float) -> Leaked | str:
    name = row["id"]
    if name in evidence.in_use:
        return IN_USE
    if name in evidence.for_recover:
        return FOR_RECOVER
    if _is_orphaned_continuation(row, now):
        why = f"compression split it from {row['parent_session_id']}, and nobody used it for a week"
        return Leaked(name, "orphaned_compression", now, why)
    gone = evidence.gone.get(name)
    if gone is None:
        return NO_EVIDENCE
    if not registry.keeper().may_be_ended(Session(name, {"source": row["source"]})):
        return A_CHAT
    last = max(row["last"] or 0.0, row["started_at"] or 0.0)
    if gone.at is not None and last > gone.at:
        return WENT_ON
    if evidence.users:
        return FILE_IN_USE
    return Leaked(name, gone.reason, last if gone.at is None else gone.at, gone.why)


def _is_orphaned_continuation(row: dict[str, Any], now: float) -> bool:
    return (
        row["parent_end_reason"] == "compression"
        and row["parent_ended_at"] is not None
        and row["messages"] > 0
        and row["api_call_count"] == 0
        and row["started_at"] < now - _WEEK
    )


# -- the facts ---------------------------------------------------------------------------------


def evidence(db: str) -> Evidence:
    found = Evidence(users=_users(db))
    for past in report.every():
        ended = past.outcome in (Outcome.INTERRUPTED.value, Outcome.COMPLETED.value)
        known = found.gone.get(past.session)
        newer = known is None or known.at is None or known.at < past.died_at
        if ended and newer and os.path.realpath(past.db) == os.path.realpath(db):
            why = f"its process ended: {past.cause}"
            found.gone[past.session] = Gone(past.outcome, why, past.died_at)
    for session, holders in registry.keeper().open_sessions(db).items():
        if any(alive for _, alive in holders):
            found.in_use.add(session)
        elif session not in found.gone:
            why = f"process {holders[0][0]} had it open, and is gone without closing it"
            found.gone[session] = Gone(Outcome.INTERRUPTED.value, why)
    for folder in runs.left_behind():
        _look_into(folder, found)
    return found


def _look_into(folder: str, found: Evidence) -> None:
    """The sessions of a run that is in progress, or waits to be finished, are in use."""
    run = runs.claim(folder)
    try:
        names = {name.split(".", 1)[0] for name in os.listdir(folder) if runs.is_stream_file(name)}
        for stream in names:
            replayed = replay(gather(folder, stream).frames)
            mine = found.in_use if run is None or is_alive(replayed) else found.for_recover
            mine |= {session.id for session in replayed.sessions.values() if session.ended is None}
    except OSError:
        pass  # finished meanwhile: then its report says all there is to say
    finally:
        if run is not None:
            run.release()


def _users(db: str) -> list[int]:
    """The processes that have the file open, as far as we may inspect them."""
    path = os.path.realpath(db)
    files = {path, path + "-wal", path + "-shm"}
    others = (info.pid for info in process_table() if info.pid != os.getpid())
    return sorted(pid for pid in others if files.intersection(open_files(pid)))
