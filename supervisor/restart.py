"""Starting a crashed agent again, on the session it was in.

Never after an end that somebody wanted, never blindly, and never for ever.

    a crash        a signal that nobody sends to have a program end (KILL, SEGV, ABRT, BUS …; a
                   shell's 128 + n of such a signal), or another exit status than 0 while work was
                   in flight
    no crash       a clean exit; INT, QUIT, TERM, HUP, however it came to them; whatever follows
                   a TERM or HUP that reached us, a Ctrl-C within seconds, a closed terminal

Each life of the agent is a run of its own, finished and put away before the next begins: who
kills us in between loses a restart, and nothing else. An heir has no terminal to start on, so a
run that was taken over is not started again.
"""

from __future__ import annotations

import os
import select
import time

from ..ipc import endpoint
from . import launch
from .signals import die_of, name_of, signal, stop_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .cause import Cause
    from .options import Options
    from .recovery.report import Settled
    from .signals import Signals
    from .supervise import Supervision

_CRASHES = frozenset(
    (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL,
     signal.SIGSYS, signal.SIGTRAP, signal.SIGXCPU, signal.SIGXFSZ)
)  # fmt: skip
# A Ctrl-C was meant for what ended within these seconds of it.
_KEYBOARD = 5.0
# A life as short as this, in which nothing was said, came to nothing; so many of one kind in a
# row are a loop.
_SHORT = 60.0
_LOOP = 3
# Who has lived as long as this begins a new row.
_LONG = 600.0
_LONGEST_WAIT = 30.0
# What is said to an agent is a sentence or more; nobody wants to read it again in a notice.
_SHOWN = 40


class Life:
    """One life of the agent, and how it ended."""

    def __init__(
        self, run: str, began: float, cause: Cause, told: dict[int, float], settled: list[Settled]
    ) -> None:
        self.run = run
        self.cause = cause
        self.told = told
        """The signals that reached us, and when the last of each did."""
        self.settled = settled
        self.length = max(0.0, cause.at - began)

    def crashed(self) -> bool:
        if self._was_wanted():
            return False
        if self.cause.signal is not None:
            return self.cause.signal in _CRASHES
        code = self.cause.code or 0
        return code - 128 in _CRASHES or (code != 0 and self._was_working() and not _by_hand(code))

    def came_to_nothing(self) -> bool:
        return self.length < _SHORT and not any(one.progress for one in self.settled)

    def interrupted(self) -> list[Settled]:
        return [one for one in self.settled if one.outcome == "interrupted" and not one.subagent]

    def _was_wanted(self) -> bool:
        ended = (signal.SIGTERM, signal.SIGHUP)
        typed = (signal.SIGINT, signal.SIGQUIT)
        return (
            self.cause.terminal_closed
            or any(number in self.told for number in ended)
            or any(self.told.get(number, 0.0) > self.cause.at - _KEYBOARD for number in typed)
        )

    def _was_working(self) -> bool:
        return any(one.working for one in self.interrupted())


def _by_hand(code: int) -> bool:
    """128 + n of a signal that is no crash."""
    return 128 < code < 160


class No(Exception):
    """The agent is not started again; the text says why."""


class Again:
    """What the next life begins with."""

    def __init__(
        self, command: list[str], after: str, env: dict[str, str], streams: list[tuple[int, ...]]
    ) -> None:
        self.command = command
        self.after = after
        self.env = env
        self.streams = streams


class Restarts:
    """The lives of one agent. To be made before its standard streams are let go of."""

    def __init__(self, command: list[str], options: Options, signals: Signals) -> None:
        self._signals = signals
        self._rule = Rule(command, options.resume_with, options.max_restarts)
        self._quiet = options.quiet
        self._streams = _kept_streams()
        self._began = time.time()

    def next(self, run: str, ended: Supervision, settled: list[Settled]) -> Again | None:
        """After the agent's end and the recovery: what to begin again with, once it is time."""
        if ended.cause is None:
            return None
        life = Life(run, self._began, ended.cause, ended.told, settled)
        if not life.crashed():
            return None
        try:
            command, session, wait = self._rule.after(life)
        except No as why:
            self._say(f"not started again: {why}")
            return None
        except Exception as fault:  # we end as the agent did all the same
            self._say(f"not started again: {fault!r}")
            return None
        from .text import printable

        when = f" in {wait:g} s" if wait else ""
        words = (word if " " not in word or len(word) <= _SHOWN else "…" for word in command)
        shown = printable(" ".join(words))
        self._say(f"started again{when} ({self._rule.row} of {self._rule.most}): {shown}")
        if (number := _wait(wait, self._signals)) is not None:
            self._say(f"not started again: {name_of(number)}")
            die_of(number)
        self._began = time.time()
        told = resumed_variable(life, session, self._rule.row)
        return Again(command, run, {endpoint.RESUMED_VARIABLE: told}, self._streams)

    def _say(self, text: str) -> None:
        if not self._quiet:
            launch.say(text)


