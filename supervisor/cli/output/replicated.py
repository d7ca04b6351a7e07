"""How far a stream of this machine is replicated, as text; empty if it has no replica.

Never asks the database: the shipper notes how far it is.
"""

from __future__ import annotations

import os

from ....ipc import endpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def progress(stream: str) -> dict[str, Any] | None:
    """The numbers of the last records that were `read` and `replicated`."""
    if not os.path.exists(os.path.join(endpoint.state_folder(), "replica")):
        return None
    from ...replica import places  # only where a run ever had a replica

    return places.progress(stream)


def facts(stream: str) -> list[tuple[str, list[str]]]:
    """As a fact about a session: its name, and the text."""
    found = progress(stream)
    return [] if found is None else [("replica", [in_words(found)])]


def in_words(found: dict[str, Any], said: int | None = None) -> str:
    from ...replica import places  # only where a run ever had a replica

    return places.in_words(found, said)


def why_hooks_wait(run: str) -> str:
    """Why the hooks of a run wait for the replica; empty: they do not."""
    if not os.path.exists(os.path.join(endpoint.state_folder(), "replica")):
        return ""
    from ...replica import places  # only where a run ever had a replica

    answer, why = places.may_run_hooks(run)
    return why if answer == places.WAIT else ""
