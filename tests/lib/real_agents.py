"""The real agent CLIs from npm, each with a home of its own and a scripted model on loopback.

They are used where they are installed: in `.agents/node_modules/.bin` of the tree (`make
test-agents` installs them there), or where AGENTS_BIN says. Elsewhere these tests are skipped.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hermes_supervise.supervisor.cli.proof.scripted_model import WORD, ScriptedModel, words
from support import Supervised, World, children, kill, until
from tmux import Tmux

ROOT = Path(__file__).parents[2]
_FOREIGN = (
    "ANTHROPIC_", "CLAUDE", "CODEX_", "COPILOT_", "GEMINI_", "GOOGLE_", "NODE_", "OPENAI_",
    "OPENCODE",
)  # fmt: skip
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def folder() -> Path:
    return Path(os.environ.get("AGENTS_BIN") or ROOT / ".agents" / "node_modules" / ".bin")


class RealAgent:
    """One CLI in one world. The agent's folder is `world.folder / "work"`."""

    name = ""
    ready = ""
    """What its screen shows once it waits for a prompt."""
    ready_resumed = ""
    """The same, if it is another text when it was started on a session."""
    source = ""

    def __init__(self, world: World, model: ScriptedModel) -> None:
        self.world, self.model = world, model
        self.program = folder() / self.name
        if not self.program.exists():
            pytest.skip(f"{self.name} is not installed ({self.program})")
        self.work = world.folder / "work"
        self.work.mkdir(exist_ok=True)
        world.env["PWD"] = str(self.work)  # as a shell would have it; opencode believes it
        for key in list(world.env):
            if key.startswith(_FOREIGN) or key.lower() in _PROXIES:
                del world.env[key]
        world.env["NO_PROXY"] = world.env["no_proxy"] = "127.0.0.1,localhost"
        self.configure()

    def configure(self) -> None:
        raise NotImplementedError

    def once(self, prompt: str) -> list[str]:
        """The command that answers one prompt and ends."""
        raise NotImplementedError

    def tui(self) -> list[str]:
        return [str(self.program)]

    def resumed(self, session: str) -> list[str]:
        """The command that goes on with a session in the TUI."""
        return [*self.tui(), "--resume", session]

    def resumed_once(self, session: str, prompt: str) -> list[str]:
        return [*self.once(prompt), "--resume", session]

    def sessions(self) -> list[dict[str, object]]:
        """The rows in state.db that are of this agent."""
        if not self.world.db.exists():
            return []
        with self.world.database() as db:
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'sessions'").fetchone() is None:
                return []  # just being made
            query = "SELECT * FROM sessions WHERE source = ? ORDER BY started_at"
            return [dict(row) for row in db.execute(query, (self.source,))]

    def _write(self, path: str, value: object) -> None:
        file = self.world.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(value if isinstance(value, str) else json.dumps(value))


class Claude(RealAgent):
    name, source, ready = "claude", "claude-code", "bypass permissions"

    def configure(self) -> None:
        key = "sk-ant-test-" + 20 * "0"
        self.world.env |= {
            "ANTHROPIC_BASE_URL": self.model.url,
            "ANTHROPIC_API_KEY": key,
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "IS_SANDBOX": "1",
        }
        trusted = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
        self._write(".claude.json", {
            "hasCompletedOnboarding": True, "theme": "dark", "bypassPermissionsModeAccepted": True,
            "customApiKeyResponses": {"approved": [key[-20:]], "rejected": []},
            "projects": {str(self.work): trusted},
        })  # fmt: skip

    def once(self, prompt: str) -> list[str]:
        return [*self.tui(), "-p", prompt]

    def tui(self) -> list[str]:
        return [str(self.program), "--dangerously-skip-permissions"]


