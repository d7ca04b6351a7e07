"""From a command line to an exit status: set up, start, supervise, exit like the agent.

Never keeps the agent from running. If supervision cannot be set up, the agent replaces us, unless
the user asked for `--strict`. If it fails later, we only wait for the agent (waiting.py). So what
is needed to wait for the agent, forward its signals and exit with its status is loaded before the
agent starts; everything that is imported or opened later may fail.
"""

from __future__ import annotations

import gc
import os
import sys

from ..agents import registry
from ..agents.state_db import default_db
from ..ingest.listener import Listener
from ..model.options import HOOK_EVENTS, Options
from ..process import launch
from ..process.package import INJECTED_FOLDER
from ..process.platform import become_subreaper, process_start
from ..process.signals import Signals, Standby, die_by_signal
from ..storage import run_folder as runs
from ..storage.run_notes import TAP_FOLDER, record_agent
from . import waiting
from .forwarding import fork_standby

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from ..agents.protocol import Agent
    from ..process.terminal import Terminal
    from ..process.tree import FileId
    from ..recovery.report import SessionReport
    from .capture import Lookout
    from .restart import NextLife, Restarts
    from .supervision import Supervision

# Programs that run a command as another user (agents/other_user.py knows them).
_CHANGES_USER = frozenset((
    "chpst", "doas", "gosu", "pkexec", "runuser", "s6-setuidgid", "setpriv", "setuidgid", "su",
    "su-exec", "sudo",
))  # fmt: skip


class Life:
    """One life of the agent: a run of its own, and the process that was started."""

    def __init__(self, command: list[str], run: runs.Run, listener: Listener, pid: int) -> None:
        self.command = command
        self.run = run
        self.listener = listener
        self.pid = pid
        self.standby: Standby | None = None


def supervise(command: list[str], options: Options) -> None:
    """Run `command` under supervision. Ends this process with the command's status."""
    life, signals, terminal = _start(command, options)
    # The agent is running: from here on it must not matter to it whatever fails.
    try:
        streams, restarts = _take_streams(command, options, signals)
    except Exception as fault:
        launch.close_inherited_streams()
        _exit_with(_wait_only(life, fault, options, signals, terminal))
    while True:
        status, next_life = _supervise(life, streams, restarts, options, signals, terminal)
        if next_life is None:
            break
        try:
            life = _start_again(next_life, options, signals)
        except Exception as error:
            launch.say(f"not restarted: {error}", loud=True)
            break
    _exit_with(status)


# -- starting ------------------------------------------------------------------------------------


def _start(command: list[str], options: Options) -> tuple[Life, Signals, Terminal | None]:
    """Start the agent under supervision. If that cannot be set up, the agent replaces us."""
    run = listener = signals = None
    try:
        launch.reserve_standard_streams()
        _finish_leftovers(options)
        run = _create_run(command, options)
        listener = Listener(run.name)
        signals, terminal = Signals(), _terminal()
        argv, env = _way_in(command, run, listener, options, warn=not options.quiet)
        become_subreaper()  # last: it would outlive an exec
    except launch.CannotLaunch:
        raise
    except Exception as error:
        _discard(run, listener)
        if options.strict:
            launch.say(f"cannot supervise: {error}", loud=True)
            sys.exit(launch.OUR_FAILURE)
        launch.say(f"cannot supervise, running the agent without supervision: {error}", loud=True)
        launch.exec_unsupervised(command, signals)
        raise  # not reached
    return _spawn(command, argv, env, run, listener, options, signals), signals, terminal


def _finish_leftovers(options: Options) -> None:
    if not any(True for _ in runs.left_behind()) and not runs.with_queued_hooks():
        return
    from . import leftovers  # start-up: only if other runs are there

    leftovers.finish()
    if not options.quiet:
        leftovers.name_unreachable_agents()


def _start_again(next_life: NextLife, options: Options, signals: Signals) -> Life:
    command = next_life.command
    run = _create_run(command, options, next_life.after)
    listener = None
    try:
        listener = Listener(run.name)
        argv, env = _way_in(command, run, listener, options, more=next_life.env)
    except Exception:
        _discard(run, listener)
        raise
    return _spawn(command, argv, env, run, listener, options, signals, next_life.streams)


