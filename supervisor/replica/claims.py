"""Who may finalise a run, as one decision. Pure.

Never asks whether a machine is dead: nobody can know that from elsewhere. An operator declares it,
and only once its lease is over, so that the machine itself knows that its word no longer counts.
"""

from __future__ import annotations

TYPE_CHECKING = False

GRANTED, OURS, REFUSED = "granted", "ours", "refused"


def claim(
    me: str,
    machine: str,
    *,
    lost: bool,
    claimed_by: str | None,
    claimer_lost: bool,
) -> tuple[str, str]:
    """Whether the machine `me` may be given a run of `machine`, and why not.

    OURS: it has been given it before, and was cut off, or there is more of it now.
    `lost`: its machine was declared lost; `claimer_lost`: so was the one that claimed it before.
    """
    if claimed_by == me:
        return OURS, ""
    if me == machine:
        taken = claimed_by is not None
        return (REFUSED, "another machine has recovered it") if taken else (GRANTED, "")
    if claimed_by is not None and not claimer_lost:
        return REFUSED, "another machine recovers it, or has recovered it"
    if not lost:
        return REFUSED, "its machine has not been declared lost"
    return GRANTED, ""


def owes_hooks(*, ended: bool, recovered: bool) -> bool:
    """Whether the claim includes the hooks: not if the machine itself had finished the run, and
    not if another machine has recovered it and queued them."""
    return not (ended or recovered)
