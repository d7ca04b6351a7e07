"""The options of a run, as a table: parsing, --help, config.toml and the docs use it.

Never imports argparse, which would cost a third of a launch.
"""

from __future__ import annotations

import os

from ..agents import registry
from ..model.options import UsageError as UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..model.options import Options


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


def _log_target(text: str) -> str:
    if not text:
        raise ValueError("a file, or journal")
    return text if text == "journal" else os.path.abspath(os.path.expanduser(text))


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 7):
        raise ValueError("a whole number")
    return int(text)


def _replica(text: str) -> str:
    from ..replica.conninfo import checked  # start-up: only with --replica

    return checked(text)


def _key_file(text: str) -> str:
    if not text:
        raise ValueError("a key file")
    return os.path.abspath(os.path.expanduser(text))


def _words(text: str) -> str:
    if not text.strip():
        raise ValueError("a command")
    if "'" in text or '"' in text or "\\" in text:  # start-up: most commands need no check
        from shlex import split  # start-up: only for quoted words

        try:
            split(text)
        except ValueError as error:
            raise ValueError(f"a command: {str(error).lower()}") from None
    return text


class _Choice:
    known: tuple[str, ...]

    def __call__(self, text: str) -> str:
        if text not in self.known:
            raise ValueError(self.in_words())
        return text

    def in_words(self) -> str:
        return f"{', '.join(self.known[:-1])} or {self.known[-1]}"


class _OneOf(_Choice):
    def __init__(self, *known: str) -> None:
        self.known = known


class _AnAgent(_Choice):
    """Loads the agents' names only when they are needed: a launch does not need them."""

    def __getattr__(self, name: str) -> tuple[str, ...]:
        if name != "known":
            raise AttributeError(name)
        self.known = (*registry.with_transcripts(), registry.NONE)
        return self.known


class Option:
    """One option. `read` turns its text into a value, or raises ValueError with what it should be;
    None for a switch. `many`: it may be repeated, and is a list in config.toml."""

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
        self._meaning = meaning
        self.many = many
        self.name = flag[2:].replace("-", "_")

    @property
    def is_number(self) -> bool:
        return self.read in (_seconds, _count)

    @property
    def meaning(self) -> str:
        """What --help says. The agents are named when they are asked for: not at a launch."""
        if not isinstance(self.read, _AnAgent):
            return self._meaning
        return self._meaning.format(choices=self.read.in_words())

    @property
    def choices(self) -> tuple[str, ...]:
        return self.read.known if isinstance(self.read, _Choice) else ()

    @property
    def variable(self) -> str:
        return "HERMES_SUPERVISE_" + self.name.upper()


