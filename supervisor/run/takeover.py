"""Taking over a run whose supervisor died: what is alive in it, and where its journals end.

Never interferes with the agent: it goes on, its shim spools its records, finds the socket again at
the same path and sends what was not acknowledged.

The run's lock decides who takes over: it is free once the dead supervisor and its recovery are
gone. If supervisor and standby die together, the next start finishes the run.
"""

from __future__ import annotations

import os

from ..storage.run_notes import living_agent, record_agent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..storage.run_folder import Run

Identity = tuple[int, int | None]


def survivors(
    run: Run, connected: Callable[[], set[str]]
) -> dict[str, tuple[Identity, int, set[str]]]:
    """The streams that may go on: who owns each, the last number in its journal, and the sessions
    that it has a share in. Those are the streams of living processes; the transcript process'
    stream, because another one continues it; and streams whose process is dead, but has sent
    something to this supervisor before.
    `connected`: the streams that connections belong to which nobody has served yet."""
    # Heavy, and needed only here.
    from ..recovery.gather import files_of, gather
    from ..recovery.reading import is_alive
    from ..recovery.replay import replay

    replayed = {name: replay(gather(run.folder, name).frames) for name in run.streams()}
    kept = run.transcript_stream
    going_on = {n for n, stream in replayed.items() if n == kept or is_alive(stream)}
    # In this order: a process that is dead by now has connected if it ever does.
    going_on |= {name for name in connected() if name in replayed and replayed[name].hello}
    streams: dict[str, tuple[Identity, int, set[str]]] = {}
    for name in sorted(going_on):
        owner = replayed[name].peer or replayed[name].hello
        segments = [file for file in files_of(run.folder, name) if file.endswith(".log")]
        journal = gather(run.folder, name, segments).frames
        last = max((seq for seq, _ in journal), default=0)
        identity = owner.get("pid", 0), owner.get("start")
        streams[name] = identity, last, set(replayed[name].sessions)
    return streams


def silent_agent(run: Run, may_connect: Callable[[], int | None]) -> Identity | None:
    """A living agent that never connected: the one in the run's folder or, if that was a launcher
    and has exited, another process that may still connect."""
    agent = living_agent(run.folder)
    if agent is not None or run.streams() or os.path.exists(run.path("report.jsonl")):
        return agent
    if (pid := may_connect()) is not None:
        record_agent(run.folder, pid)
    return living_agent(run.folder)
