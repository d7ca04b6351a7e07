"""From a command line to an exit status: set up, supervise, tell, end as the agent did.

Never keeps the agent from running: if supervision cannot be set up, the agent takes our
place, unless the user asked for `--strict`.
"""

from __future__ import annotations

import os
import sys

from ..ipc.endpoint import process_start
from . import launch, recognise
from . import run as runs
from .listener import Listener
from .options import Options
from .signals import PASSED_ON, Signals, Witness, become_subreaper, die_of, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .recovery.report import Settled
    from .restart import Again
    from .supervise import Supervision
    from .terminal import Terminal

# How long a start waits for leftovers of an earlier crash to be written; then it goes on.
_LEFTOVER_PATIENCE = 2.0


def supervise(command: list[str], options: Options) -> None:
    """Run `command` under supervision. Ends the process with its status."""
    try:
        launch.keep_closed_streams_closed()
        finish_leftovers()
        run, listener = _set_up(command, options)
    except OSError as error:
        if options.strict:
            launch.say(f"cannot supervise: {error}", loud=True)
            sys.exit(launch.OUR_FAILURE)
        launch.say(f"cannot supervise, the agent runs without it: {error}", loud=True)
        launch.replace_ourselves(command)
        return
    signals, screen = Signals(), _terminal()
    become_subreaper()
    child = _launch(command, run, listener, signals)
    witness = _witness(run, options)
    # The agent is on its way: what is loaded from here on costs it no time.
    from .tree import standard_streams

    given = standard_streams()
    restarts = None
    if options.restart == "never":
        launch.let_go_of_the_streams()
    else:
        from .restart import Restarts

        restarts = Restarts(command, options, signals)  # keeps the streams for later lives
        launch.let_go_of_the_streams(others=False)
    from .supervise import Supervision

    while True:
        supervision = Supervision(run, listener, options, signals, screen)
        settled: list[Settled] = []
        try:
            supervision.run(child, given, witness)
        finally:
            listener.close()
            told = _end(run, supervision, command, settled)
        killed = supervision.status is not None and os.WIFSIGNALED(supervision.status)
        if told and not options.quiet:
            if killed and os.isatty(2):
                launch.end_the_line()
            launch.say("\n".join(told), loud=True)
        again = restarts.next(run.name, supervision, settled) if restarts is not None else None
        if again is None:
            break
        supervision.let_go()
        try:
            run, listener = _set_up(again.command, options, again.after)
            child = _launch(again.command, run, listener, signals, again)
            witness = _witness(run, options)
        except (OSError, launch.CannotLaunch) as error:
            launch.say(f"not started again: {error}", loud=True)
            break
        command = again.command
    if supervision.status is None or not killed:
        os._exit(os.WEXITSTATUS(supervision.status or 0))
    die_of(os.WTERMSIG(supervision.status))


def _set_up(
    command: list[str], options: Options, after: str | None = None
) -> tuple[runs.Run, Listener]:
    """A run's folder and socket. `after`: the run whose crash this one follows."""
    db = os.path.abspath(options.db) if options.db else runs.default_db()
    admitted = None
    if options.exclusive:
        from .exclusive import admit

        admitted = admit(command, db)
    run = runs.create(
        {
            "command": command,
            "cwd": os.getcwd(),
            "supervisor": os.getpid(),
            "supervisor_start": process_start(os.getpid()),
            "terminal": _terminal_name(),
            "db": db,
            "on_session_end": options.on_session_end,
            "on_session_finalize": options.on_session_finalize,
            "on_session_reset": options.on_session_reset,
            "hook_timeout": options.hook_timeout,
            "hook_retry": options.hook_retry,
            "idle_finalize": options.idle_finalize,
            "grace": options.grace,
            "orphans": options.orphans,
            "sync": options.sync,
            "checkpoint": options.checkpoint,
            "after": after,
            **recognise.to_watch(command, options),
        }
    )
    if admitted is not None:
        os.close(admitted)  # from here on the run itself can be seen
    try:
        return run, Listener(run.name)
    except OSError:
        runs.retire(run)
        raise


def _launch(
    command: list[str],
    run: runs.Run,
    listener: Listener,
    signals: Signals,
    again: Again | None = None,
) -> int:
    env = launch.environment(listener.path, run.folder)
    try:
        if again is None:
            child = launch.spawn(launch.seen_through(command), env, signals)
        else:
            env |= again.env
            child = launch.spawn(launch.seen_through(command), env, signals, again.streams)
    except launch.CannotLaunch:
        listener.close()
        runs.retire(run)
        raise
    runs.note_agent(run, child)
    return child


