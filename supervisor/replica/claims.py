"""Who may finalise a run, as decisions. Pure.

Never asks whether a machine is dead: nobody can know that from elsewhere. That its lease is over
allows others to copy its sessions, which harms nobody. Hooks act on the world, so they need the
loss to be declared: by the operator, by the platform, or after a silence that the user has set.
Each of these needs the lease to be over, so that the machine itself knows that its word no longer
counts.
"""

from __future__ import annotations

TYPE_CHECKING = False

GRANTED, OURS, REFUSED = "granted", "ours", "refused"
# Of hooks: they are ours to run; the loss is not declared yet; another machine runs or ran them.
GIVEN, WAITING, NOT_OURS = "given", "waiting", "not ours"


def claim(
    me: str,
    machine: str,
    *,
    silent: bool,
    claimed_by: str | None,
    claimer_lost: bool,
) -> tuple[str, str]:
    """Whether the machine `me` may be given a run of `machine`, and why not.

    OURS: it has been given it before, and was cut off, or there is more of it now.
    `silent`: the lease of its machine is over, or its loss was declared; `claimer_lost`: the loss
    of the one that claimed it before was declared.
    """
    if claimed_by == me:
        return OURS, ""
    if me == machine:
        taken = claimed_by is not None
        return (REFUSED, "another machine has recovered it") if taken else (GRANTED, "")
    if claimed_by is not None and not claimer_lost:
        return REFUSED, "another machine recovers it, or has recovered it"
    if not silent:
        return REFUSED, "its machine is alive: it reports to the database"
    return GRANTED, ""


def hooks(
    me: str,
    *,
    lost: bool,
    claimed_by: str | None,
    hooks_by: str | None,
    ended: bool,
    recovered: bool = False,
) -> tuple[str, str]:
    """Whether the machine `me`, which claimed the run of another, is to run its hooks; why not.

    `recovered`: `me` asks with a new claim, and an earlier claimer has recovered the run, and
    queued the hooks that it was given."""  # fmt: skip
    if claimed_by != me:
        return NOT_OURS, "another machine has recovered it"
    if hooks_by == me:
        return GIVEN, ""
    if ended:
        return NOT_OURS, "its own machine has finished it, and ran them"
    if hooks_by is not None and recovered:
        return NOT_OURS, "another machine has recovered it, and runs them"
    return (GIVEN, "") if lost else (WAITING, "")
