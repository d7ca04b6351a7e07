"""Claude Code: known by its command, tracked through the transcripts in its project folder."""

from __future__ import annotations

import os

from ..protocol import Agent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..command_line import Arguments
    from ..protocol import Database, LineFiles, Place


def _is_plain(name: str) -> bool:
    """Whether it is the name of a project or session as Claude Code gives it."""
    return name.isascii() and name.replace("-", "").isalnum()


class Claude(Agent):
    name = "claude"
    title = "Claude Code"
    programs = ("claude", "claude-code")
    writes_transcripts = True
    tap_sees = "each line of a reply before it is shown, each call before its tool runs, by hooks"

    def sources(self, place: Place) -> list[LineFiles | Database]:
        from .tap import ClaudeTap, Complete  # these import json
        from .transcript import ClaudeFiles

        complete = Complete()
        taps = [] if place.tap is None else [ClaudeTap(place.tap, complete, place.announced)]
        # The transcript first: a question comes before the reply to it.
        return [ClaudeFiles(place, complete), *taps]

    def tapped(
        self, command: list[str], env: dict[str, str], folder: str
    ) -> tuple[list[str], dict[str, str]] | None:
        at = self.recognise(command)
        if at is None:
            return None
        from ..command_line import parse  # only when a Claude Code is started
        from .tap import command_with, why_not

        if not parse(self.arguments(), command, at).has_session:
            return None
        if why_not(command[at:], env, os.getcwd()) is not None:
            return None
        tapped = command_with(command, at, folder)
        return None if tapped is None else (tapped, env)

    def why_not_tapped(self, place: Place) -> str | None:
        from .tap import why_not_shown  # only for `doctor`

        return why_not_shown(place.arguments, place.env, place.cwd)

    def transcript_here(self, path: str) -> str | None:
        project, name = os.path.split(path)
        parts = (os.path.basename(project), name.removesuffix(".jsonl"))
        if not name.endswith(".jsonl") or not all(map(_is_plain, parts)):
            return None
        home = os.environ.get("HOME") or os.path.expanduser("~")
        config = os.environ.get("CLAUDE_CONFIG_DIR") or os.path.join(home, ".claude")
        return os.path.join(config, "projects", parts[0], name)

    def not_recorded(self, arguments: list[str]) -> str | None:
        if "--no-session-persistence" in arguments:
            return "--no-session-persistence makes it write no transcript"
        return None

    def shown_unseen(self, arguments: list[str]) -> str | None:
        if "--include-partial-messages" in arguments:
            return "with --include-partial-messages it prints pieces that no hook sees"
        return None

    def trial(
        self, program: list[str], home: str, work: str, url: str, prompt: str
    ) -> tuple[list[str], dict[str, str]] | None:
        from ..trials import write  # only for `doctor --prove`

        key = "sk-ant-none-" + 20 * "0"
        trusted = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
        write(home, ".claude.json", {
            "hasCompletedOnboarding": True, "theme": "dark", "bypassPermissionsModeAccepted": True,
            "customApiKeyResponses": {"approved": [key[-20:]], "rejected": []},
            "projects": {work: trusted},
        })  # fmt: skip
        env = {
            "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": key, "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "IS_SANDBOX": "1",
        }  # fmt: skip
        return [*program, "--dangerously-skip-permissions", prompt], env

    def arguments(self) -> Arguments:
        from ..command_line import Arguments  # only for --restart and --exclusive

        return Arguments(
            resume=("--resume",),
            values="--model --fallback-model --permission-mode --append-system-prompt "
            "--system-prompt --output-format --input-format --max-turns --max-budget-usd "
            "--settings --agent --agents --permission-prompt-tool --setting-sources --json-schema "
            "--append-system-prompt-file --system-prompt-file --effort",
            many="--add-dir --allowedTools --allowed-tools --disallowedTools --disallowed-tools "
            "--mcp-config --betas --tools --plugin-dir",
            sessions="-r --resume --session-id --from-pr",
            dropped="-c --continue --fork-session",
            one_shot="-p --print",
            others="mcp update config doctor install plugin setup-token migrate-installer auth "
            "agents",
        )


AGENT = Claude()
