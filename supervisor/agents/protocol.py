"""What the supervisor asks an agent, with the answers for an agent that needs nothing special.

An agent is a module in this folder with an instance of a subclass as `AGENT`. A subclass overrides
only what is different about its agent. Commands and streams of no known agent get an instance of
this class itself: its answers are the defaults.

The module of an agent is imported at every launch of it. It therefore imports nothing but this
module, and loads the rest (parsers, databases, probes) inside the methods that need it.

    launch          recognise, ways_in, lost_from_the_start, why_not_captured, out_of_reach
    transcripts     sources, work_folder, not_recorded, shown_unseen
    live tap        tapped, why_not_tapped, goes_on
    resume          arguments, knows_session, resume_hint
    doctor          bootstrap, inner_findings, losses, trial
    end of a run    may_be_ended, died_closing, left_unclosed, was_quit, is_between_requests,
                    is_the_users, keep_what_was_shown, may_have_shown_more, open_sessions
    hooks           own_hooks, hook_environment, installed_here
    left running    orphan_kind, secret_files
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from ..model.stream import ReplayedStream, Session
    from .command_line import Arguments

    Finding = tuple[str, str, str]
    """A line of `doctor`: what it is about; ok, note or bad; a text."""
    Entry = dict[str, Any]
    """A line of a transcript, parsed as JSON."""
    Record = dict[str, Any]
    """A record of the wire (docs/protocol.md)."""
    Read = tuple[Record, str, bool]
    """A record, the key that it has whenever it is read again, and whether it is of this run."""

OK, NOTE, BAD = "ok", "note", "bad"


class Place:
    """Where and when an agent runs: this decides which transcripts belong to this run."""

    def __init__(
        self,
        *,
        cwd: str,
        env: Mapping[str, str],
        arguments: list[str] | None = None,
        started_in: str | None = None,
        launched: float = 0.0,
        paths: list[str] | None = None,
        tap: str | None = None,
        runs: str | None = None,
        claim: Callable[[str], bool] = lambda name: True,
        announced: Callable[[str], bool] = lambda session: True,
    ) -> None:
        self.cwd = cwd
        """The folder that the agent works in."""
        self.started_in = started_in or cwd
        self.env = env
        """The environment as the agent sees it."""
        self.arguments = arguments or []
        """The agent's own arguments, behind the name of its program."""
        self.launched = launched
        self.paths = paths or []
        """The files and folders that the user named with `--watch`."""
        self.tap = tap
        """The folder that a live tap reports into; None: there is no tap."""
        self.runs = runs
        """The folder of all runs, this one among them."""
        self.may_tap = True
        """False with `--no-tap`."""
        self.is_recognised = True
        """False if only `--agent` says which agent it is: then it is started as it is."""
        self.claim = claim
        """True if this run is the first to claim a session by that name."""
        self.announced = announced
        """True once a message of the session has been reported."""


class WayIn:
    """A way for the shim to get into an agent, and whether this start takes it."""

    def __init__(
        self, name: str, reason: str, command: list[str] | None, env: dict[str, str]
    ) -> None:
        self.name = name
        self.reason = reason
        """Why it is taken, or why not."""
        self.taken = command is not None
        self.command = command or []
        """What to start, and with which environment."""
        self.env = env
        self.uncertain = False
        """It may work all the same; only the running agent can show it."""


class Fold:
    """The parser of one file of lines: keeps what later lines refer to."""

    family = ""
    """The session that the file is about."""

    def line(self, entry: Entry, key: str) -> list[Record]:
        """The records that a line stands for. `key` is unique in the file and never changes."""
        raise NotImplementedError


class LineFiles:
    """Transcripts that are files of JSON lines."""

    named_by_user = False
    """The user named these files: whoever writes them, they are of this run."""

    def folders(self) -> list[str]:
        """The folders to watch, with all below them; or single files."""
        raise NotImplementedError

    def accepts(self, path: str) -> bool:
        """True if a file in these folders is a transcript."""
        return path.endswith(".jsonl")

    def fold(self, path: str) -> Fold:
        raise NotImplementedError

    def time_of(self, entry: Entry) -> object:
        """When a line was written: seconds, milliseconds or ISO 8601. Lines from before the launch
        belong to an earlier run."""
        return entry.get("timestamp")

    def belongs(self, entry: Entry) -> bool:
        """True if the first line of a file says that it belongs to this run's folder."""
        return True

    def written_here(self, path: str) -> bool | None:
        """True if a process of this run is known to write the file, False if they are known to
        write others; None if nothing is known."""
        return None

    def is_server(self, words: list[str]) -> bool:
        """True if a process with this command line keeps files open for other processes. Then an
        open file does not show whose the session is."""
        return False

    def owners(self, fold: Any) -> list[int]:
        """The processes that have the session open, as the agent itself notes them. They may be
        dead."""
        return []