class Codex(RealAgent):
    name, source, ready = "codex", "codex", "OpenAI Codex"

    def configure(self) -> None:
        self.world.env["LOCAL_KEY"] = "x"
        self._write(".codex/config.toml", f"""\
model = "gpt-test"
model_provider = "local"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[model_providers.local]
name = "local"
base_url = "{self.model.url}/v1"
wire_api = "responses"
env_key = "LOCAL_KEY"

[projects."{self.work}"]
trust_level = "trusted"
""")  # fmt: skip

    def once(self, prompt: str) -> list[str]:
        return [str(self.program), "exec", "--skip-git-repo-check", prompt]

    def resumed(self, session: str) -> list[str]:
        return [*self.tui(), "resume", session]

    def resumed_once(self, session: str, prompt: str) -> list[str]:
        return [str(self.program), "exec", "--skip-git-repo-check", "resume", session, prompt]


class Gemini(RealAgent):
    name, source, ready = "gemini", "gemini-cli", "Type your message"

    def configure(self) -> None:
        self.world.env |= {"GEMINI_API_KEY": "x", "GOOGLE_GEMINI_BASE_URL": self.model.url}
        self._write(".gemini/settings.json", {
            "security": {"auth": {"selectedType": "gemini-api-key"},
                         "folderTrust": {"enabled": False}},
            "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
            "privacy": {"usageStatisticsEnabled": False},
            "ui": {"theme": "Default", "hideTips": True},
        })  # fmt: skip

    def once(self, prompt: str) -> list[str]:
        return [*self.tui(), "-p", prompt]

    def tui(self) -> list[str]:
        return [str(self.program), "-m", "gemini-2.5-flash", "--approval-mode", "yolo"]


class Opencode(RealAgent):
    name, source, ready = "opencode", "opencode", "Ask anything"
    ready_resumed = "WORDS"  # what was said before

    def configure(self) -> None:
        self.world.env |= {
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
        }
        provider = {
            "npm": "@ai-sdk/openai-compatible", "name": "local",
            "options": {"baseURL": f"{self.model.url}/v1", "apiKey": "x"},
            "models": {"test": {"name": "test"}},
        }  # fmt: skip
        self._write(".config/opencode/opencode.json", {
            "provider": {"local": provider}, "model": "local/test", "small_model": "local/test",
            "autoupdate": False, "share": "disabled",
            "permission": {"bash": "allow", "edit": "allow", "external_directory": "allow"},
        })  # fmt: skip
        # As after its first start, in which it downloads what plugins may need.
        self._write(".config/opencode/package-lock.json", {
            "packages": {"": {"dependencies": {"@opencode-ai/plugin": "1"}}}
        })  # fmt: skip
        (self.world.folder / ".config/opencode/node_modules").mkdir(exist_ok=True)

    def once(self, prompt: str) -> list[str]:
        return [str(self.program), "run", prompt]

    def resumed(self, session: str) -> list[str]:
        return [*self.tui(), "--session", session]

    def resumed_once(self, session: str, prompt: str) -> list[str]:
        return [*self.once(prompt), "--session", session]


class Qwen(RealAgent):
    name, source, ready = "qwen", "qwen-code", "Type your message"

    def configure(self) -> None:
        self.world.env |= {
            "OPENAI_API_KEY": "x", "OPENAI_BASE_URL": f"{self.model.url}/v1", "OPENAI_MODEL": "test"
        }  # fmt: skip
        self._write(".qwen/settings.json", {
            "security": {"auth": {"selectedType": "openai"}},
            "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
            "privacy": {"usageStatisticsEnabled": False},
        })  # fmt: skip

    def once(self, prompt: str) -> list[str]:
        return [*self.tui(), "-p", prompt]

    def tui(self) -> list[str]:
        return [str(self.program), "--approval-mode", "yolo"]


