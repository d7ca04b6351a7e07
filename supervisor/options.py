"""The options of a run, as data: parsing, help and config.toml are read off the same table.

Never imports argparse, which would cost a third of a launch, and never fails for what is in
config.toml: that is kept in `problems`, and the rest of the file holds.
"""

from __future__ import annotations

import os

from .recognise import AGENTS, NONE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class UsageError(Exception):
    """What the user wrote is not understood; the text says what and where."""


class Asked(Exception):
    """The user wants to be told something instead of a run."""


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < 1e9:
        raise ValueError("a number of seconds")
    return value


def _retries(text: str) -> str:
    try:
        for word in () if text == "none" else text.split(","):
            _seconds(word)
    except ValueError:
        raise ValueError("seconds, as in 10,60, or none") from None
    return text


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 7):
        raise ValueError("a whole number")
    return int(text)


def _words(text: str) -> str:
    if not text.strip():
        raise ValueError("a command")
    if "'" in text or '"' in text or "\\" in text:  # the usual command does not cost an import
        from shlex import split

        try:
            split(text)
        except ValueError as error:
            raise ValueError(f"a command: {str(error).lower()}") from None
    return text


class _OneOf:
    def __init__(self, *known: str) -> None:
        self.known = known

    def __call__(self, text: str) -> str:
        if text not in self.known:
            raise ValueError(f"{', '.join(self.known[:-1])} or {self.known[-1]}")
        return text


class Options:
    """The settings of a run. A flag wins over HERMES_SUPERVISE_<NAME>, that over config.toml,
    that over the default."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.db: str | None = None
        self.on_session_end: list[str] = []
        self.on_session_finalize: list[str] = []
        self.on_session_reset: list[str] = []
        self.hook_timeout = 300.0
        self.hook_wait = 2.0
        self.hook_retry = "10,60"
        self.idle_finalize = 0.0
        self.grace = 10.0
        self.orphans = "terminate"
        self.sync = "interval"
        self.checkpoint = 15.0
        self.restart = "never"
        self.max_restarts = 5
        self.resume_with: str | None = None
        self.agent: str | None = None
        self.watch: list[str] = []
        self.exclusive = False
        self.no_adopt = False
        self.strict = False
        self.notify = False
        self.quiet = False


class Option:
    """`many`: it may be given more than once, and is a list in config.toml."""

    def __init__(
        self,
        flag: str,
        value: str,
        read: Callable[[str], object] | None,
        meaning: str,
        *,
        many: bool = False,
    ) -> None:
        self.flag = flag
        self.value = value
        self.read = read
        self.meaning = meaning
        self.many = many
        self.name = flag[2:].replace("-", "_")

    @property
    def is_number(self) -> bool:
        return self.read in (_seconds, _count)

    @property
    def choices(self) -> tuple[str, ...]:
        return self.read.known if isinstance(self.read, _OneOf) else ()

    @property
    def variable(self) -> str:
        return "HERMES_SUPERVISE_" + self.name.upper()


TABLE = (
    Option("--db", "PATH", os.path.expanduser, """\
state.db of agents that name none (default: that in $HERMES_HOME,
or else in ~/.hermes)"""),
    Option("--on-session-end", "CMD", _words, """\
run CMD for every session that a death interrupted, with the event
as JSON on standard input; split into words as a shell does, but run
without one (sh -c '...' for more); may be given more than once""", many=True),
    Option("--on-session-finalize", "CMD", _words, """\
the same once a session is over for good: after on_session_end, when
a new conversation takes its place, or when it was idle too long""", many=True),
    Option("--on-session-reset", "CMD", _words, """\
