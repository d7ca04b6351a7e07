"""Qwen Code: known by its command, tracked through its chats, with our guest in its Node."""

from __future__ import annotations

import os

from ..node_guest import NodeAgent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..command_line import Arguments
    from ..protocol import Database, LineFiles, Place


class Qwen(NodeAgent):
    name = "qwen"
    title = "Qwen Code"
    programs = ("qwen", "qwen-code")
    writes_transcripts = True
    sandbox_variables = ("QWEN_SANDBOX", "GEMINI_SANDBOX")

    def sources(self, place: Place) -> list[LineFiles | Database]:
        from ..node_tap import NodeTap  # these import json
        from .transcript import SOURCE, QwenFiles

        if place.tap is None:
            return [QwenFiles(place)]
        tap = NodeTap(place.tap, place.announced, self.name, SOURCE)
        return [QwenFiles(place, tap), tap]

    def settings_files(self, env: Mapping[str, str], cwd: str) -> list[str]:
        home = env.get("HOME") or os.path.expanduser("~")
        folders = [os.path.join(folder, ".qwen", "settings.json") for folder in (home, cwd)]
        return ["/etc/qwen-code/settings.json", *folders]

    def not_recorded(self, arguments: list[str]) -> str | None:
        off = ("--no-chat-recording", "--chat-recording=false")
        found = [word for word in arguments if word in off]
        return f"{found[0]} makes it write no transcript" if found else None

    def trial(
        self, program: list[str], home: str, work: str, url: str, prompt: str
    ) -> tuple[list[str], dict[str, str]] | None:
        from ..trials import write  # only for `doctor --prove`

        write(home, ".qwen/settings.json", {
            "security": {"auth": {"selectedType": "openai"}},
            "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
            "privacy": {"usageStatisticsEnabled": False},
        })  # fmt: skip
        env = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_MODEL": "test"}
        return [*program, "--approval-mode", "yolo", "-i", prompt], env

    def arguments(self) -> Arguments:
        from ..command_line import Arguments  # only for --restart and --exclusive

        return Arguments(
            resume=("--resume",),
            values="-m --model --approval-mode -o --output-format --input-format "
            "--system-prompt --append-system-prompt --auth-type --openai-api-key "
            "--openai-base-url --max-session-turns --channel --proxy --sandbox-image",
            many="--allowed-mcp-server-names --allowed-tools -e --extensions --core-tools "
            "--exclude-tools --include-directories --add-dir",
            sessions="-r --resume --session-id",
            dropped="-c --continue",
            asks="-p --prompt",
            ask=("-p",),
            unsaid="-i --prompt-interactive",
            others="mcp extensions auth hooks hook channel review",
        )


AGENT = Qwen()