def _create_run(command: list[str], options: Options, after: str | None = None) -> runs.Run:
    """`after`: the run whose crash this one follows."""
    db = os.path.abspath(options.db) if options.db else default_db()
    lock = None
    if options.exclusive:
        from .exclusive import admit  # start-up: only with --exclusive

        lock = admit(command, db)
    about: dict[str, object] = {
        "command": command,
        "cwd": os.getcwd(),
        "supervisor": os.getpid(),
        "supervisor_start": process_start(os.getpid()),
        "terminal": _terminal_name(),
        "db": db,
        **{event: getattr(options, event) for event in HOOK_EVENTS},
        "hook_timeout": options.hook_timeout,
        "hook_retry": options.hook_retry,
        "idle_finalize": options.idle_finalize,
        "grace": options.grace,
        "orphans": options.orphans,
        "sync": options.sync,
        "checkpoint": options.checkpoint,
        "after": after,
        "log": options.log,
        **_what_to_follow(command, options),
    }
    if options.replica is not None:
        about |= {"replica": options.replica}
    run = runs.create(about)
    if options.replica is not None:
        _begin_replica(run, options, about)
    if lock is not None:
        os.close(lock)  # from here on other starts can see the run itself
    return run


def _what_to_follow(command: list[str], options: Options) -> dict[str, object]:
    writes = options.agent or options.watch or registry.recognised(command).writes_transcripts
    if not writes:
        return {}
    from ..transcripts.settings import what_to_follow  # start-up: only where there may be one

    return what_to_follow(command, options)


def _begin_replica(run: runs.Run, options: Options, about: dict[str, object]) -> None:
    """Without a replica the agent runs all the same, unless --strict."""
    from . import replication  # start-up: only with --replica

    try:
        if not replication.is_installed():
            raise OSError("psycopg is missing; install hermes-supervise[postgres]")
        replication.begin(run, options, about)
    except OSError as error:
        if options.strict:
            raise
        options.replica = None
        launch.say(f"the journal is not replicated: {error}", loud=True)


def _way_in(
    command: list[str],
    run: runs.Run,
    listener: Listener,
    options: Options,
    *,
    more: dict[str, str] | None = None,
    warn: bool = False,
) -> tuple[list[str], dict[str, str]]:
    """The command line and environment that start the agent with the shim in it. `warn`: say what
    will not be captured."""
    env = launch.environment(listener.path, run.folder) | (more or {})
    agent = registry.recognised(command)
    ways = agent.ways_in(command, env, INJECTED_FOLDER)
    if warn and _may_change_user(command):
        from ..agents import other_user  # start-up: only for such a command

        if (becomes := other_user.becomes(command)) is not None:
            launch.say(other_user.why(*becomes))
            warn = False
    if agent.injected and warn:
        from .capture import say_before  # start-up: only for an agent that the shim knows

        say_before(agent, command, ways)
    elif agent.writes_transcripts and warn:
        arguments = command[agent.recognise(command) or 1 :]
        if (why := agent.not_recorded(arguments)) is not None:
            launch.say(f"nothing that {agent.title} says will be captured: {why}")
        elif (why := agent.shown_unseen(arguments)) is not None:
            launch.say(f"a reply in progress will not be captured: {why}")
    tapped = run.transcript_stream is not None and not options.no_tap
    if run.transcript_stream is None and not agent.name:
        command, env = _unknown(command, env, options, warn)
    elif tapped:
        command, env = _tapped(agent, command, env, run)
    return next(((way.command, way.env) for way in ways if way.taken), (command, env))


def _may_change_user(command: list[str]) -> bool:
    return not _CHANGES_USER.isdisjoint(word.rpartition("/")[2] for word in command)


def _tapped(
    agent: Agent, command: list[str], env: dict[str, str], run: runs.Run
) -> tuple[list[str], dict[str, str]]:
    """The command and environment with the agent's live tap in them, if it has one."""
    folder = run.path(TAP_FOLDER)
    try:
        os.mkdir(folder, 0o700)
        if (tapped := agent.tapped(command, env, folder)) is not None:
            return tapped
        os.rmdir(folder)
    except Exception:
        pass  # it starts without: only the reply in progress is not captured
    return command, env


def _unknown(
    command: list[str], env: dict[str, str], options: Options, warn: bool
) -> tuple[list[str], dict[str, str]]:
    """The same for a command of no known agent: with our guest, if it is a Node program."""
    from ..agents import unknown  # start-up: only for such a command

    has_guest = not options.no_tap and unknown.is_node(command, env)
    if warn and (title := unknown.title_of(command)):
        launch.say(unknown.why(title, has_guest=has_guest))
    return _with_guest(command, env) if has_guest else (command, env)


