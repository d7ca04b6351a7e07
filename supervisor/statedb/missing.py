"""Finds the messages of a session that state.db lacks, and their order. Reads only.

Never inserts a row: writer.py does, within the transaction in which this has looked.

    for every share: what of it is missing      reconcile.py, against rows that are nobody else's
    the missing messages of all shares, in the order in which they were said

While a process lives, its reply in progress may still grow, and a call may still be answered. Later
messages of other streams wait for that, so that they are not stored before it.
"""

from __future__ import annotations

from ...ipc.lightweight.dataclass import dataclass, field, replace
from ..model import life as lives
from ..model.stored import record_span
from ..model.stream import Stored
from .markers import Ranges, key_of, owned
from .reconcile import Compared, Counts, Insert, Row, compare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..model.life import Life
    from ..model.stream import Session
    from .markers import Marker
    from .tables import EndMark, Messages, Sessions


@dataclass
class Part:
    """One stream's share in a session."""

    stream: str
    session: Session
    at: float
    """When its process died; of a living one, now."""
    life: Life = field(default_factory=lives.Life)
    living: bool = False
    """Only what is complete is stored, and the stream is not closed."""
    counted: bool = False
    """Its process is dead, so what is stored counts as recovered, although it is `living`."""
    pid: int | None = None
    """The pid that the dead process knew itself by, where that is known."""
    pid_namespace: str = ""
    """The namespace of that pid; empty: not known."""
    end: EndMark | None = None
    """The end mark that the session gets with this part."""
    note: dict[str, Any] = field(default_factory=dict)
    """What recovery notes in the marker for a later look at the closed stream."""


class Share:
    """A part while it is being written."""

    def __init__(self, part: Part, marker: Marker) -> None:
        self.part = part
        self.session = part.session
        self.key = key_of(part.stream, part.session.id)
        self.marker = marker
        self.owns = owned(marker)
        self.counts = Counts(**counts_in(marker))
        self.compared = Compared()
        self.waiting: list[Insert] = []
        """Inserts that cannot be done yet: a living process may say something before them."""
        self.inserted = 0
        self.through = marker.get("through")
        self.steps = Ranges(marker.get("steps"))
        self.fresh: dict[str, Stored] = {}
        """What this step stored, or found stored."""
        self.rows: list[str] = []
        """What all steps stored, as JSON for the marker."""


