"""Markers: how much of one stream's share in a session is stored, written in the same transaction.

Never written outside the transaction whose work it describes. A recovery that is cut off anywhere
finds either nothing of a step or all of it, marker included, and goes on behind it.

A marker is JSON in state_meta, under `hermes_supervise:<stream>:<session>`:

    rows    the messages stored since the stream's own note of them (`<stream>.stored.log`) was
            last written: [uid, row, first record, last record, whether we wrote it]
    owns    ranges of rows that belong to this stream: we wrote them for it, or they were found to
            hold its messages. A row in a range belongs to the stream if it is of this session.
    counts  what was inserted after the process died
    through, steps
            the last message that a recovery inserted, and the rows, as ranges: what 0.1 goes by
    known   what the stream's own note says of the session beside the rows
    told    the number of the last record that was looked at while the process lived
    title   the title that we set, and may set again
    ended   the end mark that we set while the process lived: [when, reason]
    done    true: all is stored, the process is dead. Then also: died, at, ended_as, ended_by_us,
            title_dropped; `end`, the end mark that the row had then: [when, reason]; `life`, when
            the process spoke in the session; and what recovery notes for itself

A row is known to belong to a stream by the marker and by nothing else: another row may have the
same text, and the clock may have been wrong. Markers of 0.1 have no `owns`; while a recovery is
under way they have no `rows`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from ...ipc.lightweight import json
from ...ipc.records import bounded
from ..model import text
from ..model.checked import MARKER, checked
from . import schema

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .database import Database

    Marker = dict[str, Any]


# Lists of as many rows as a session has. Whoever reads them looks at each entry.
_LONG = ("rows", "owns", "steps")


def key_of(stream: str, session_id: str) -> str:
    # Not the id as it is stored: two ids may differ only in characters that cannot be stored.
    return f"hermes_supervise:{stream}:{session_id.encode('utf-8', 'backslashreplace').decode()}"


class Markers:
    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, key: str) -> Marker:
        self._database.execute(schema.META)
        return _marker(self._database.meta(key))

    def set(self, key: str, marker: Marker, rows: list[str] | None = None) -> None:
        """`rows` are JSON already: each step of many repeats those before it."""
        value = json.dumps(marker)
        if rows:
            value = f'{value[:-1]}, "rows": [{", ".join(rows)}]}}'
        self._database.set_meta(key, value)

    def of_session(self, session_id: str) -> dict[str, Marker]:
        """The markers of every stream that has a share in a session, by their keys."""
        self._database.execute(schema.META)
        rows = self._database.execute(
            "SELECT key, value FROM state_meta WHERE key GLOB 'hermes_supervise:*' "
            "AND substr(key, -length(?1) - 1) = ':' || ?1",
            (text.storable(session_id),),
        )
        markers = {}
        for key, value in rows.fetchall():
            markers[str(key)] = _marker(value)
        return markers

    def unfinished(self, stream: str) -> dict[str, Marker]:
        """The markers of a stream that do not say `done`, by session. Also from a file that is open
        for reading only."""
        if not self._database.columns_of("state_meta"):
            return {}
        prefix = key_of(stream, "")
        rows = self._database.execute(
            "SELECT substr(key, length(?1) + 1), value FROM state_meta "
            "WHERE key >= ?1 AND key < ?2",  # a range: the index finds it
            (prefix, prefix[:-1] + ";"),
        )
        markers = {str(id): _marker(value) for id, value in rows.fetchall()}
        return {id: marker for id, marker in markers.items() if not marker.get("done")}


def _marker(value: object) -> Marker:
    """A marker as it is in the file; empty if it is none."""
    try:
        marker = checked(json.loads(value) if isinstance(value, str) else None, MARKER)
    except ValueError:
        return {}
    return {name: item if name in _LONG else bounded(item) for name, item in marker.items()}


# -- rows that belong to a stream --------------------------------------------------------------


class Ranges:
    """Rows of one session, as ranges of ids. Rows of other sessions lie in between."""

    def __init__(self, ranges: object = ()) -> None:
        self._ranges: list[list[int]] = []
        pairs = ranges if isinstance(ranges, list) else ()
        for pair in sorted(list(pair) for pair in pairs if _is_range(pair)):
            if self._ranges and pair[0] <= self._ranges[-1][1]:
                self._ranges[-1][1] = max(self._ranges[-1][1], pair[1])
            else:
                self._ranges.append(pair)

    def __contains__(self, row: int) -> bool:
        index = bisect_right(self._ranges, row, key=_first) - 1
        return index >= 0 and row <= self._ranges[index][1]

    def as_list(self) -> list[list[int]]:
        return self._ranges

    def add(self, rows: Iterable[int], ids: list[int], floor: int) -> None:
        """Add rows. `ids` are those of the session's rows above `floor`, in order: two ranges
        become one if no row of the session that is somebody else's lies between them."""
        new = sorted(row for row in rows if row not in self)
        if not new:
            return
        index = bisect_right(self._ranges, new[0], key=_first)
        joined, later = self._ranges[:index], Ranges(self._ranges[index:])
        end = joined[-1][1] if joined else -1
        adjacent = end >= floor and bisect_right(ids, end) == bisect_left(ids, new[0])
        among = set(new)
        for row in sorted(among.union(ids[bisect_right(ids, new[0]) :])):
            if row in among or row in later:
                if adjacent:
                    joined[-1][1] = row
                else:
                    joined.append([row, row])
                adjacent = True
            else:
                adjacent = False
        self._ranges = Ranges(joined + later.as_list()).as_list()


def _first(pair: list[int]) -> int:
    return pair[0]


def _is_range(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(type(end) is int for end in pair)


def owned(marker: Marker) -> Ranges:
    """The rows that a marker claims for its stream."""
    ranges = Ranges(marker.get("owns"))
    steps = Ranges(marker.get("steps"))
    listed = [row[1] for row in marker.get("rows") or () if _is_row(row)]
    return Ranges([*ranges.as_list(), *steps.as_list(), *([row, row] for row in listed)])


def _is_row(row: object) -> bool:
    return isinstance(row, list) and len(row) == 5 and type(row[1]) is int
