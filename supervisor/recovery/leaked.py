"""Which open sessions nobody will ever end: what proves it, and what does not.

Never writes. Whatever is in use, or might be, is not judged; what cannot be proved is left
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

from .. import run as runs
from ..adapters import hermes, hermes_leases
from . import report
from .finish import is_alive
from .gather import gather
from .outcome import Outcome
from .replay import Session, replay

_WEEK = 7 * 24 * 3600

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
    """Of the open sessions: those that leaked, and why the others are left alone."""
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
        why = f"compression made it of {row['parent_session_id']}, and nobody took it up for a week"
        return Leaked(name, "orphaned_compression", now, why)
    gone = evidence.gone.get(name)
    if gone is None:
        return NO_EVIDENCE
    if not hermes.may_be_ended(Session(name, {"source": row["source"]})):
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


# -- what there is to know ---------------------------------------------------------------------


def evidence(db: str) -> Evidence:
    found = Evidence(users=_users(db))
    for one in report.every():
        ended = one.outcome in (Outcome.INTERRUPTED.value, Outcome.COMPLETED.value)
        known = found.gone.get(one.session)
        newer = known is None or known.at is None or known.at < one.died_at
        if ended and newer and os.path.realpath(one.db) == os.path.realpath(db):
            why = f"its process was seen to end: {one.cause}"
            found.gone[one.session] = Gone(one.outcome, why, one.died_at)
    for session, holders in hermes_leases.leases(db).items():
        if any(alive for _, alive in holders):
            found.in_use.add(session)
        elif session not in found.gone:
            why = f"process {holders[0][0]}, which had it open, is gone and never closed it"
            found.gone[session] = Gone(Outcome.INTERRUPTED.value, why)
    for folder in runs.left_behind():
        _look_into(folder, found)
    return found


def _look_into(folder: str, found: Evidence) -> None:
    """A run that is under way, or waits to be finished: its sessions are somebody's."""
    run = runs.claim(folder)
    try:
        names = {name.split(".", 1)[0] for name in os.listdir(folder) if runs.is_stream_file(name)}
        for stream in names:
            told = replay(gather(folder, stream).frames)
            mine = found.in_use if run is None or is_alive(told) else found.for_recover
            mine |= {session.id for session in told.sessions.values() if session.ended is None}
    except OSError:
        pass  # finished meanwhile: then its report says all there is to say
    finally:
        if run is not None:
            run.release()


def _users(db: str) -> list[int]:
    """Who has the file open, of the processes that we may look at."""
    path = os.path.realpath(db)
    files = {path, path + "-wal", path + "-shm"}
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            fds = os.listdir(f"/proc/{name}/fd")
        except OSError:
            continue
        for fd in fds:
            try:
                if os.readlink(f"/proc/{name}/fd/{fd}") in files:
                    found.append(int(name))
                    break
            except OSError:
                continue
    return sorted(found)