the same for a conversation that begins in another's place""", many=True),
    Option("--hook-timeout", "S", _seconds, """\
seconds a hook may take (default: 300)"""),
    Option("--hook-wait", "S", _seconds, """\
seconds to wait for hooks after a crash before the terminal is given
back; they go on in the background (default: 2)"""),
    Option("--hook-retry", "S,S", _retries, """\
seconds to wait before each further attempt of a hook that failed;
none: try once only (default: 10,60)"""),
    Option("--idle-finalize", "S", _seconds, """\
finalise a session that nothing was said in for S seconds; its next
message opens it again. Not for Hermes, which does so itself
(default: 0, never)"""),
    Option("--grace", "S", _seconds, """\
seconds the agent has after a TERM or HUP that was passed on to it,
before it is killed (default: 10)"""),
    Option("--orphans", "WHAT", _OneOf("terminate", "report", "leave"), """\
what to do with processes that a killed agent leaves running.
terminate: end the tool that a Hermes was waiting for, report the
others (default); report: only report them; leave: do not look"""),
    Option("--sync", "WHEN", _OneOf("interval", "always"), """\
when the journal is forced to disk. interval: once a second; every
death of a process is survived (default); always: before anything is
acknowledged; a power cut is survived, too"""),
    Option("--checkpoint", "S", _seconds, """\
while an agent runs that does not store its messages itself, store
them every S seconds, and what the user said at once (default: 15;
0: only when it ends)"""),
    Option("--restart", "WHEN", _OneOf("never", "on-crash"), """\
on-crash: if the agent crashes, start it again on the session it was
in, at once, then after 1, 2, 4 ... seconds; never (default)"""),
    Option("--max-restarts", "N", _count, """\
restarts in a row, without ten minutes of life in between, before we
give up (default: 5)"""),
    Option("--resume-with", "CMD", _words, """\
how to start it again on {session}, for an agent that we do not know;
without it, such an agent is started as it was, and finds the session
in HERMES_SUPERVISE_RESUMED"""),
    Option("--agent", "NAME", _OneOf(*AGENTS, NONE), """\
whose transcript to read, where the command does not say: claude,
codex, gemini, opencode; none: read none"""),
    Option("--watch", "PATH", str, """\
read this transcript, too: a file of JSON lines with a role and a
content, or a folder of such files; may be given more than once""", many=True),
    Option("--exclusive", "", None, """\
start no second agent on a session that the agent of another run has
open; one that is opened later, by itself, is told of"""),
    Option("--no-adopt", "", None, """\
if the supervisor dies, start no other in its place"""),
    Option("--strict", "", None, """\
do not run the agent if it cannot be supervised"""),
    Option("--notify", "", None, """\
say it in a desktop notification and in a log file, too: for an agent
that is started without a terminal, or with one that closes on it"""),
    Option("--quiet", "", None, """\
say nothing, not even after a crash"""),
)  # fmt: skip
_BY_FLAG = {option.flag: option for option in TABLE}
BY_NAME = {option.name: option for option in TABLE}

HELP = ("-h", "--help")
VERSION = ("-V", "--version")
# The column of --help that they begin in.
_MEANINGS = 25

_ON = ("1", "true", "yes", "on")
_OFF = ("", "0", "false", "no", "off")


def _switch(text: str) -> bool:
    if text.lower() not in _ON + _OFF:
        raise ValueError("1 or 0")
    return text.lower() in _ON


def parse(arguments: list[str]) -> tuple[Options, list[str]]:
    """The options, and the command: from the first word that is none, or behind `--`."""
    options = Options()
    if os.path.exists(file := settings_file()):
        from .settings import from_file

        options.problems = from_file(options, file)
    for option in TABLE:
        if (text := os.environ.get(option.variable)) is not None:
            begin(options, option)
            put(options, option, text, option.variable)
    given: set[str] = set()
    index = 0
    while index < len(arguments):
        word = arguments[index]
        if word == "--":
            return options, arguments[index + 1 :]
        if not word.startswith("-") or word == "-":
            return options, arguments[index:]
        flag, equals, text = word.partition("=")
        if word in HELP + VERSION:
            raise Asked(word)
        found = _BY_FLAG.get(flag)
        if found is None:
            raise UsageError(f"unknown option {flag}{meant(flag, _BY_FLAG)}")
        if found.read is None:
            if equals:
                raise UsageError(f"{flag} takes no value")
            text = "1"
        elif not equals:
            index += 1
            if index >= len(arguments):
                raise UsageError(f"{flag} needs a value: {flag} {found.value}")
            text = arguments[index]
        if flag not in given:
            begin(options, found)
        given.add(flag)
        put(options, found, text, flag)
        index += 1
    return options, []


def settings_file() -> str:
    """Where config.toml is, if there is one."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(base, "hermes-supervise", "config.toml")


def begin(options: Options, option: Option) -> None:
    """A stronger source speaks: of a list, nothing of what a weaker one said is kept."""
    if option.many:
        setattr(options, option.name, [])


def put(options: Options, option: Option, text: str, where: str) -> None:
    """Take a value as `where` says it. Raises UsageError."""
    value = value_of(option, text, where)
    if option.many:
        getattr(options, option.name).append(value)
    else:
        setattr(options, option.name, value)


def value_of(option: Option, text: str, where: str) -> object:
    try:
        return _switch(text) if option.read is None else option.read(text)
    except ValueError as error:
        raise UsageError(f"{where}: {text!r} is not {error}") from None


def meant(word: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), n=1)
    return f" ({close[0]}?)" if close else ""


def describe() -> str:
    """For a terminal of the usual width."""
    from textwrap import wrap

    lines = []
    told = [(f"{option.flag} {option.value}", option.meaning) for option in TABLE]
    told += [(", ".join(HELP), "show this"), (", ".join(VERSION), "show the version")]
    for flags, meaning in told:
        head = f"  {flags}".rstrip()
        if len(head) >= _MEANINGS:
            lines.append(head)
            head = ""
        for line in wrap(meaning, 79 - _MEANINGS):
            lines.append(f"{head:<{_MEANINGS}}{line}")
            head = ""
    return "\n".join(lines)
