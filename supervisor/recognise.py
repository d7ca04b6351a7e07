"""Which agent a command line starts, told by its name, and so whose transcripts are to be read.

Never looks into a file: what is behind a name that says nothing, `--agent` has to say. This is on
the way to every launch.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .options import Options

# The agents whose transcripts are read, and the names that they are started by.
AGENTS = {
    "claude": ("claude", "claude-code"),
    "codex": ("codex",),
    "gemini": ("gemini", "gemini-cli"),
    "opencode": ("opencode", "opencode-ai"),
}
NONE = "none"
_BY_NAME = {name: agent for agent, names in AGENTS.items() for name in names}
# What starts another program, and the words of its own that may stand before that.
_WRAPPERS = (
    "env", "nice", "ionice", "nohup", "setsid", "stdbuf", "timeout", "time", "npx", "bunx", "pnpx",
    "pnpm", "npm", "yarn", "bun", "deno", "node", "nodejs", "uv", "uvx", "pipx", "mise", "corepack",
)  # fmt: skip
_OWN_WORDS = ("dlx", "exec", "x", "run", "tool", "--")


def agent_of(command: list[str]) -> str | None:
    """The agent, also behind `npx`, `env A=b`, `node …/cli.js` and their like."""
    words = list(command)
    while words:
        word = words.pop(0)
        if (agent := _named(word)) is not None:
            return agent
        if _base(word) not in _WRAPPERS:
            return None
        while words and _is_none(words[0]):
            del words[0]
    return None


def assignments(command: list[str]) -> dict[str, str]:
    """What `env A=b …` changes for the agent."""
    found: dict[str, str] = {}
    if command and _base(command[0]) == "env":
        for word in command[1:]:
            name, equals, value = word.partition("=")
            if equals and not word.startswith("-"):
                found[name] = value
            elif not word.startswith("-"):
                break
    return found


def _named(word: str) -> str | None:
    if "node_modules/" in word:  # …/node_modules/@openai/codex/bin/codex.js
        parts = word.rpartition("node_modules/")[2].split("/")
        word = parts[1] if parts[0].startswith("@") and len(parts) > 1 else parts[0]
    return _BY_NAME.get(_base(word))


def _base(word: str) -> str:
    """`@openai/codex@latest`, `/usr/bin/codex` and `codex.js` are all `codex`."""
    name = word.rstrip("/").rpartition("/")[2]
    name = name.partition("@")[0] or name
    return name.removesuffix(".js").removesuffix(".mjs").removesuffix(".cjs")


def _is_none(word: str) -> bool:
    """An option, a setting, a number or a word of the wrapper's own: no program."""
    if word in _OWN_WORDS or word.startswith("-") or word[:1].isdigit():
        return True
    return "=" in word and "/" not in word.partition("=")[0]


def to_watch(command: list[str], options: Options) -> dict[str, object]:
    """What a run is to know of its watcher; nothing if there is nothing to watch."""
    agent = options.agent or agent_of(command)
    agent = None if agent == NONE else agent
    if agent is None and not options.watch:
        return {}
    paths = [os.path.abspath(os.path.expanduser(path)) for path in options.watch]
    return {
        "watcher": os.urandom(16).hex(),
        "agent": agent,
        "watch": paths,
        "stood": {name: size for path in paths for name, size in _sizes(path)},
    }


def _sizes(path: str) -> list[tuple[str, int]]:
    """How long the files are that stand there now: what they hold was not said by this agent."""
    try:
        if not os.path.isdir(path):
            return [(path, os.path.getsize(path))]
        found = []
        for folder, _, names in os.walk(path):
            for name in names:
                file = os.path.join(folder, name)
                found.append((file, os.path.getsize(file)))
        return found
    except OSError:
        return []
