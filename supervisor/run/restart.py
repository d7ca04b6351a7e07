"""Restarting a crashed agent in the session it was in.

Never after an end that somebody wanted, never blindly, and never for ever.

    a crash        a signal that nobody uses to end a program (KILL, SEGV, ABRT, BUS …; a shell's
                   128 + n of such a signal), or an exit status other than 0 in the middle of work
    no crash       a clean exit; INT, QUIT, TERM, HUP, wherever they came from; any end after a
                   TERM or HUP that we got, shortly after a Ctrl-C, or after the terminal closed

Each life of the agent is a run of its own, finished and removed before the next one begins: a kill
in between costs a restart, and nothing else. A successor has no terminal, so a run that was taken
over is not restarted.
"""

from __future__ import annotations

import os
import select
import time

from ...ipc import endpoint
from ..process import launch
from ..process.signals import die_by_signal, signal, signal_name, stop_by_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..model.options import Options
    from ..process.cause import Cause
    from ..process.signals import Signals
    from ..recovery.report import SessionReport
    from .supervision import Supervision

_CRASHES = frozenset(
    (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL,
     signal.SIGSYS, signal.SIGTRAP, signal.SIGXCPU, signal.SIGXFSZ)
)  # fmt: skip
# An end within so many seconds after a Ctrl-C was wanted.
_AFTER_CTRL_C = 5.0
# A life shorter than this without a message achieved nothing; so many of one kind are a loop.
_SHORT_LIFE = 60.0
_LOOP = 3
# After a life as long as this, restarts are counted from 0 again.
_LONG_LIFE = 600.0
_MAX_WAIT = 30.0
# An argument with blanks that is longer than this is the user's question; the notice leaves it out.
_MAX_ARGUMENT = 40


class Life:
    """One life of the agent, and how it ended."""

    def __init__(
        self,
        run: str,
        began: float,
        cause: Cause,
        received: dict[int, float],
        reports: list[SessionReport],
    ) -> None:
        """`received`: the signals that we got, and when we last got each."""
        self.run = run
        self.cause = cause
        self._received = received
        self.reports = reports
        self.length = max(0.0, cause.at - began)

    def crashed(self) -> bool:
        if self._was_wanted():
            return False
        if self.cause.signal is not None:
            return self.cause.signal in _CRASHES
        code = self.cause.code or 0
        failed_at_work = code != 0 and self._was_working() and not _is_signal(code)
        return code - 128 in _CRASHES or failed_at_work

    def came_to_nothing(self) -> bool:
        return self.length < _SHORT_LIFE and not any(report.progress for report in self.reports)

    def interrupted(self) -> list[SessionReport]:
        return [r for r in self.reports if r.outcome == "interrupted" and not r.subagent]

    def _was_wanted(self) -> bool:
        recently = self.cause.at - _AFTER_CTRL_C
        return (
            self.cause.terminal_closed
            or any(number in self._received for number in (signal.SIGTERM, signal.SIGHUP))
            or any(self._received.get(n, 0.0) > recently for n in (signal.SIGINT, signal.SIGQUIT))
        )

    def _was_working(self) -> bool:
        return any(report.working for report in self.interrupted())


def _is_signal(code: int) -> bool:
    """True for a shell's 128 + n."""
    return 128 < code < 160


class NoRestart(Exception):
    """The agent is not restarted; the text says why."""


class NextLife:
    """What the next life begins with."""

    def __init__(
        self, command: list[str], after: str, env: dict[str, str], streams: list[tuple[int, ...]]
    ) -> None:
        self.command = command
        self.after = after
        self.env = env
        self.streams = streams


class Restarts:
    """The lives of one agent. To be created before its standard streams are closed here."""

    def __init__(self, command: list[str], options: Options, signals: Signals) -> None:
        self._signals = signals
        self._policy = RestartPolicy(command, options.resume_with, options.max_restarts)
        self._quiet = options.quiet
        self._streams = _keep_streams()
        self._began = time.time()

    def next(self, run: str, ended: Supervision, reports: list[SessionReport]) -> NextLife | None:
        """After the agent's end and its recovery: wait until it is time for the next life, and
        return what it begins with. None: there is no next life."""
        if ended.cause is None:
            return None
        life = Life(run, self._began, ended.cause, ended.signals_received, reports)
        try:
            if not life.crashed():
                return None
            command, session, wait = self._policy.after(life)
            self._announce(command, wait)
            variable = resumed_variable(life, session, self._policy.in_a_row)
        except NoRestart as why:
            self._say(f"not restarted: {why}")
            return None
        except Exception as fault:  # our exit status is the agent's all the same
            self._say(f"not restarted: {launch.reason(fault)}")
            return None
        if (number := _wait(wait, self._signals)) is not None:
            self._say(f"not restarted: {signal_name(number)}")
            die_by_signal(number)
        self._began = time.time()
        return NextLife(command, run, {endpoint.RESUMED_VARIABLE: variable}, self._streams)

    def _announce(self, command: list[str], wait: float) -> None:
        from ..model.text import printable  # only after a crash

        when = f" in {wait:g} s" if wait else ""
        words = (word if " " not in word or len(word) <= _MAX_ARGUMENT else "…" for word in command)
        count = f"{self._policy.in_a_row} of {self._policy.limit}"
        self._say(f"restarting{when} ({count}): {printable(' '.join(words))}")

    def _say(self, text: str) -> None:
        if not self._quiet:
            launch.say(text)


