"""The supervisor that a standby becomes when its own supervisor has died.

Never touches the terminal: it belongs to the shell again. A successor prints nothing.
"""

from __future__ import annotations

from ..ingest.listener import Listener
from ..model.options import Options
from ..process.signals import Signals
from ..storage import run_folder as runs
from .forwarding import fork_standby


def take_over(folder: str) -> None:
    """Supervise what is alive of a run whose supervisor died, until it is settled."""
    run = runs.claim(folder, wait=True)
    if run is None:
        return
    options = Options()
    options.quiet = True
    about = runs.settings(run)
    for name in ("grace", "sync", "orphans", "checkpoint", "idle_finalize"):
        setattr(options, name, about.get(name, getattr(options, name)))
    run.transcript_stream = about.get("watcher")
    options.log = about.get("log")
    listener = Listener(run.name, replace=True)
    # A successor listens first, then loads the rest.
    from .event_log import EventLog
    from .supervision import Supervision

    signals = Signals()
    signals.discard_pending()
    unfinished = True
    try:
        supervision = Supervision(run, listener, options, signals, None)
        log = EventLog(options.log, run.name)
        log.write("taken over")
        supervision.take_over(lambda: fork_standby(run.folder, options))
        unfinished = supervision.unfinished
        if options.log is not None:
            from ..recovery import report  # only with --log

            log.write_sessions(report.read(run.path("report.jsonl")))
    finally:
        listener.close()
        runs.retire(run, keep=unfinished)