class Pi(RealAgent):
    name, source, ready = "pi", "pi", "/ commands"

    def configure(self) -> None:
        self.world.env["PI_OFFLINE"] = "1"
        provider = {"baseUrl": f"{self.model.url}/v1", "api": "openai-completions", "apiKey": "x",
                    "models": [{"id": "test"}]}  # fmt: skip
        self._write(".pi/agent/models.json", {"providers": {"local": provider}})

    def once(self, prompt: str) -> list[str]:
        return [*self.tui(), "-p", prompt]

    def tui(self) -> list[str]:
        return [str(self.program), "--provider", "local", "--model", "test"]

    def resumed(self, session: str) -> list[str]:
        return [*self.tui(), "--session", session]

    def resumed_once(self, session: str, prompt: str) -> list[str]:
        return [*self.once(prompt), "--session", session]


class Copilot(RealAgent):
    name, source, ready = "copilot", "copilot", "/ commands"

    def configure(self) -> None:
        self.world.env |= {
            "COPILOT_PROVIDER_BASE_URL": f"{self.model.url}/v1", "COPILOT_PROVIDER_API_KEY": "x",
            "COPILOT_MODEL": "test", "COPILOT_OFFLINE": "true", "COPILOT_AUTO_UPDATE": "false",
        }  # fmt: skip
        self._write(".copilot/config.json", {"trustedFolders": [str(self.work)]})

    def once(self, prompt: str) -> list[str]:
        return [*self.tui(), "-p", prompt]

    def tui(self) -> list[str]:
        return [str(self.program), "--allow-all-tools"]


AGENTS: dict[str, type[RealAgent]] = {
    agent.name: agent for agent in (Claude, Codex, Copilot, Gemini, Opencode, Pi, Qwen)
}


def processes_of(pid: int) -> list[int]:
    """The processes of an agent, without its tools."""
    found, waiting = [], [pid]
    while waiting:
        process = waiting.pop()
        # The agent itself may have given itself another name.
        if process == pid or b"node_modules" in Path(f"/proc/{process}/cmdline").read_bytes():
            found.append(process)
            waiting += children(process)
    return found


def kill_all_of(agent: RealAgent, pid: int) -> None:
    """Kill an agent, which may be several processes, and none of its tools."""
    victims = processes_of(pid)
    for number in (signal.SIGSTOP, signal.SIGKILL):  # so that none of them sees another die
        for victim in victims:
            kill(victim, number)


def shown_on(window: Tmux) -> str:
    """The words on the screen, as the reply that they are the beginning of."""
    return "".join(words(len(set(WORD.findall(window.screen)))))


def run_once(agent: RealAgent, prompt: str, *options: str) -> Supervised:
    return agent.world.run(agent.once(prompt), *options, cwd=str(agent.work))


def ask_in(window: Tmux, agent: RealAgent, prompt: str, *options: str) -> Supervised:
    """Start the TUI and ask it; the supervisor."""
    pid = window.start([*agent.world.command, *options, "--", *agent.tui()], agent.work)
    window.wait_for(agent.ready, 180)  # opencode takes a minute on a machine that is busy
    before = len(agent.model.requests)
    # Keys that are pressed before it listens are dropped.
    again_and_again(lambda: window.type(prompt), lambda: prompt in window.screen)
    again_and_again(lambda: window.press("Enter"), lambda: len(agent.model.requests) > before)
    finder = Supervised.__new__(Supervised)
    finder.pid = pid
    return finder


def again_and_again(act: Callable[[], None], seen: Callable[[], bool]) -> None:
    """Act until it shows, with time to show between two tries."""
    for _ in range(6):
        act()
        try:
            until(seen, deadline=10)
            return
        except AssertionError:
            continue
    raise AssertionError("it never shows")


def only_session(agent: RealAgent) -> dict[str, Any]:
    [row] = [row for row in agent.sessions() if row["parent_session_id"] is None]
    return row


def conversation(agent: RealAgent) -> list[tuple[str, str]]:
    rows = agent.world.messages(str(only_session(agent)["id"]))
    return [(row["role"], row["content"].strip().strip('"')) for row in rows]


def reply(count: int) -> str:
    return "".join(words(count)).strip()
