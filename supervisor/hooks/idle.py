"""Finds idle sessions of a running agent, and queues the hooks that a running agent triggers.

Never ends a session in which work is in progress, nor one of an agent that ends idle sessions
itself. recovery/idle.py has how an idle session is recorded and then treated as ended.
"""

from __future__ import annotations

import time

from ..model.job_result import JobResult
from ..recovery import idle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..model.stream import Session
    from ..storage.run_folder import Run


def check(run: Run, stream: str, limit: float) -> JobResult:
    """Queue what is due. AGAIN if a session may still become idle.

    Runs in a job's own process, which is why its imports are here: start-up of the supervisor.
    """
    from ..agents import registry  # start-up: in a forked job only
    from ..recovery.checkpoint import checkpoint  # the same
    from ..recovery.gather import gather  # the same
    from ..recovery.reading import settings_of  # the same
    from ..recovery.replay import replay  # the same
    from .enqueue import Enqueuer  # the same

    replayed = replay(gather(run.folder, stream).frames)
    agent = registry.of_stream(replayed)
    result = JobResult.NOT_OURS if agent.ends_idle_sessions else JobResult.DONE
    if limit and result is JobResult.DONE:
        idle.mark(run, stream, replayed)
        for session in replayed.sessions.values():
            if session.ended is None and not _is_idle(run, stream, session, limit):
                result = JobResult.AGAIN
        checkpoint(run, stream)
    Enqueuer(run, settings_of(run)).for_running_agent(stream, replayed)
    return result


def _is_idle(run: Run, stream: str, session: Session, limit: float) -> bool:
    """Whether it is idle by now; if so, that is recorded."""
    now = time.time()
    if session.in_flight or session.calls or now - session.heard_at < limit:
        return False
    if session.items:
        idle.note(run, stream, session, now)
    return True