class RestartPolicy:
    """What follows a crash."""

    def __init__(self, command: list[str], template: str | None, limit: int) -> None:
        self._command = command
        self._template = template
        self.limit = limit
        self.in_a_row = 0
        """Restarts without a long life in between."""
        self._fruitless: list[str] = []

    def after(self, life: Life) -> tuple[list[str], str | None, float]:
        """The command line to start, the session it resumes, and how long to wait before.
        Raises NoRestart."""
        if life.length >= _LONG_LIFE:
            self.in_a_row = 0
        kind = str(life.cause)
        if not life.came_to_nothing():
            self._fruitless = []
        elif self._fruitless[-1:] == [kind]:
            self._fruitless.append(kind)
        else:
            self._fruitless = [kind]
        if len(self._fruitless) >= _LOOP:
            raise NoRestart(f"it ended the same way {_LOOP} times without saying anything ({kind})")
        if self.in_a_row >= self.limit:
            raise NoRestart(f"{self.limit} restarts in a row (--max-restarts)")
        if any(not report.complete for report in life.reports):
            raise NoRestart("its messages could not be written to state.db yet")
        command, session = self._next_command(life)
        wait = min(_MAX_WAIT, 2.0 ** (self.in_a_row - 1)) if self.in_a_row else 0.0
        self.in_a_row += 1
        return command, session, wait

    def _next_command(self, life: Life) -> tuple[list[str], str | None]:
        from ..agents import registry  # only after a crash
        from ..agents.command_line import CannotResume

        parsed = registry.parsed(self._command)
        interrupted = life.interrupted()
        if len(interrupted) != 1:
            if parsed is not None and parsed.asks and not interrupted:
                raise NoRestart("it is not known whether its question was acted on")
            # We cannot know in which of several sessions the user is; the agent may know.
            return self._command, None
        [report] = interrupted
        name = _session_name(report)
        if name.startswith("-"):
            raise NoRestart("the session's name would be read as an option")
        if self._template is not None:
            return fill_in(self._template, name), report.session
        if parsed is not None and parsed.one_shot and not report.working:
            raise NoRestart("it had already answered")
        if parsed is None:
            return self._command, report.session
        if not registry.recognised(self._command).knows_session(name):
            if parsed.asks or parsed.one_shot:
                raise NoRestart("it had not stored its session yet, so it cannot resume it")
            return self._command, None
        try:
            return parsed.resumed(name, what_happened(report)), report.session
        except CannotResume as why:
            raise NoRestart(str(why)) from None


def _session_name(report: SessionReport) -> str:
    """An agent may use another name for its session than state.db does."""
    from shlex import split  # only after a crash

    try:
        return split(report.resume or "")[-1]
    except (ValueError, IndexError):
        return report.session


def fill_in(template: str, session: str) -> list[str]:
    from shlex import split  # only after a crash

    return [word.replace("{session}", session) for word in split(template)]


def what_happened(report: SessionReport) -> str:
    """The message for an agent that was asked one question and has no user at a terminal."""
    counts = report.recovered
    lines = [f"[hermes-supervise] The process that worked on this ended before it was done: "
             f"{report.cause}. This is a new process, in the same session."]  # fmt: skip
    if counts.partial_characters:
        lines.append("Your last reply breaks off where the process ended.")
    if counts.calls_unknown:
        lines.append(
            "A tool call was under way: whether it had its effect is unknown, so look at the "
            "state of things before you repeat it."
        )
    if counts.calls_never_started:
        lines.append("Tool calls that are marked as never started have not been run.")
    return " ".join([*lines, "Go on with the task from there."])


def resumed_variable(life: Life, session: str | None, restart: int) -> str:
    import json  # only after a crash

    about = {"session": session, "reason": str(life.cause), "after": life.run, "restart": restart}
    return json.dumps(about)


def _wait(seconds: float, signals: Signals) -> int | None:
    """Wait for so long, or until a signal asks us to end; that signal."""
    deadline = time.monotonic() + seconds
    poller = select.poll()
    poller.register(signals.fileno(), select.POLLIN)
    while True:
        poller.poll(max(0.0, deadline - time.monotonic()) * 1000)
        for number in signals.take():
            if number == signal.SIGTSTP:
                stop_by_signal(number)
            elif number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
                return number
        if time.monotonic() >= deadline:
            return None


def _keep_streams() -> list[tuple[int, ...]]:
    """Keep standard input and output for later lives, as file actions for `posix_spawn`."""
    import fcntl  # only with --restart

    actions: list[tuple[int, ...]] = []
    for fd in (0, 1):
        if os.get_inheritable(fd):
            own = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
            actions.append((os.POSIX_SPAWN_DUP2, own, fd))
        else:  # we were started without it
            actions.append((os.POSIX_SPAWN_CLOSE, fd))
    return actions