class Missing:
    """Finds what is missing of one session."""

    def __init__(
        self,
        messages: Messages,
        sessions: Sessions,
        shares: list[Share],
        others: dict[str, Marker],
        upto: int,
    ) -> None:
        self._messages = messages
        self._sessions = sessions
        self._shares = shares
        self._others = others
        self._upto = upto
        self._id = shares[0].session.id
        self.ids: list[int] = []
        """The ids of the session's rows above `floor`."""
        self.floor = 0
        """Rows up to here are not looked at again."""

    def find(self) -> list[tuple[Share, Insert]]:
        """The inserts of all shares in the order in which they were said. Each share also gets
        what was compared, and what of it has to wait."""
        self._compare()
        return self._merged()

    def _compare(self) -> None:
        """What of each share is missing. A row holds one message of one share."""
        claims = [owned(marker) for marker in self._others.values()]
        claims += [share.owns for share in self._shares]
        claimed = Ranges([pair for claim in claims for pair in claim.as_list()])
        stored = {known.row for share in self._shares for known in share.session.stored.values()}
        # Rows below what a part has stored are not looked at again.
        lowest = min(
            share.session.watermark if any(k.ours for k in share.session.stored.values()) else 0
            for share in self._shares
        )
        self.floor = lowest
        self.ids = self._messages.ids(self._id, lowest)
        free = {row for row in self.ids if row not in claimed and row not in stored}
        rows = self._messages.rows(self._id, min(free) - 1) if free else []
        for share in self._shares:
            share.compared = self._compared(share, [row for row in rows if row.id in free])
            self._note_what_is_there(share)
            free -= set(share.compared.there.values())

    def _note_what_is_there(self, share: Share) -> None:
        session, there = share.session, share.compared.there
        # Rows that we made for a call without an answer come from no record.
        share.fresh |= {uid: Stored(row, 0, 0, False) for uid, row in there.items()}
        for item in session.all_items():
            first, last = record_span(item)
            if item.uid in there:
                share.fresh[item.uid] = Stored(there[item.uid], first, last, False)
            elif item.outdated and item.row is not None:
                known = session.stored.get(item.uid)
                first = known.first if known is not None else first
                share.fresh[item.uid] = Stored(item.row, first, last, True)

    def _compared(self, share: Share, rows: list[Row]) -> Compared:
        part = share.part
        session = self._as_far_as_it_lasted(share.session)
        before = self._earlier_end(share)
        known = max((row.id for row in rows if row.timestamp <= before), default=0)
        session = replace(session, watermark=max(session.watermark, known))
        fresh = not rows and self._is_fresh(share)
        compared = compare(session, rows, part.at, fresh=fresh, living=part.living)
        through = share.marker.get("through")
        done = [index for index, insert in enumerate(compared.inserts) if insert.uid == through]
        if done:
            compared.inserts = compared.inserts[done[-1] + 1 :]
        return compared

    def _is_fresh(self, share: Share) -> bool:
        """True if the session has no rows but those of this part."""
        if all(item.live for item in share.session.items):
            return False  # it makes no difference
        mine = {known.row for known in share.session.stored.values() if known.ours}
        return all(row in mine or row in share.owns for row in self._messages.ids(self._id))

    def _as_far_as_it_lasted(self, session: Session) -> Session:
        """The session without rows that the agent had written and the file has lost.

        A row id is given out once. If one that the agent named was never given out, the file is
        as it was before: it was not synced when the power went, or it is an older copy.
        """
        newest = self._messages.newest()
        if newest is None:
            return session
        lost = [n for n, item in enumerate(session.items) if item.row and item.row > newest]
        if not lost:
            return session
        items = [
            item if n < lost[0] else replace(item, settled=False, row=None, outdated=False)
            for n, item in enumerate(session.items)
        ]
        return replace(session, items=items, watermark=min(session.watermark, newest))

    def _earlier_end(self, share: Share) -> float:
        """When the session ended before this part began, for rows of which nobody kept a note: an
        earlier life may have said the same."""
        began = share.session.began
        end = self._sessions.end_mark(self._id)
        ends = [end[0] if end is not None else 0.0]
        ends += [m["died"] for m in self._others.values() if isinstance(m.get("died"), int | float)]
        return max((at for at in ends if at < began), default=0.0)

    def _merged(self) -> list[tuple[Share, Insert]]:
        """The inserts of all parts in the order in which they were said. Those that have to wait
        are set aside, with everything behind them in their own stream."""
        if len(self._shares) == 1:
            [share] = self._shares
            return [(share, insert) for insert in share.compared.inserts]
        merged: list[tuple[int, int, int, Share, Insert]] = []
        for number, share in enumerate(self._shares):
            limit = self._limit_of(share)
            for index, insert in enumerate(share.compared.inserts):
                if limit is not None and insert.place > limit:
                    share.waiting = share.compared.inserts[index:]
                    break
                merged.append((insert.place, number, index, share, insert))
        merged.sort(key=lambda entry: entry[:3])
        return [(share, insert) for *_, share, insert in merged]

    def _limit_of(self, share: Share) -> int | None:
        """The place up to which a part can be stored now; None: all of it."""
        others = [other for other in self._shares if other is not share]
        limits = [other.compared.open_at for other in others if other.part.living]
        if share.part.living and self._upto:
            limits.append(self._upto)
        dead = [other for other in others if not other.part.living]
        if share.part.living and dead:
            # No more than what belongs before something of a dead process, as far as known.
            places = [insert.place for other in dead for insert in other.compared.inserts]
            known = share.session.last_place and max(places, default=0)
            limits.append(known or -1)
        return min((limit for limit in limits if limit), default=None)


def counts_in(marker: Marker) -> dict[str, int]:
    """What an earlier recovery counted."""
    counts = marker.get("counts")
    known = vars(Counts())
    return {k: v for k, v in counts.items() if k in known} if isinstance(counts, dict) else {}
