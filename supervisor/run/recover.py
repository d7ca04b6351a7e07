"""Recovery with hooks and transcripts: transcripts are read first, hooks are queued at the end.

Never does the work itself: recovery/finish.py does, and knows neither hooks nor transcripts.
"""

from __future__ import annotations

from ..hooks.observer import QueueHooks
from ..model.job_result import JobResult
from ..recovery.finish import Finished, NotPutAway, Observer, Supervised, finish
from ..recovery.reading import settings_of
from ..statedb.connection import PATIENCE
from .transcript_process import HANGING, READ, UNREAD

__all__ = ["Supervised", "finish_closed", "finish_left_behind"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..storage.run_folder import Run


def finish_left_behind(
    run: Run, patience: float = PATIENCE, progress: Callable[[int, int], None] | None = None
) -> Finished:
    """Finish a run whose supervisor is gone."""
    # `fleet recover` may have found that another machine runs them, or has run them.
    without_hooks = "hooks_run_by" in settings_of(run)
    observer = Observer() if without_hooks else QueueHooks()
    return finish(run, observer, patience=patience, progress=progress, read_transcripts=_catch_up)


def finish_closed(run: Run, supervised: Supervised, *, transcripts: int = READ) -> JobResult:
    """Finish streams of dead processes while their supervisor serves the others."""
    read_them = {READ: None, UNREAD: _catch_up, HANGING: _give_up}[transcripts]
    try:
        finished = finish(run, QueueHooks(), supervised=supervised, read_transcripts=read_them)
    except NotPutAway:
        return JobResult.STORED
    return JobResult.AGAIN if finished.waiting else JobResult.DONE


def _catch_up(folder: str) -> list[str]:
    from ..transcripts.main import catch_up  # loaded only for runs that followed transcripts

    return catch_up(folder)


def _give_up(folder: str) -> list[str]:
    """Whoever read them did not come to an end, and neither would we."""
    return ["the agent's transcript could not be read to its end in time"]
