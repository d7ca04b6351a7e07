"""Before a run starts: other runs that lost their supervisor are finished, or named to the user.

Never fails a start: what cannot be finished here is left to `hermes-supervise recover`, which
reports it.
"""

from __future__ import annotations

import os

from ..process import launch
from ..process.signals import FORWARDED, signal
from ..storage import run_folder as runs
from ..storage.run_notes import living_agent

# Seconds that a start waits for this; then it goes on, and the work continues in the background.
_PATIENCE = 2.0


def finish() -> None:
    """Finish the runs that were left behind, and run queued hooks, in a forked process. This comes
    before the agent starts: the session that it resumes should be complete."""
    claimed = []
    for folder in runs.left_behind():
        try:
            run = runs.claim(folder)
        except OSError:
            continue
        if run is None:
            continue
        if living_agent(run.folder) is None and runs.waits_for_nothing_else(run):
            run.release()
        else:
            claimed.append(run)
    if not claimed and not runs.with_queued_hooks():
        return
    from ..hooks import launcher  # start-up: only if something was left

    def first() -> None:
        for number in FORWARDED:
            signal.signal(number, signal.SIG_IGN)
        launch.close_inherited_streams()
        launch.close_standard_error()
        if not claimed:
            return
        from .recover import finish_left_behind  # heavy

        for run in claimed:
            try:
                finish_left_behind(run)
                runs.retire(run)
            except Exception:
                continue  # the other runs are finished all the same

    _, first_pass = launcher.start_runner(None, first)
    for run in claimed:
        run.release()  # the forked process holds the locks now
    launcher.wait_for_first_pass(first_pass, _PATIENCE)


def name_unreachable_agents() -> None:
    """Tell a user at a terminal about agents that lost theirs: the user may be looking for one."""
    if not os.isatty(2) or not any(True for _ in runs.left_behind()):
        return
    from . import notice, out_of_reach  # start-up: only if other runs are there

    for agent in out_of_reach.find():
        sentence, command = str(agent).split("\n")
        folded = notice.wrapped([sentence], launch.columns(), first=True)
        launch.say("\n".join([*folded, command]))
