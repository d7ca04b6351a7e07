"""Finds sessions by what people type: an id, the start of an id, a title, or `last`.

Never changes anything. Of state.db it reads titles and end reasons.
"""

from __future__ import annotations

import os
from typing import Any

from ...ipc import endpoint
from ..model.text import printable
from ..recovery import report as reports_on_disk
from ..recovery.report import SessionReport
from .errors import USAGE, CommandError
from .output.formatting import one_line

LAST = "last"
_OF_THE_DEMO = "demo-"
_MAX_SHOWN = 5

Rows = dict[tuple[str, str], dict[str, Any]]


def latest(reports: list[SessionReport]) -> list[SessionReport]:
    """The latest report of each session, newest first."""
    by_session = {(r.db, r.session): r for r in sorted(reports, key=lambda r: r.died_at)}
    return sorted(by_session.values(), key=lambda r: r.died_at, reverse=True)


def current_rows(reports: list[SessionReport]) -> Rows:
    """Title and end of each session as they are now, by database and id. Sessions that cannot be
    read are left out."""
    from ..statedb.writer import StateDb, StateDbError  # start-up: completions do not need it

    ids: dict[str, list[str]] = {}
    for report in reports:
        ids.setdefault(report.db, []).append(report.session)
    rows: Rows = {}
    for path, sessions in ids.items():
        try:
            database = StateDb(path, read_only=True)
        except StateDbError:
            continue
        try:
            for session, row in database.reader.briefly(sessions).items():
                rows[path, session] = row
        except StateDbError:
            continue
        finally:
            database.close()
    return rows


def matching(word: str, reports: list[SessionReport], rows: Rows) -> list[SessionReport]:
    """The latest reports of the sessions that `word` names, newest first. An id comes before the
    start of one, and both come before a title."""
    candidates = latest(reports)
    exact = [r for r in candidates if r.session == word]
    if exact:
        return exact
    if word == LAST:
        return [r for r in candidates if not r.subagent][:1] or candidates[:1]
    if not word:
        return []
    by_start = [r for r in candidates if r.session.startswith(word)]
    if by_start:
        return by_start
    asked = one_line(word).casefold()
    titles = {id(r): _title(r, rows).casefold() for r in candidates}
    by_title = [r for r in candidates if titles[id(r)] == asked]
    return by_title or [r for r in candidates if asked in titles[id(r)]]


def reports_about(word: str) -> list[SessionReport]:
    """All reports, among them those of the session that `word` names. The demo's are kept apart,
    and used for what looks like a session of the demo and is not one of the user's."""
    reports = reports_on_disk.every()
    own = any(r.session.startswith(word) for r in reports)
    if own or not word.startswith(_OF_THE_DEMO) or not os.path.isdir(_demo_folder()):
        return reports
    use_demo_sessions()
    return reports_on_disk.every()


def use_demo_sessions() -> None:
    """From here on, sessions and reports are those of the demo."""
    os.environ["XDG_STATE_HOME"] = endpoint.private_folder(_demo_folder())


def _demo_folder() -> str:
    return os.path.join(endpoint.state_folder(), "demo")


def find(word: str, reports: list[SessionReport]) -> list[SessionReport]:
    """All reports of the one session that `word` names, oldest first. Raises CommandError."""
    rows = current_rows(latest(reports)) if _needs_titles(word, reports) else {}
    found = matching(word, reports, rows)
    if not found:
        raise not_found(word, reports)
    if len({r.session for r in found}) > 1:
        raise _ambiguous(word, found, rows)
    return [r for r in reports if r.session == found[0].session]


def not_found(word: str, reports: list[SessionReport]) -> CommandError:
    if not reports:
        return CommandError(
            f"no report about a session {word!r}: there are no reports yet; "
            "`hermes-supervise ps` lists running sessions",
            USAGE,
        )
    return CommandError(
        f"no report about a session {word!r}; `hermes-supervise sessions --all` lists all "
        "reports, and `hermes-supervise ps` lists running sessions",
        USAGE,
    )


def _needs_titles(word: str, reports: list[SessionReport]) -> bool:
    return word != LAST and not any(r.session.startswith(word) for r in reports)


def _ambiguous(word: str, found: list[SessionReport], rows: Rows) -> CommandError:
    lines = [f"{word!r} matches {len(found)} sessions:"]
    for report in found[:_MAX_SHOWN]:
        title = _title(report, rows)
        lines.append(f"  {printable(report.session)}" + (f"  {printable(title)}" if title else ""))
    if len(found) > _MAX_SHOWN:
        lines.append(f"  and {len(found) - _MAX_SHOWN} more")
    return CommandError("\n".join(lines), USAGE)


def _title(report: SessionReport, rows: Rows) -> str:
    row = rows.get((report.db, report.session), {})
    return one_line(str(row.get("title") or ""))