def _witness(run: runs.Run, options: Options) -> Witness | None:
    """One that inherits when we are dead. It must find the agent noted in the run's folder."""

    def heir() -> None:
        from . import adoption

        adoption.become_supervisor(run.folder)

    try:
        return Witness(None if options.no_adopt else heir)
    except OSError:
        return None


def _terminal_name() -> str | None:
    for fd in (0, 1, 2):
        try:
            return os.ttyname(fd)
        except OSError:
            continue
    return None


def _terminal() -> Terminal | None:
    if not any(map(os.isatty, (0, 1, 2))):
        return None
    from . import terminal

    return terminal.remember()


def adopt(folder: str) -> None:
    """Supervise what an earlier supervisor of this run left alive, until it is settled."""
    run = runs.claim(folder, wait=True)
    if run is None:
        return
    import json

    options = Options()
    options.quiet = True  # the terminal has gone back to whoever waits at it
    try:
        with open(run.path("run.json"), encoding="utf-8") as file:
            told = json.load(file)
        options.grace, options.sync = float(told["grace"]), str(told["sync"])
        options.orphans = str(told["orphans"])
        options.checkpoint = float(told["checkpoint"])
        options.idle_finalize = float(told["idle_finalize"])
        run.watcher = told.get("watcher")
    except (OSError, ValueError, KeyError, TypeError):
        pass  # the defaults, then
    listener = Listener(run.name, again=True)
    from .supervise import Supervision

    signals = Signals()
    signals.listen_anew()
    try:
        supervision = Supervision(run, listener, options, signals, None)
        supervision.adopt(lambda: _witness(run, options))
    finally:
        listener.close()
        runs.retire(run)


def _end(
    run: runs.Run, supervision: Supervision, command: list[str], settled: list[Settled]
) -> list[str]:
    """Take the run's folder away; what to tell the user, and what became of the sessions.
    Trouble with that is no reason to end otherwise than the agent did."""
    try:
        told = _what_to_tell(run, supervision, command, settled)
        runs.retire(run)
        return told
    except OSError as error:
        return [f"the run's folder is not in order: {error}"]
    except Exception as fault:  # of ours, or an upgrade has taken our files away
        return [f"what became of it, `hermes-supervise recover` can tell: {fault!r}"]


def _what_to_tell(
    run: runs.Run, supervision: Supervision, command: list[str], settled: list[Settled]
) -> list[str]:
    if not supervision.heard and launch.was_out_of_reach(command, run.path("reached")):
        first = [launch.OUT_OF_REACH]
    else:
        first = []
    orphans = supervision.orphans.found
    if not os.path.exists(run.path("report.jsonl")) and not orphans:
        return first
    from . import notice
    from .recovery import report

    cause = str(supervision.cause) if supervision.cause is not None else None
    settled += report.read(run.path("report.jsonl"))
    told = notice.lines(settled, cause)
    if orphans and not told:
        told = [f"the agent left processes behind: {cause}"]
    return first + notice.fitted(told + notice.left_behind(orphans), launch.columns())


def finish_leftovers() -> None:
    """Finish runs whose supervisor is gone, and see to hooks that wait, in a process of its own,
    before the agent starts: what it resumes should be there."""
    claimed = []
    for folder in runs.left_behind():
        try:
            run = runs.claim(folder)
        except OSError:
            continue  # `recover` tells about it; this run has nothing to do with it
        if run is not None:
            claimed.append(run)
    if not claimed and not runs.owing_hooks():
        return
    from .hooks import minder

    def first() -> None:
        for number in PASSED_ON:
            signal.signal(number, signal.SIG_IGN)
        launch.let_go_of_the_streams()
        launch.let_go_of_standard_error()
        if not claimed:
            return
        from .recovery.finish import finish_left_behind

        for run in claimed:
            try:
                finish_left_behind(run)
                runs.retire(run)
            except Exception:
                continue  # `recover` tells about it; the others have nothing to do with it

    _, first_pass = minder.begin(None, first)
    for run in claimed:
        run.release()  # the runner holds them now
    minder.wait(first_pass, _LEFTOVER_PATIENCE)
