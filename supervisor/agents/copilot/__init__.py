"""GitHub Copilot CLI: known by its command, tracked through the events of its sessions."""

from __future__ import annotations

import os

from ..protocol import Agent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..command_line import Arguments
    from ..protocol import Database, LineFiles, Place


class Copilot(Agent):
    name = "copilot"
    title = "GitHub Copilot CLI"
    programs = ("copilot",)
    writes_transcripts = True

    def recognise(self, command: list[str]) -> int | None:
        at = super().recognise(command)
        # Its subcommands have no conversation, and AWS Copilot, another program, always has one.
        first = "" if at is None else "".join(command[at : at + 1])
        return at if first.startswith("-") or not first else None

    def sources(self, place: Place) -> list[LineFiles | Database]:
        from .transcript import CopilotFiles  # imports json

        return [CopilotFiles(place)]

    def work_folder(self, arguments: list[str], cwd: str) -> str:
        from ..command_line import value_of  # only where transcripts are followed

        return os.path.join(cwd, value_of(arguments, "-C") or "")

    def trial(
        self, program: list[str], home: str, work: str, url: str, prompt: str
    ) -> tuple[list[str], dict[str, str]] | None:
        from ..trials import write  # only for `doctor --prove`

        write(home, ".copilot/config.json", {"trustedFolders": [work]})
        env = {
            "COPILOT_PROVIDER_BASE_URL": f"{url}/v1", "COPILOT_PROVIDER_API_KEY": "none",
            "COPILOT_MODEL": "test", "COPILOT_OFFLINE": "true", "COPILOT_AUTO_UPDATE": "false",
        }  # fmt: skip
        return [*program, "--allow-all-tools", "-i", prompt], env

    def arguments(self) -> Arguments:
        from ..command_line import Arguments  # only for --restart and --exclusive

        return Arguments(
            resume=("--resume",),
            values="--model --reasoning-effort --context --auto-tier --agent -n --name -C "
            "--log-dir --log-level --stream --output-format --add-dir --attachment "
            "--disable-mcp-server --plugin-dir --additional-mcp-config --mode "
            "--max-autopilot-continues",
            sessions="-r --resume --session-id --connect",
            dropped="--continue --banner",
            asks="-p --prompt",
            ask=("-p",),
            unsaid="-i --interactive",
        )


AGENT = Copilot()
