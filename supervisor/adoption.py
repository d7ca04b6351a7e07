"""When the supervisor itself dies: the witness sees it and takes its place.

Never interferes with the agent: it goes on, its shim spools what it says, finds the socket
again at the same path and sends what was not acknowledged.

The run's lock decides who takes over: it is free once the dead supervisor and any recovery it
had under way are gone. If witness and supervisor die together, the next start finishes.
"""

from __future__ import annotations

import os
import sys

from .run import living_agent, note_agent
from .signals import PASSED_ON, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .run import Run
    from .tree import Tree

Identity = tuple[int, int | None]


def become_supervisor(run_folder: str) -> None:
    """Replace this process by a supervisor that adopts the run."""
    # Until it can listen, which may take as long as a recovery that is under way.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    # A witness holds nothing open, and a program wants its three streams: without them the next
    # files it opens, its locks, would get their numbers.
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    module = "hermes_supervise.supervisor"
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, "adopt", run_folder])


def survivors(run: Run) -> dict[str, tuple[Identity, int]]:
    """The streams of processes that live: whose they are, and the last number in the journal.
    So is that of a watcher, which another one goes on with."""
    from .recovery.finish import is_alive
    from .recovery.gather import files_of, gather
    from .recovery.replay import replay

    found: dict[str, tuple[Identity, int]] = {}
    for stream in run.streams():
        told = replay(gather(run.folder, stream).frames)
        if stream == run.watcher or is_alive(told):
            who = told.peer or told.hello
            segments = [name for name in files_of(run.folder, stream) if name.endswith(".log")]
            journal = gather(run.folder, stream, segments).frames
            last = max((seq for seq, _ in journal), default=0)
            found[stream] = (who.get("pid", 0), who.get("start")), last
    return found


def silent_agent(run: Run, tree: Tree) -> Identity | None:
    """One that lives and has not said a word yet: the one that was noted or, if that was a
    launcher and is gone, whoever else could still speak in this run."""
    known = living_agent(run)
    if known is not None or run.streams() or os.path.exists(run.path("report.jsonl")):
        return known
    if (left := tree.may_speak_to_an_heir()) is not None:
        note_agent(run, left)
    return living_agent(run)
