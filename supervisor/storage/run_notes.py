"""Small notes in a run's folder about processes: who the agent is, who goes on after it, who else.

Never decides anything: the run and its recovery do. A note may be lost with the disk or the power;
then what it says is not known.
"""

from __future__ import annotations

import os

from ...ipc import endpoint
from ..process.platform import boot_id, process_start

# A folder in the run's folder: what a live tap of the agent reports.
TAP_FOLDER = "tap"
# The command has ended, and a daemon goes on with its turn.
GOES_ON = "goes_on"
# With a replica: the folder that the replica's own files are in.
REPLICA_NOTE = "replica"
# The process that was started: pid, start time, boot.
_AGENT = "agent"
# A process may have been left that could not be looked at.
_UNSEEN = "unseen"
# Everything was recovered; the folder stayed for a process that might still send records.
_SETTLED = "settled"
# The agent runs as this user, who is not ours, or tried to connect as such.
_OTHER_USER = "other_user"
# The supervisor exited in order, and left a process that may still connect.
_LEFT = "left"


def _write(folder: str, name: str, text: str) -> None:
    """Write a note. If that fails, the run goes on without it."""
    try:
        with open(os.path.join(folder, name), "w", opener=endpoint.private_file) as file:
            file.write(text)
    except OSError:
        pass


def record_agent(folder: str, pid: int) -> None:
    """Record which process the run is for. An agent that sends nothing is known only by this."""
    # Without it, an agent that connects is still known by its stream.
    _write(folder, _AGENT, f"{pid} {process_start(pid)} {boot_id()}")


def leave(folder: str, pid: int) -> None:
    """The supervisor exits in order, and this process may still connect."""
    record_agent(folder, pid)
    _write(folder, _LEFT, "")  # without it, the agent is said to be out of reach


def was_left(folder: str) -> bool:
    """What `leave` wrote."""
    return os.path.exists(os.path.join(folder, _LEFT))


def note_other_user(folder: str, uid: int) -> None:
    """Write down that a process of the agent's runs as another user."""
    _write(folder, _OTHER_USER, str(uid))  # without it, the notice at the end still says so


def other_user(folder: str) -> int | None:
    """What `note_other_user` wrote."""
    try:
        with open(os.path.join(folder, _OTHER_USER)) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def hand_over(folder: str, pid: int) -> None:
    """The command has ended, and this daemon goes on with its turn: whoever takes the run over
    waits for that turn."""
    with open(os.path.join(folder, GOES_ON), "w", opener=endpoint.private_file) as file:
        file.write(f"{pid}\n")
    record_agent(folder, pid)


def end_hand_over(folder: str) -> None:
    """The daemon that went on with the turn lives on, and is not of this run any more."""
    for name in (GOES_ON, _AGENT):
        try:
            os.unlink(os.path.join(folder, name))
        except FileNotFoundError:
            continue


def living_agent(folder: str) -> tuple[int, int | None] | None:
    """The agent's pid and start time, if it is still alive."""
    try:
        with open(os.path.join(folder, _AGENT)) as file:
            pid, start, boot = file.read().split(" ")
        who = int(pid), None if start == "None" else int(start)
    except (OSError, ValueError):
        return None
    from ..process.death import may_live  # start-up: no run asks this before its agent starts

    return who if not is_of_another_boot(boot) and may_live(*who) else None


def is_of_another_boot(boot: object) -> bool:
    """True if the machine has restarted since it called its boot by this name. Without a name,
    then or now, that is not known."""
    return bool(boot) and boot != (now := boot_id()) and bool(now)


def note_unseen(folder: str) -> None:
    """A process may have been left behind, and processes cannot be looked at: the folder stays."""
    _write(folder, _UNSEEN, "")  # without it, an agent that connects is known by its stream


def has_unseen(folder: str) -> bool:
    """What `note_unseen` wrote."""
    return os.path.exists(os.path.join(folder, _UNSEEN))


def note_settled(folder: str) -> None:
    """Everything in a run was recovered, and only a process that it left keeps the folder."""
    try:
        with open(os.path.join(folder, _SETTLED), "w", opener=endpoint.private_file):
            pass
    except OSError:
        pass  # the run is then said to wait, and `recover` finds nothing in it


def was_settled(folder: str) -> bool:
    """What `note_settled` wrote."""
    return os.path.exists(os.path.join(folder, _SETTLED))


def replica_of(folder: str) -> str | None:
    """Where the files of a run's replica are; None: it has none."""
    try:
        with open(os.path.join(folder, REPLICA_NOTE), encoding="utf-8") as file:
            return file.read()
    except OSError:
        return None
