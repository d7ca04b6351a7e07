"""What must be in state.db after a scenario of the wider campaign, and what is.

Never guesses in favour of the product: what a process has said must be there, once, in the order of
the steps; what it was just saying when it was killed may be there, in its place.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..violation import Violation
from .agent import SESSION
from .conduct import Lived

Row = tuple[str, str]
SAID = ("user", "assistant", "line")


@dataclass
class Expected:
    row: Row
    certain: bool


def judge(lived: Lived, *, recovered: bool) -> None:
    """Raise what was found: the category of the first violation, and all of them in words."""
    found: list[Violation] = []
    for look in (_compare_rows, _compare_end, *([_nothing_left] if recovered else [])):
        try:
            look(lived)
        except Violation as violation:
            found.append(violation)
    if found:
        raise Violation(found[0].category, "; also ".join(violation.text for violation in found))


def _compare_rows(lived: Lived) -> None:
    rows, _ = _found(lived)
    choices = [_of_life(lived, number) for number in range(len(lived.scenario.lives))]
    expected = [[item for part in whole for item in part] for whole in _product(choices)]
    if not any(_explains(whole, rows) for whole in expected):
        _complain(lived, expected[0], rows)


def _compare_end(lived: Lived) -> None:
    _, reason = _found(lived)
    ends = [life.end for life in lived.scenario.lives]
    if ends[-1] is not None and reason != ends[-1]:
        raise Violation("misreported", f"the session ended as {reason}, must be {ends[-1]}")
    if None not in ends:
        _compare_hooks(lived, ends.count("interrupted") - _continued(lived), _reopened(lived))


def _continued(lived: Lived) -> int:
    """How many lives were still being recovered when the next one had the session open. Nobody saw
    when the earlier process died, so its death is not known to have been an end of the session."""
    at_once = sum(life.at_once for life in lived.scenario.lives)
    outcomes = [report.get("outcome") for report in _reports(lived)]
    return min(outcomes.count("open elsewhere"), at_once)


def _reopened(lived: Lived) -> int:
    """How often a process connected for the first time after its session had been ended: a child
    whose interpreter was still starting when its parent was killed. Nobody could know that it would
    speak in that session. It opens it again, and its own end is another end."""
    own = [report for report in _reports(lived) if report.get("session") == SESSION]
    ends = [report for report in own if report.get("outcome") == "interrupted"]
    return sum(
        any(end["run"] == later["run"] and end["settled_at"] < later["began"] for end in ends)
        for later in own
        if later.get("began")
    )


def _of_life(lived: Lived, number: int) -> list[list[Expected]]:
    """What a life must have left; several possibilities where a reply was cut off in a delta."""
    life = lived.scenario.lives[number]
    certain, possible = lived.certain[number], lived.possible[number]
    expected: list[Expected] = []
    replies: dict[int, int] = {}
    variants: list[tuple[int, str]] = []
    for index, step in enumerate(life.steps):
        if step.do in SAID and index in certain | possible:
            role = "user" if step.do == "line" else step.do
            expected.append(Expected((role, step.text), index in certain))
        elif step.do == "delta" and index in certain:
            place = replies.setdefault(step.actor, len(expected))
            if place == len(expected):
                expected.append(Expected(("assistant", ""), True))
            text = expected[place].row[1] + step.text
            expected[place] = Expected(("assistant", text), True)
        elif step.do == "delta" and index in possible:
            if step.actor in replies:
                variants.append((replies[step.actor], step.text))
            else:
                expected.append(Expected(("assistant", step.text), False))
    whole = [expected]
    for place, text in variants:
        longer = list(expected)
        role, before = longer[place].row
        longer[place] = Expected((role, before + text), True)
        whole.append(longer)
    return whole


def _product(choices: list[list[list[Expected]]]) -> Iterator[list[list[Expected]]]:
    if not choices:
        yield []
        return
    for first in choices[0]:
        for rest in _product(choices[1:]):
            yield [first, *rest]


def _explains(expected: list[Expected], rows: list[Row]) -> bool:
    """Whether the rows are these, without some of the uncertain ones."""
    reached = {0}
    for item in expected:
        taken = {at + 1 for at in reached if at < len(rows) and rows[at] == item.row}
        reached = taken if item.certain else taken | reached
    return len(rows) in reached


def _complain(lived: Lived, expected: list[Expected], rows: list[Row]) -> None:
    want = Counter(item.row for item in expected if item.certain)
    may = Counter(item.row for item in expected)
    have = Counter(rows)
    missing, extra = want - have, have - may
    place = next(
        (i for i, (a, b) in enumerate(zip(rows, expected, strict=False)) if a != b.row), -1
    )
    story = f"{len(rows)} rows for {len(expected)}, first difference at {place}; "
    story += f"missing {_short(missing)}; not expected {_short(extra)}"
    if missing:
        lost = sum(missing.values())
        if not extra and lost <= _reported_as_lost(lived):
            return
        raise Violation("lost", f"{story}; reported as lost: {_reported_as_lost(lived)}")
    if extra:
        category = "duplicated" if any(row in may for row in extra) else "misreported"
        raise Violation(category, story)
    raise Violation("misordered", story)


def _short(rows: Counter[Row]) -> str:
    return f"{sum(rows.values())} " + str([(role, text[:20]) for role, text in list(rows)[:3]])


def _reported_as_lost(lived: Lived) -> int:
    """How many records the reports say are lost. Only a full disk excuses a loss."""
    if not lived.scenario.small_disk:
        return 0
    problems = [text for report in _reports(lived) for text in report.get("problems") or ()]
    return sum(int(n) for text in problems for n in re.findall(r"(\d+) records were lost", text))


def _reports(lived: Lived) -> list[dict[str, Any]]:
    paths = lived.world.kept.glob("reports/*.jsonl")
    return [json.loads(line or "{}") for path in paths for line in path.read_text().splitlines()]


def _compare_hooks(lived: Lived, due: int, more: int) -> None:
    """Hooks have run for so many ends, or for up to so many more."""
    text = lived.world.hooked.read_text() if lived.world.hooked.exists() else ""
    decoder, at, ran = json.JSONDecoder(), 0, set()
    while at < len(text):
        event, at = decoder.raw_decode(text, at)
        if event["session_id"] == SESSION:
            ran.add(event["extra"]["recovery_id"])
    if not due <= len(ran) <= due + more:
        raise Violation("misreported", f"hooks ran for {len(ran)} ends, must be {due}")


def _nothing_left(lived: Lived) -> None:
    left = [path.name for path in lived.world.kept.glob("runs/*")]
    left += [path.name for path in lived.world.runtime.glob("hermes-supervise/*")]
    left += [path.name for path in lived.world.kept.glob("hooks/waiting/*")]
    if left:
        raise Violation("misreported", f"left over: {left}")


def _found(lived: Lived) -> tuple[list[Row], str | None]:
    if not lived.world.db.exists():
        return [], None
    db = sqlite3.connect(f"file:{lived.world.db}?mode=ro", uri=True, timeout=30)
    try:
        if db.execute("PRAGMA integrity_check").fetchone()[0] != "ok":
            raise Violation("misreported", "state.db is not sound")
        rows = db.execute(
            "SELECT role, content FROM messages WHERE session_id = ? ORDER BY id", (SESSION,)
        ).fetchall()
        ended = db.execute("SELECT end_reason FROM sessions WHERE id = ?", (SESSION,)).fetchone()
    finally:
        db.close()
    return [(role, content) for role, content in rows], ended[0] if ended else None
