"""Gemini CLI: known by its command, tracked through the chats in its folder."""

from __future__ import annotations

import os

from ..node_guest import NodeAgent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..command_line import Arguments
    from ..protocol import Database, LineFiles, Place


class Gemini(NodeAgent):
    name = "gemini"
    title = "Gemini CLI"
    programs = ("gemini", "gemini-cli")
    writes_transcripts = True
    sandbox_variables = ("GEMINI_SANDBOX",)

    def sources(self, place: Place) -> list[LineFiles | Database]:
        from ..node_tap import NodeTap  # these import json
        from .transcript import SOURCE, GeminiFiles

        if place.tap is None:
            return [GeminiFiles(place)]
        tap = NodeTap(place.tap, place.announced, self.name, SOURCE)
        return [GeminiFiles(place, tap), tap]

    def settings_files(self, env: Mapping[str, str], cwd: str) -> list[str]:
        home = env.get("GEMINI_CLI_HOME") or env.get("HOME") or os.path.expanduser("~")
        folders = [os.path.join(folder, ".gemini", "settings.json") for folder in (home, cwd)]
        return ["/etc/gemini-cli/settings.json", *folders]

    def trial(
        self, program: list[str], home: str, work: str, url: str, prompt: str
    ) -> tuple[list[str], dict[str, str]] | None:
        from ..trials import write  # only for `doctor --prove`

        write(home, ".gemini/settings.json", {
            "security": {"auth": {"selectedType": "gemini-api-key"},
                         "folderTrust": {"enabled": False}},
            "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
            "privacy": {"usageStatisticsEnabled": False},
            "ui": {"theme": "Default", "hideTips": True},
        })  # fmt: skip
        options = ["-m", "gemini-2.5-flash", "--approval-mode", "yolo", "-i", prompt]
        return [*program, *options], {"GEMINI_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": url}

    def arguments(self) -> Arguments:
        from ..command_line import Arguments  # only for --restart and --exclusive

        return Arguments(
            resume=("--resume",),
            values="-m --model --approval-mode -o --output-format --allowed-mcp-server-names "
            "--include-directories --allowed-tools -e --extensions",
            sessions="-r --resume",
            asks="-p --prompt",
            ask=("-p",),
            unsaid="-i --prompt-interactive",
            others="mcp extensions skills hooks",
        )


AGENT = Gemini()