class Database:
    """Transcripts in a database, which is read as a whole whenever it has changed."""

    def folders(self) -> list[str]:
        raise NotImplementedError

    def read(self, *, final: bool) -> Iterator[list[Read]]:
        """What is new. `final`: the agent is dead, so read it even if it seems unchanged."""
        raise NotImplementedError

    def look_first(self) -> set[str]:
        """Files of lines whose news must be reported before what is new here."""
        return set()

    def is_idle(self) -> bool:
        """True if nobody continues in the background what the agent was doing when it ended."""
        return True

    def problem(self) -> str | None:
        """Why nothing would be captured from it, for `doctor`."""
        return None


class OwnHooks:
    """Hooks of the agent's own, run in one process in place of the dead agent."""

    def __init__(
        self, events: list[str], words: list[str], request: dict[str, Any], env: dict[str, str]
    ) -> None:
        self.events = events
        """The events that it runs, for the report."""
        self.words = words
        self.request = request
        """The JSON object on its standard input."""
        self.env = env
        """The environment of the dead process, as far as it is known."""


def is_from_transcript(stream: ReplayedStream) -> bool:
    """True if the process that follows transcripts reports for the agent."""
    return isinstance(stream.hello.get("speaks_for"), str)


def waits_for_reply(session: Session, stream: ReplayedStream) -> bool:
    """True if a reply is due or in progress, and transcripts and taps report it."""
    waits = session.phase.value in ("working", "replying") and not session.stopped
    return is_from_transcript(stream) and waits


