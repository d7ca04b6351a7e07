"""Command lines of agents: which program they start, and the command line that resumes a session.

Never looks into a file. Never asks the user's question a second time: the options of the old
command line are kept (model, permissions, folders), arguments that name a session or ask a question
are not. A command that asks one question and exits with the answer gets a message instead that says
what happened.
"""

from __future__ import annotations

# Programs that start another program, and their own arguments that may come before it.
_PLAIN_WRAPPERS = (  # unknown.py has the same
    "env", "nice", "ionice", "nohup", "setsid", "stdbuf", "timeout", "time",
)  # fmt: skip
_WRAPPERS = (
    *_PLAIN_WRAPPERS, "npx", "bunx", "pnpx", "pnpm", "npm", "yarn", "bun", "deno", "node", "nodejs",
    "uv", "uvx", "pipx", "mise", "corepack",
)  # fmt: skip
_WRAPPER_WORDS = ("dlx", "exec", "x", "run", "tool", "--")


def program_of(command: list[str]) -> tuple[int, str] | None:
    """The index and the name of the program, also behind `npx`, `env A=b`, `node …/cli.js`."""
    return _behind(_WRAPPERS, command)


def runtime_of(command: list[str]) -> tuple[int, str] | None:
    """The index and the name of what is started behind `env A=b`, `nice` and their like: `node` of
    `env A=b node my-agent.js`."""
    return _behind(_PLAIN_WRAPPERS, command)


def _behind(wrappers: tuple[str, ...], command: list[str]) -> tuple[int, str] | None:
    at = 0
    while at < len(command):
        name = _package_of(command[at]) or _base(command[at])
        if name not in wrappers:
            return at, name
        at += 1
        while at < len(command) and _belongs_to_wrapper(command[at]):
            at += 1
    return None


def assignments(command: list[str]) -> dict[str, str]:
    """The variables that `env A=b …` sets for the agent."""
    found: dict[str, str] = {}
    if command and _base(command[0]) == "env":
        for word in command[1:]:
            name, equals, value = word.partition("=")
            if equals and not word.startswith("-"):
                found[name] = value
            elif not word.startswith("-"):
                break
    return found


def value_of(words: list[str], *options: str) -> str | None:
    """The value of the last of these options on a command line: `-x y`, `--long y`, `--long=y`."""
    found = None
    for at, word in enumerate(words):
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if name in options:
            found = value if equals else "".join(words[at + 1 : at + 2])
    return found


def _package_of(word: str) -> str | None:
    """The package of a file below node_modules/: …/node_modules/@openai/codex/bin/codex.js is
    `codex`; for …/node_modules/.bin/codex it is the last part."""
    if "node_modules/" not in word:
        return None
    parts = word.rpartition("node_modules/")[2].split("/")
    if parts[0] == ".bin":
        return _base(word)
    return _base(parts[1] if parts[0].startswith("@") and len(parts) > 1 else parts[0])


def _base(word: str) -> str:
    """`@openai/codex@latest`, `/usr/bin/codex` and `codex.js` are all `codex`."""
    name = word.rstrip("/").rpartition("/")[2]
    name = name.partition("@")[0] or name
    return name.removesuffix(".js").removesuffix(".mjs").removesuffix(".cjs")


def _belongs_to_wrapper(word: str) -> bool:
    """True for an option, an assignment, a number or another argument of the wrapper itself."""
    if word in _WRAPPER_WORDS or word.startswith("-") or word[:1].isdigit():
        return True
    return "=" in word and "/" not in word.partition("=")[0]


class CannotResume(Exception):
    """The text says why."""


