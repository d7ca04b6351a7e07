"""How known agents are started on a session of theirs: data, and the command line made of it.

Never asks the user's question a second time: of the old command line the options are kept (model,
permissions, folders), what named a session or asked something is not. A command that asked one
question and would have ended with the answer is told instead what happened to it.
"""

from __future__ import annotations

import os

from .. import recognise
from . import hermes_launcher


class CannotResume(Exception):
    """The text says why."""


class Agent:
    """An agent's command line. Options are by name; `-x=y` and `--long=y` need no mention.

    values    options with a value                 many      options with all words that follow
    sessions  options that name a session          dropped   switches that are not said again
    asks      options whose value is a question    unsaid    options with a value that are not, too
    one_shot  switches for: answer, then end       on        what takes a session up; the id follows
    calls     subcommands that talk; True: answer, then end
    others    subcommands that have no session: such a command is started as it was
    cannot    options with a value that no session can be taken up with
    """

    def __init__(
        self,
        *,
        on: tuple[str, ...],
        values: str = "",
        many: str = "",
        sessions: str = "",
        dropped: str = "",
        asks: str = "",
        ask: tuple[str, ...] = (),
        unsaid: str = "",
        one_shot: str = "",
        calls: dict[str, bool] | None = None,
        others: str = "",
        folder: bool = False,
        cannot: str = "",
    ) -> None:
        self.on = on
        self.values, self.many = frozenset(values.split()), frozenset(many.split())
        self.sessions, self.dropped = frozenset(sessions.split()), frozenset(dropped.split())
        self.asks, self.ask = frozenset(asks.split()), ask
        self.unsaid = frozenset(unsaid.split())
        self.one_shot = frozenset(one_shot.split())
        self.calls = calls or {}
        self.others = frozenset(others.split())
        self.folder = folder
        """A word that is none of these is a folder, not a question."""
        self.cannot = frozenset(cannot.split())


HERMES = Agent(
    on=("--resume",),
    values="-m --model --provider -t --toolsets -s --skills --max-turns --source -p --profile",
    sessions="-r --resume -c --continue",
    # A session remembers its folder; another worktree would not have its files.
    dropped="-w --worktree",
    asks="-q --query",
    ask=("-q",),
    unsaid="--image",
    calls={"chat": False},
    cannot="-z --oneshot",
)  # fmt: skip
_OTHERS = {
    "claude": Agent(
        on=("--resume",),
        values="--model --fallback-model --permission-mode --append-system-prompt --system-prompt "
        "--output-format --input-format --max-turns --max-budget-usd --settings --agent --agents "
        "--permission-prompt-tool --setting-sources --json-schema --append-system-prompt-file "
        "--system-prompt-file --effort",
        many="--add-dir --allowedTools --allowed-tools --disallowedTools --disallowed-tools "
        "--mcp-config --betas --tools --plugin-dir",
        sessions="-r --resume --session-id --from-pr",
        dropped="-c --continue --fork-session",
        one_shot="-p --print",
        others="mcp update config doctor install plugin setup-token migrate-installer auth agents",
    ),
    "codex": Agent(
        on=("resume",),
        values="-m --model -p --profile -c --config -s --sandbox -a --ask-for-approval -C --cd "
        "--add-dir --enable --disable --local-provider -o --output-last-message --output-schema "
        "--color",
        sessions="resume",
        dropped="--last --all",
        unsaid="-i --image",
        calls={"exec": True, "e": True},
        others="login logout mcp mcp-server app-server completion sandbox debug apply a cloud "
        "features review fork proto execpolicy responses-api-proxy",
    ),
    "gemini": Agent(
        on=("--resume",),
        values="-m --model --approval-mode -o --output-format --allowed-mcp-server-names "
        "--include-directories --allowed-tools -e --extensions",
        sessions="-r --resume",
        asks="-p --prompt",
        ask=("-p",),
        unsaid="-i --prompt-interactive",
        others="mcp extensions skills hooks",
    ),
    "opencode": Agent(
        on=("--session",),
        values="-m --model --agent --port --hostname --format --title --attach --log-level "
        "--variant --dir --command",
        sessions="-s --session",
        dropped="-c --continue --fork",
        unsaid="--prompt -f --file",
        calls={"run": True},
        others="acp mcp attach debug providers auth agent upgrade uninstall serve web models stats "
        "export import github pr session plugin db completion",
        folder=True,
    ),
}  # fmt: skip


class Read:
    """A command line, taken apart."""

    def __init__(self, agent: Agent, program: list[str]) -> None:
        self.agent = agent
        self.program = program
        self.kept: list[str] = []
        self.session: str | None = None
        """The session that it takes up, if it names one."""
        self.one_shot = False
        """It answers one question and ends."""
        self.asks = False
        """A question is a part of it."""
        self.has_session = True
        self.resumable = True


def read(command: list[str]) -> Read | None:
    """None: no agent that is known here."""
    entry = _entry(command)
    if entry is None:
        return None
    agent, at = entry
    found = Read(agent, command[:at])
    words = command[at:]
    called = False
    while words and words[0] != "--":
        word = words.pop(0)
        option, equals, value = word.partition("=")
        if option in agent.sessions:
            named = value if equals else _named(words, agent)
            found.session = named or found.session
        elif option in agent.asks | agent.unsaid | agent.cannot:
            found.one_shot |= option in agent.asks
            found.asks = True
            found.resumable &= option not in agent.cannot
            del words[: 0 if equals else 1]
        elif option in agent.many | agent.values and not equals:
            last = 1
            while option in agent.many and last < len(words) and not words[last].startswith("-"):
                last += 1
            found.kept += [word, *words[:last]]
            del words[:last]
        elif word.startswith("-"):
            found.one_shot |= option in agent.one_shot
            found.kept += [] if option in agent.dropped else [word]
        elif not called and word in agent.calls:
            called = True
            found.one_shot |= agent.calls[word]
            found.kept.append(word)
        elif not called and (word in agent.others or agent is HERMES):
            found.has_session = False
            break
        elif agent.folder and not called:
            found.kept.append(word)
        else:
            called = found.asks = True
    found.asks |= found.one_shot or bool(words and found.has_session)
    return found


def resumed(command: list[str], session: str, told: str) -> list[str] | None:
    """The command line that takes `session` up again; None: no agent that is known here.

    `told`: what to say to an agent that does not wait for a user.
    """
    found = read(command)
    if found is None:
        return None
    if not found.has_session:
        return command
    if not found.resumable:
        raise CannotResume("an answer to a single question cannot be taken up again")
    words = [*found.program, *found.kept, *found.agent.on, session]
    return [*words, *found.agent.ask, told] if found.one_shot else words


def _named(words: list[str], agent: Agent) -> str:
    """Take the name of a session away; Hermes' may be several words, without quotes."""
    name = []
    while words and not words[0].startswith("-") and words[0] not in agent.calls:
        name.append(words.pop(0))
        if agent is not HERMES:
            break
    return " ".join(name)


def _entry(command: list[str]) -> tuple[Agent, int] | None:
    """The agent that a command line starts, and where its own words begin."""
    if hermes_launcher.is_hermes(command):
        for at, word in enumerate(command):
            if word == "-m" and at:
                return HERMES, at + 2
            if os.path.basename(word) in hermes_launcher.NAMES:
                return HERMES, at + 1
        return None
    name = recognise.agent_of(command)
    if name is None:
        return None
    at = next(at for at, word in enumerate(command) if recognise.agent_of([word]) == name)
    return _OTHERS[name], at + 1