def _with_guest(command: list[str], env: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """The command and environment of a Node program that nobody knows, with our guest in it."""
    try:
        from ..agents.node_guest import start_with  # start-up: only for such a program

        return start_with(command, env, None) or (command, env)
    except Exception:
        return command, env  # it starts without, and is not captured


def _discard(run: runs.Run | None, listener: Listener | None, *, keep: bool = False) -> None:
    """Take back a run that did not come about. `keep`: its transcripts are still to be read."""
    try:
        if listener is not None:
            listener.close()
        if run is not None:
            runs.retire(run, keep=keep)
    except Exception:  # no descriptor left, or an upgrade replaced our files
        pass  # the next start takes it away


def _spawn(
    command: list[str],
    argv: list[str],
    env: dict[str, str],
    run: runs.Run,
    listener: Listener,
    options: Options,
    signals: Signals,
    streams: list[tuple[int, ...]] | None = None,
) -> Life:
    try:
        pid = launch.spawn(argv, env, signals, streams)
    except launch.CannotLaunch:
        _discard(run, listener)
        raise
    life = Life(command, run, listener, pid)
    try:
        record_agent(run.folder, pid)
        # After the record: a standby looks for the agent in the run's folder.
        life.standby = fork_standby(run.folder, options)
    except Exception:
        pass  # then signals are forwarded without asking, and nobody takes over
    return life


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
    from ..process import terminal  # start-up: only where there is a terminal

    return terminal.save()


# -- one life of the agent -----------------------------------------------------------------------


def _take_streams(
    command: list[str], options: Options, signals: Signals
) -> tuple[list[FileId | None], Restarts | None]:
    """Note which files the agent's standard streams are, and close them here."""
    from ..process.tree import standard_streams  # start-up: the agent runs already

    streams = standard_streams()
    restarts = None
    if options.restart != "never":
        from .restart import Restarts  # start-up: only with --restart

        restarts = Restarts(command, options, signals)  # keeps the streams for later lives
    launch.close_inherited_streams(others=restarts is None)
    return streams, restarts


def _supervise(
    life: Life,
    streams: list[FileId | None],
    restarts: Restarts | None,
    options: Options,
    signals: Signals,
    terminal: Terminal | None,
) -> tuple[int, NextLife | None]:
    """Supervise one life of the agent; its status, and the next life if there is one."""
    try:
        # Start-up: the agent runs already.
        from . import summary
        from .event_log import EventLog
        from .supervision import Supervision

        supervision = Supervision(life.run, life.listener, options, signals, terminal)
        lookout = _lookout(life, supervision)
    except Exception as fault:
        return _wait_only(life, fault, options, signals, terminal), None
    gc.freeze()  # what is loaded stays, and shared with the standby and with forked jobs
    gc.enable()
    log = EventLog(options.log, life.run.name)
    log.write("started", pid=life.pid, program=os.path.basename(life.command[0]))
    supervision.run(life.pid, streams, life.standby)
    status = supervision.status or 0
    log.write("ended", status=status, cause=str(supervision.cause or ""))
    life.listener.close()
    if supervision.failed:
        _discard(life.run, None, keep=supervision.unfinished)
        return status, None
    reports: list[SessionReport] = []
    lines = summary.end(life.command, life.run, supervision, lookout, reports)
    log.write_sessions(reports)
    replicated = supervision.replica
    if lines and not options.quiet:
        if terminal is not None and (os.WIFSIGNALED(status) or terminal.was_reset) and os.isatty(2):
            launch.finish_line(terminal.line_for_a_notice())
        launch.say("\n".join(lines), loud=True)
    if replicated is not None:
        from .replication import wait_until_shipped  # start-up: only with --replica

        wait_until_shipped(replicated, life.run.name)
    if restarts is None:
        return status, None
    next_life = restarts.next(life.run.name, supervision, reports)
    if next_life is not None:
        log.write("restarting")
        supervision.close()
    return status, next_life


def _lookout(life: Life, supervision: Supervision) -> Lookout | None:
    agent = registry.recognised(life.command)
    if not agent.injected:
        return None
    from .capture import Lookout  # start-up: only for an agent that the shim knows

    lookout = Lookout(agent, life.command, life.run)
    lookout.begin(supervision)
    return lookout


def _wait_only(
    life: Life, fault: Exception, options: Options, signals: Signals, terminal: Terminal | None
) -> int:
    """Nothing is captured here: shims write to their spools, and a later start recovers those."""
    waiting.say_why(fault, options)
    life.listener.close()
    status = waiting.wait_only(life.pid, signals, life.standby, terminal, options.grace)
    _discard(life.run, None, keep=life.run.transcript_stream is not None)
    return status


def _exit_with(status: int) -> NoReturn:
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    die_by_signal(os.WTERMSIG(status))