TABLE = (
    Option("--db", "PATH", os.path.expanduser, """\
state.db to use when the agent does not name one (default: the one
in $HERMES_HOME, or in ~/.hermes)"""),
    Option("--on-session-end", "CMD", _words, """\
run CMD for each interrupted session; it gets the event as JSON on
standard input. CMD is split like a shell command, but run without a
shell (use sh -c '...' for one); may be repeated""", many=True),
    Option("--on-session-finalize", "CMD", _words, """\
run CMD when a session is over for good: after on_session_end, when a
new conversation replaces it, or when it was idle too long; may be
repeated""", many=True),
    Option("--on-session-reset", "CMD", _words, """\
run CMD when a new conversation replaces the current one; may be
repeated""", many=True),
    Option("--hook-timeout", "S", _seconds, """\
time limit of a hook, in seconds (default: 300)"""),
    Option("--hook-wait", "S", _seconds, """\
how long to wait for hooks after a crash, in seconds; then they
continue in the background (default: 2)"""),
    Option("--hook-retry", "S,S", _retries, """\
delays before a failed hook is retried, in seconds; none: do not retry
(default: 10,60)"""),
    Option("--idle-finalize", "S", _seconds, """\
finalise a session after S seconds without a message; the next message
reopens it. Hermes sessions are left to Hermes (default: 0, never)"""),
    Option("--grace", "S", _seconds, """\
seconds between forwarding a TERM or HUP to the agent and killing it
(default: 10)"""),
    Option("--orphans", "WHAT", _OneOf("terminate", "report", "leave"), """\
what to do with processes that a killed agent leaves running.
terminate: end the tool that Hermes was waiting for, report the others
(default); report: only report them; leave: ignore them"""),
    Option("--sync", "WHEN", _OneOf("interval", "always"), """\
when to force the journal to disk. interval: once a second, which
survives the death of any process (default); always: before each
acknowledgement, which survives a power cut"""),
    Option("--checkpoint", "S", _seconds, """\
for agents that do not store messages themselves: write new messages
to state.db every S seconds, and user messages at once (default: 15;
0: only when the agent ends)"""),
    Option("--restart", "WHEN", _OneOf("never", "on-crash"), """\
when to restart the agent in the session it was in. on-crash: after a
crash, at once, then after 1, 2, 4 ... seconds; never (default)"""),
    Option("--max-restarts", "N", _count, """\
give up after N restarts in a row; ten minutes without a crash reset
the count (default: 5)"""),
    Option("--resume-with", "CMD", _words, """\
the command that resumes {session}, for an agent that is not known.
Without it, --restart runs the original command again, with the
session in HERMES_SUPERVISE_RESUMED"""),
    Option("--agent", "NAME", _AnAgent(), """\
which agent's transcript to read, if the command does not show it:
{choices} (do not read any)"""),
    Option("--watch", "PATH", str, """\
also read this transcript: a file of JSON lines with role and content,
or a folder of such files; may be repeated""", many=True),
    Option("--exclusive", "", None, """\
refuse to start an agent on a session that another run has open; warn
if the agent opens one later"""),
    Option("--replica", "CONNINFO", _replica, """\
copy the journal to a PostgreSQL database as it is written, so that
`hermes-supervise fleet recover` can rebuild the session on another
machine. CONNINFO is a libpq connection string without a password, as
in service=agents; needs hermes-supervise[postgres]"""),
    Option("--replica-disk", "MIB", _count, """\
how much may wait on this disk while the database is gone, in MiB; then
records are dropped, with one warning (default: 1024)"""),
    Option("--replica-keep", "S", _seconds, """\
how long records stay here after the database has them, in seconds: a
promoted standby may lack the last ones (default: 600)"""),
    Option("--replica-hooks", "WHEN", _OneOf("claimed", "always"), """\
when to run hooks here. claimed: while the database confirms that no
other machine was given the run (default); always: without asking"""),
    Option("--replica-key", "FILE", _key_file, """\
encrypt every record before it leaves this machine, with the key in
FILE; `hermes-supervise fleet key FILE` makes one. Other machines need
a copy of FILE to recover. Needs hermes-supervise[encryption]"""),
    Option("--replica-retention", "DAYS", _count, """\
delete finished runs of this machine from the database DAYS after their
last record (default: 0, never); needs the right to delete"""),
    Option("--replica-lost-after", "S", _seconds, """\
when this machine has recovered a session of another one that did not
report for S seconds, take that one for lost and run the session's
hooks here (default: 0, only once `hermes-supervise fleet lost` says so)"""),
    Option("--no-tap", "", None, """\
do not capture the reply in progress of an agent that is tracked
through its transcript (a hook in Claude Code, a plugin in opencode, a
guest in Node, a client of Codex' daemon), nor what an unknown Node
program asks its model"""),
    Option("--no-adopt", "", None, """\
if the supervisor dies, do not start a successor"""),
    Option("--strict", "", None, """\
do not run the agent if it cannot be supervised"""),
    Option("--notify", "", None, """\
report by desktop notification and in a log file as well: for an agent
without a terminal, or with one that closes when the agent exits"""),
    Option("--log", "FILE", _log_target, """\
append what the supervisor does to FILE, a JSON object a line, without
a word of what was said; journal: to systemd's journal instead"""),
    Option("--quiet", "", None, """\
print nothing, not even after a crash"""),
)  # fmt: skip
BY_FLAG = {option.flag: option for option in TABLE}
BY_NAME = {option.name: option for option in TABLE}

HELP = ("-h", "--help")
VERSION = ("-V", "--version")
# The column of --help in which the meanings start.
_MEANINGS = 25

_ON = ("1", "true", "yes", "on")
_OFF = ("", "0", "false", "no", "off")


def _switch(text: str) -> bool:
    if text.lower() not in _ON + _OFF:
        raise ValueError("1 or 0")
    return text.lower() in _ON


def begin(options: Options, option: Option) -> None:
    """A stronger source sets this option: a list from a weaker source is dropped."""
    if option.many:
        setattr(options, option.name, [])


def put(options: Options, option: Option, text: str, where: str) -> None:
    """Set a value that comes from `where`. Raises UsageError."""
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


def suggestion(word: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches  # start-up: only for errors

    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def describe() -> str:
    """The options for --help, 80 columns wide."""
    from textwrap import wrap  # start-up: only for --help

    lines = []
    described = [(f"{option.flag} {option.value}", option.meaning) for option in TABLE]
    described += [(", ".join(HELP), "show this help"), (", ".join(VERSION), "show the version")]
    for flags, meaning in described:
        head = f"  {flags}".rstrip()
        if len(head) >= _MEANINGS:
            lines.append(head)
            head = ""
        for line in wrap(meaning, 79 - _MEANINGS):
            lines.append(f"{head:<{_MEANINGS}}{line}")
            head = ""
    return "\n".join(lines)