class Agent:
    name = ""
    """The name of its module, of `--agent NAME`, and of the `agent` in its hello."""
    title = ""
    """What people call it."""
    programs: tuple[str, ...] = ()
    """The names of the programs that start it. Each contains `name`: an agent whose name is
    nowhere in a command line is not even imported."""
    injected = False
    """The shim has an adapter for it, which reports its messages from inside."""
    writes_transcripts = False
    """It writes files that say what was said in it, and these are read."""
    stores_itself = False
    """It writes its sessions to state.db itself: we add only what it could not write."""
    tap_sees = ""
    """What its live tap is and sees, for `doctor`."""
    trial_ready = ""
    """What `doctor --prove` waits for on the screen before it types the prompt; "": it is a part of
    the command line that `trial` returns."""
    ends_idle_sessions = False
    """It ends sessions itself when nothing has been said in them for long."""

    # -- launch --------------------------------------------------------------------------------

    def recognise(self, command: list[str]) -> int | None:
        """The index at which the agent's own arguments begin; None if it is another program."""
        from .command_line import program_of  # only for a command line that contains the name

        found = program_of(command)
        return found[0] + 1 if found is not None and found[1] in self.programs else None

    def ways_in(self, command: list[str], env: dict[str, str], folder: str) -> list[WayIn]:
        """How the shim could get into the agent, in order. `folder` is the shim's folder on
        PYTHONPATH. Read at every launch."""
        return []

    def way_in(
        self, command: list[str], env: dict[str, str], folder: str
    ) -> tuple[list[str], dict[str, str]]:
        """The command and environment that start the same agent with the shim in it; unchanged
        if there is no way in."""
        for way in self.ways_in(command, env, folder):
            if way.taken:
                return way.command, way.env
        return command, env

    def lost_from_the_start(self, ways: list[WayIn]) -> str:
        """The warning for the user before a start that will certainly not be captured; "" if that
        is not certain."""
        return ""

    def why_not_captured(self, pid: int) -> str | None:
        """Why the shim cannot be in a running agent, as far as its processes show it."""
        return None

    def out_of_reach(self, command: list[str], sign: str, why: str | None) -> str | None:
        """The notice for the user after a run in which nothing was captured. `sign` is the file
        that the shim makes once it is inside the agent; `why` is what `why_not_captured` said."""
        return None

    # -- transcripts ---------------------------------------------------------------------------

    def sources(self, place: Place) -> list[LineFiles | Database]:
        """The transcripts that it would write when it runs in this place."""
        return []

    def work_folder(self, arguments: list[str], cwd: str) -> str:
        """The folder that it works in when it is started in `cwd` with these arguments."""
        return cwd

    def not_recorded(self, arguments: list[str]) -> str | None:
        """Why a start with these arguments leaves no transcript to read, for one line before the
        agent starts; None if it leaves one."""
        return None

    def shown_unseen(self, arguments: list[str]) -> str | None:
        """Why a start with these arguments shows text that is not captured before it is complete,
        where its user may not expect that: for one line before the agent starts."""
        return None

    # -- live tap ------------------------------------------------------------------------------

    def tapped(
        self, command: list[str], env: dict[str, str], folder: str
    ) -> tuple[list[str], dict[str, str]] | None:
        """The command and environment that start the same agent with a live tap, which writes the
        reply in progress into `folder`, where `sources` reads it. None: it has no tap, or not if
        started like this."""
        return None

    def why_not_tapped(self, place: Place) -> str | None:
        """Why the reply in progress would not be captured; None if it would."""
        return "its transcript gets a message when it is complete"

    def goes_on(self, tap: str, env: Mapping[str, str]) -> int | None:
        """When the command has ended: the process that continues its turn in the background, as its
        live tap reports it; None: nobody does."""
        return None

    # -- resume --------------------------------------------------------------------------------

    def arguments(self) -> Arguments | None:
        """The grammar of its command line; None: it cannot be started on a session."""
        return None

    def knows_session(self, name: str) -> bool:
        """False if we made the name up, because the agent died before it stored the session."""
        return True

    def resume_hint(self, session: Session) -> str | None:
        """What to type into a shell to resume a session."""
        command = session.about.get("resume")
        return command if isinstance(command, str) else None

    # -- doctor --------------------------------------------------------------------------------

    def inner_findings(self, answer: dict[str, Any], arguments: list[str]) -> list[Finding]:
        """What would be captured from inside, given what the probe in its interpreter answers."""
        return []

    def bootstrap(self, words: list[str]) -> str | None:
        """The code that makes the agent importable in the interpreter that these words start; None
        if it is importable as it is."""
        return None

    def losses(self, answer: dict[str, Any]) -> str:
        """What will not be captured, given what the probe in its interpreter answers: a line for
        the user, or "" if everything is."""
        return ""

    def trial(
        self, program: list[str], home: str, work: str, url: str, prompt: str
    ) -> tuple[list[str], dict[str, str]] | None:
        """For `doctor --prove`: a command line, and variables for its environment, that start the
        agent in a terminal so that it uses the model at `url` and runs tools without asking. `home`
        is its empty home, and may be written to; `work` is the folder that it works in. None: not
        known."""
        return None

    # -- end of a run --------------------------------------------------------------------------

    def may_be_ended(self, session: Session) -> bool:
        """False if the agent continues the session only while nobody has ended it."""
        return True

    def died_closing(self, session: Session, stream: ReplayedStream) -> bool:
        """True if it ended the session's row, and may have died before it ran its hooks."""
        return False

    def left_unclosed(self, session: Session) -> bool:
        """True if it always ends the row of such a session when it leaves, and did not end this
        one: something cut its shutdown off, even if it then exited with 0."""
        return False

    def was_cut_off(self, session: Session, reason: str | None) -> bool:
        """True if the agent ended the session's row itself, for this reason, because a signal asked
        it to end in the middle of a turn: for the user that is an interruption."""
        return False

    def is_own_note(self, text: str) -> bool:
        """True for a message that the agent stored as the user's and the user did not write."""
        return False

    def was_quit(self, stream: ReplayedStream) -> bool:
        """True if the process ended because its user left, even though a reply seems to be missing.
        A transcript need not say that a turn was cancelled; a status of 0 says it, unless the
        terminal was closed: some agents exit with 0 then, in the middle of whatever they do."""
        death = stream.death
        orderly = death is not None and death.code == 0 and not death.terminal_closed
        return orderly and is_from_transcript(stream)

    def is_between_requests(self, session: Session) -> bool:
        """True if nobody waits in the session: the death of the process interrupted nothing."""
        return False

    def is_the_users(self, session: Session) -> bool:
        """True if a user talks in the session, and it does not work for another session."""
        return not session.about.get("subagent")

    def keep_what_was_shown(self, session: Session) -> None:
        """Reduce the text of a reply in progress to what the agent showed of it."""

    def open_sessions(self, db: str) -> dict[str, list[tuple[int, bool]]]:
        """The sessions of a state.db that processes of the agent have open, by its own account:
        by session, the processes and whether each is alive."""
        return {}

    def may_have_shown_more(self, session: Session, stream: ReplayedStream) -> bool:
        """True if the user may have seen text of a reply that nobody reported. An agent that
        reports its own messages reports them before it shows them. A transcript gets a message
        when it is complete; only a live tap knows what was shown before that."""
        return waits_for_reply(session, stream) and session.about.get("tapped") is not True

    # -- hooks ---------------------------------------------------------------------------------

    def own_hooks(
        self, session: Session, stream: ReplayedStream, extra: dict[str, Any], timeout: float
    ) -> OwnHooks | None:
        """The agent's own hooks that did not run because its process died."""
        return None

    def transcript_here(self, path: str) -> str | None:
        """Where a transcript that had this path on another machine belongs on this one, so that
        the agent resumes its session; None: it is not put back."""
        return None

    def installed_here(self) -> dict[str, Any]:
        """The fields `executable` and `env` of a hello, for the hooks of a session that comes from
        another machine. Without them the agent's own hooks are not run."""
        return {}

    def hook_environment(self, ours: Mapping[str, str], theirs: dict[str, str]) -> dict[str, str]:
        """The environment for its own hooks, from ours and that of the dead process."""
        return {**ours, **theirs}

    # -- left running --------------------------------------------------------------------------

    def orphan_kind(self, pid: int, words: list[str]) -> str | None:
        """What a process that a dead agent left running is: one of the kinds in
        process/orphans.py; None: not known."""
        return None

    def secret_files(self, words: list[str]) -> list[str]:
        """Files with the user's secrets in them that such a process keeps in use."""
        return []
