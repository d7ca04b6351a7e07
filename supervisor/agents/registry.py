"""Which agents there are, and which of them a command line starts or a stream comes from.

The folder is the list: every other module and folder in it is an agent, with an `AGENT` in it.
An agent is imported when it is asked for by name, and never for a command that does not name it.
"""

from __future__ import annotations

import os

from .protocol import Agent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..model.stream import ReplayedStream
    from .command_line import Parsed

NONE = "none"
"""As a value of `--agent`: read no transcripts."""

_SHARED = frozenset((
    "protocol", "registry", "command_line", "messages", "probe", "transcript_findings",
    "node_guest", "node_tap", "live", "other_user", "state_db", "unknown", "trials",
))  # fmt: skip
# Names of programs and modules that start an agent and do not contain its name.
_ALIASES = {"run_agent": "hermes", "acp_adapter": "hermes", "tui_gateway": "hermes"}
# The agent whose own database state.db is.
_KEEPER = "hermes"
_LINES = "jsonl"
# Parts of the names of options whose value nobody wants to see again.
_SECRET = ("key", "token", "secret", "password", "auth")

_UNKNOWN = Agent()
_names: list[str] = []
_loaded: dict[str, Agent] = {}


def names() -> list[str]:
    if not _names:
        for entry in sorted(os.listdir(os.path.dirname(__file__))):
            name = entry.removesuffix(".py")
            if entry[:1] not in "_." and name not in _SHARED and name.isidentifier():
                _names.append(name)
    return _names


def named(name: object) -> Agent:
    """The agent of this name. Any other name stands for an agent that needs nothing special."""
    if not isinstance(name, str) or name not in names():
        return _UNKNOWN
    if name not in _loaded:
        # Not import_module: that would load `importlib` and `warnings` at every launch.
        module = __import__(f"{__package__}.{name}", fromlist=["AGENT"])
        _loaded[name] = module.AGENT
    return _loaded[name]


def with_transcripts() -> list[str]:
    """The names of the agents whose transcripts can be read."""
    return [name for name in names() if named(name).writes_transcripts]


def recognised(command: list[str]) -> Agent:
    """The agent that a command line starts, by its words alone."""
    for name in names():
        aliases = [alias for alias, agent in _ALIASES.items() if agent == name]
        if any(part in word for part in (name, *aliases) for word in command):
            agent = named(name)
            if agent.recognise(command) is not None:
                return agent
    return _UNKNOWN


def of_stream(stream: ReplayedStream) -> Agent:
    """The agent that sends a stream, by its own hello."""
    return named(stream.hello.get("agent"))


def keeper() -> Agent:
    """The agent whose own database state.db is."""
    return named(_KEEPER)


def plain_lines() -> Agent:
    """The reader of the files that the user names with `--watch`."""
    return named(_LINES)


def parsed(command: list[str]) -> Parsed | None:
    """A command line, parsed by the grammar of its agent; None: it has none that is known."""
    agent = recognised(command)
    grammar = agent.arguments()
    if grammar is None or (at := agent.recognise(command)) is None:
        return None
    from .command_line import parse  # only for an agent that can be started on a session

    return parse(grammar, command, at)


def resumed_with_options(command: object, agent: Agent, resume: str | None) -> str | None:
    """The command line that resumes a session with the options of `command`, which started the
    agent; `resume` is the one without. None: there are no options, or it is not safe to repeat
    them: what answers one question would wait for another, and a secret or a text of the user's is
    not for a report or a screen."""
    if resume is None or not isinstance(command, list) or recognised(command) is not agent:
        return None
    from shlex import join, split  # only after a death

    found, grammar = parsed(command), agent.arguments()
    if found is None or grammar is None or not found.has_session or not found.resumable:
        return None
    options = [word.partition("=")[0].lower() for word in found.kept if word.startswith("-")]
    secret = any(part in option for part in _SECRET for option in options)
    prose = any(len(word.split()) > 1 for word in found.kept)
    if not options or secret or prose or found.one_shot:
        return None
    try:
        session = split(resume)[-1]
    except (ValueError, IndexError):
        return None
    return join([*found.program, *found.kept, *grammar.resume, session])


# The next two are asked in the supervisor's own process while the agent runs. An upgrade may have
# replaced our files by then: an agent that cannot be loaded must not end the supervision.


def stores_itself(name: object) -> bool:
    """True if the agent of this name stores its sessions itself. A wrong False only costs a
    checkpoint that finds it out."""
    try:
        return named(name).stores_itself
    except Exception:
        return False


def describe_orphan(pid: int, words: list[str]) -> tuple[str | None, list[str]]:
    """What a process is that a dead agent left running, and the files with secrets it uses."""
    try:
        agents = [named(name) for name in names()]
        kinds = (agent.orphan_kind(pid, words) for agent in agents)
        kind = next((kind for kind in kinds if kind is not None), None)
        return kind, [file for agent in agents for file in agent.secret_files(words)]
    except Exception:
        return None, []  # then it is left alone