class Rule:
    """What follows a crash."""

    def __init__(self, command: list[str], template: str | None, most: int) -> None:
        self._command = command
        self._template = template
        self.most = most
        self.row = 0
        """Restarts in a row: without a long life in between."""
        self._fruitless: list[str] = []

    def after(self, life: Life) -> tuple[list[str], str | None, float]:
        """The command line to start, the session it takes up, and how long to wait before.
        Raises No."""
        if life.length >= _LONG:
            self.row = 0
        kind = str(life.cause)
        if not life.came_to_nothing():
            self._fruitless = []
        elif self._fruitless[-1:] == [kind]:
            self._fruitless.append(kind)
        else:
            self._fruitless = [kind]
        if len(self._fruitless) >= _LOOP:
            raise No(f"the same end {_LOOP} times in a row, and nothing said in between ({kind})")
        if self.row >= self.most:
            raise No(f"{self.most} restarts in a row are enough (--max-restarts)")
        if any(not one.complete for one in life.settled):
            raise No("what it said could not be written yet")
        command, session = self._next_command(life)
        wait = min(_LONGEST_WAIT, 2.0 ** (self.row - 1)) if self.row else 0.0
        self.row += 1
        return command, session, wait

    def _next_command(self, life: Life) -> tuple[list[str], str | None]:
        from .adapters import resume

        read = resume.read(self._command)
        cut_off = life.interrupted()
        if len(cut_off) != 1:
            if read is not None and read.asks and not cut_off:
                raise No("whether its question has been acted on is not known")
            # Of several, which one the user is in cannot be told; the agent may know.
            return self._command, None
        [one] = cut_off
        name = _name_of(one)
        if name.startswith("-"):
            raise No("the name of its session would be taken for an option")
        if self._template is not None:
            return filled_in(self._template, name), one.session
        if read is not None and read.one_shot and not one.working:
            raise No("it had answered")
        try:
            found = resume.resumed(self._command, name, what_happened(one))
        except resume.CannotResume as why:
            raise No(str(why)) from None
        return found or self._command, one.session


def _name_of(one: Settled) -> str:
    """An agent may call its session otherwise than state.db does."""
    from shlex import split

    try:
        return split(one.resume or "")[-1]
    except (ValueError, IndexError):
        return one.session


def filled_in(template: str, session: str) -> list[str]:
    from shlex import split

    return [word.replace("{session}", session) for word in split(template)]


def what_happened(one: Settled) -> str:
    """Told to an agent that nobody else tells: it was asked one question, and nobody waits."""
    counts = one.recovered
    told = [f"[hermes-supervise] The process that worked on this ended before it was done: "
            f"{one.cause}. This is a new process, in the same session."]  # fmt: skip
    if counts.partial_characters:
        told.append("Your last reply breaks off where the process ended.")
    if counts.calls_unknown:
        told.append(
            "A tool call was under way: whether it had its effect is unknown, so look at the "
            "state of things before you repeat it."
        )
    if counts.calls_never_started:
        told.append("Tool calls that are marked as never started have not been run.")
    return " ".join([*told, "Go on with the task from there."])


def resumed_variable(life: Life, session: str | None, restart: int) -> str:
    import json

    told = {"session": session, "reason": str(life.cause), "after": life.run, "restart": restart}
    return json.dumps(told)


def _wait(seconds: float, signals: Signals) -> int | None:
    """Until the time is up, or a signal tells us to end: that one."""
    end = time.monotonic() + seconds
    poller = select.poll()
    poller.register(signals.fileno(), select.POLLIN)
    while True:
        poller.poll(max(0.0, end - time.monotonic()) * 1000)
        for number in signals.take():
            if number == signal.SIGTSTP:
                stop_of(number)
            elif number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
                return number
        if time.monotonic() >= end:
            return None


def _kept_streams() -> list[tuple[int, ...]]:
    """Standard input and output for later lives, as steps that `posix_spawn` takes."""
    import fcntl

    steps: list[tuple[int, ...]] = []
    for fd in (0, 1):
        if os.get_inheritable(fd):
            own = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
            steps.append((os.POSIX_SPAWN_DUP2, own, fd))
        else:  # we were started without it
            steps.append((os.POSIX_SPAWN_CLOSE, fd))
    return steps