class Arguments:
    """The grammar of an agent's command line. Options are given by name; `-x=y` and `--long=y`
    need no mention.

    resume          what resumes a session; the id follows
    values          options with a value
    many            options that take all the words that follow
    sessions        options that name a session
    dropped         switches that are not repeated
    asks            options whose value is a question
    ask             how a question is asked of it
    unsaid          options with a value that are not repeated
    one_shot        switches for: answer one question, then end
    calls           subcommands that talk; True: answer one question, then end
    others          subcommands without a session: such a command is started as it was
    only_calls      every other word at the beginning is such a subcommand
    folder          a word that is none of these is a folder, not a question
    cannot          options with a value with which no session can be resumed
    unquoted_names  the name of a session may be several words
    """

    def __init__(
        self,
        *,
        resume: tuple[str, ...],
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
        only_calls: bool = False,
        folder: bool = False,
        cannot: str = "",
        unquoted_names: bool = False,
    ) -> None:
        self.resume = resume
        self.values, self.many = frozenset(values.split()), frozenset(many.split())
        self.sessions, self.dropped = frozenset(sessions.split()), frozenset(dropped.split())
        self.asks, self.ask = frozenset(asks.split()), ask
        self.unsaid = frozenset(unsaid.split())
        self.one_shot = frozenset(one_shot.split())
        self.calls = calls or {}
        self.others = frozenset(others.split())
        self.only_calls = only_calls
        self.folder = folder
        self.cannot = frozenset(cannot.split())
        self.unquoted_names = unquoted_names


class Parsed:
    """A command line, taken apart."""

    def __init__(self, grammar: Arguments, command: list[str], at: int) -> None:
        self._grammar = grammar
        self._command = command
        self.program = command[:at]
        self.kept: list[str] = []
        """The words that are repeated when it is started on a session."""
        self.session: str | None = None
        """The session that it resumes, if it names one."""
        self.one_shot = False
        """It answers one question and ends."""
        self.asks = False
        """A question is a part of it."""
        self.folder: str | None = None
        """The folder that it names, where `Arguments.folder` says that it may."""
        self.has_session = True
        self.resumable = True

    def resumed(self, session: str, message: str) -> list[str]:
        """The command line that resumes `session`. `message` is for an agent that does not wait
        for a user. Raises CannotResume."""
        if not self.has_session:
            return self._command
        if not self.resumable:
            raise CannotResume("an answer to a single question cannot be resumed")
        words = [*self.program, *self.kept, *self._grammar.resume, session]
        return [*words, *self._grammar.ask, message] if self.one_shot else words


def parse(grammar: Arguments, command: list[str], at: int) -> Parsed:
    """Take a command line apart whose own arguments begin at `at`."""
    found = Parsed(grammar, command, at)
    words = command[at:]
    called = False
    while words and words[0] != "--":
        word = words.pop(0)
        option, equals, value = word.partition("=")
        if option in grammar.sessions:
            name = value if equals else _take_session(words, grammar)
            found.session = name or found.session
        elif option in grammar.asks | grammar.unsaid | grammar.cannot:
            found.one_shot |= option in grammar.asks
            found.asks = True
            found.resumable &= option not in grammar.cannot
            del words[: 0 if equals else 1]
        elif option in grammar.many | grammar.values and not equals:
            last = 1
            while option in grammar.many and last < len(words) and not words[last].startswith("-"):
                last += 1
            found.kept += [word, *words[:last]]
            del words[:last]
        elif word.startswith("-"):
            found.one_shot |= option in grammar.one_shot
            found.kept += [] if option in grammar.dropped else [word]
        elif not called and word in grammar.calls:
            called = True
            found.one_shot |= grammar.calls[word]
            found.kept.append(word)
        elif not called and (word in grammar.others or grammar.only_calls):
            found.has_session = False
            break
        elif grammar.folder and not called:
            found.folder = word
            found.kept.append(word)
        else:
            called = found.asks = True
    found.asks |= found.one_shot or bool(words and found.has_session)
    return found


def _take_session(words: list[str], grammar: Arguments) -> str:
    """Remove the name of a session from the front of `words`."""
    name = []
    while words and not words[0].startswith("-") and words[0] not in grammar.calls:
        name.append(words.pop(0))
        if not grammar.unquoted_names:
            break
    return " ".join(name)
