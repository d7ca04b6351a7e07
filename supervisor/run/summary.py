"""The end of a run: its folder is put away, and the user gets a few lines if there is a reason.

Never changes how we exit: the status is the agent's, whatever fails here.
"""

from __future__ import annotations

import os

from ..agents import registry
from ..process import launch
from ..process.signals import FORWARDED, signal
from ..storage import run_folder as runs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..recovery.report import SessionReport
    from .capture import Lookout
    from .supervision import Supervision

# Signals by which users and programs end a command in order.
_ASKED_TO_END = (*FORWARDED, signal.SIGPIPE, signal.SIGALRM)
_NEVER_CAPTURED = (
    "the command was killed, and nothing of it was captured: hermes-supervise does not know it as "
    "an agent, and it did not use the SDK or the protocol; hermes-supervise doctor -- COMMAND says "
    "more"
)


def end(
    command: list[str],
    run: runs.Run,
    supervision: Supervision,
    lookout: Lookout | None,
    reports: list[SessionReport],
) -> list[str]:
    """Put the run's folder away; the lines for the user. `reports` gets what became of the
    sessions."""
    try:
        lines = _lines(command, run, supervision, lookout, reports)
        runs.retire(run, keep=supervision.unfinished)
        return lines
    except OSError as error:
        return [f"the run's folder is unusable: {error}"]
    except Exception as fault:  # an upgrade may have replaced our files
        why = launch.reason(fault)
        return [f"could not summarise the run; run `hermes-supervise recover` ({why})"]


def _lines(
    command: list[str],
    run: runs.Run,
    supervision: Supervision,
    lookout: Lookout | None,
    reports: list[SessionReport],
) -> list[str]:
    first = _as_other_user(command, run, supervision)
    if not first and lookout is not None and not supervision.any_connected:
        missed = lookout.what_to_tell()
        first += [] if missed is None else [missed]
    if supervision.goes_on is not None:
        from . import notice  # only if there is something to say

        agent = registry.recognised(command)
        return first + notice.wrapped(
            notice.goes_on(agent.title, supervision.goes_on, str(supervision.cause)),
            launch.columns(),
        )
    path = run.path("report.jsonl")
    orphans = supervision.orphans
    if not os.path.exists(path) and not orphans and not supervision.recovery_failed:
        if not first and _was_never_captured(run, supervision):
            from . import notice  # only if there is something to say

            first = notice.wrapped([_NEVER_CAPTURED], launch.columns(), first=True)
        return first
    # Only if there is something to say.
    from ..recovery import report
    from . import notice

    cause = str(supervision.cause) if supervision.cause is not None else None
    reports += report.read(path)
    lines = notice.lines(reports, cause)
    if supervision.recovery_failed and not lines:
        lines = notice.not_recovered(cause, runs.why_unwritable(run))
    if orphans and not lines:
        lines = [f"the agent left processes behind: {cause}"]
    return first + notice.wrapped(lines + notice.left_behind(orphans), launch.columns())


def _as_other_user(command: list[str], run: runs.Run, supervision: Supervision) -> list[str]:
    """If the agent ran as another user, and was interrupted or turned away when it connected."""
    uid = supervision.other_user
    if uid is None or run.transcript_stream is not None:
        return []
    from ..agents import other_user  # only if there is something to say

    if not supervision.status:
        was_said = other_user.becomes(command) is not None
        if was_said or not supervision.was_refused:
            return []
    return [other_user.after(uid)]


def _was_never_captured(run: runs.Run, supervision: Supervision) -> bool:
    """True if the command was killed by a signal that does not ask a command to end, sent no
    record, and has no transcript that is read."""
    status = supervision.status or 0
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) not in _ASKED_TO_END
    return killed and not supervision.any_connected and run.transcript_stream is None
