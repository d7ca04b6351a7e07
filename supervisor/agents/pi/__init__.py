"""pi: known by its command, tracked through its sessions, with our guest in its Node."""

from __future__ import annotations

from ..node_guest import NodeAgent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..command_line import Arguments
    from ..protocol import Database, LineFiles, Place


class Pi(NodeAgent):
    name = "pi"
    title = "pi"
    programs = ("pi", "pi-coding-agent")
    writes_transcripts = True

    def sources(self, place: Place) -> list[LineFiles | Database]:
        from ..node_tap import NodeTap  # these import json
        from .transcript import SOURCE, PiFiles

        if place.tap is None:
            return [PiFiles(place)]
        tap = NodeTap(place.tap, place.announced, self.name, SOURCE)
        return [PiFiles(place, tap), tap]

    def trial(
        self, program: list[str], home: str, work: str, url: str, prompt: str
    ) -> tuple[list[str], dict[str, str]] | None:
        from ..trials import write  # only for `doctor --prove`

        provider = {"baseUrl": f"{url}/v1", "api": "openai-completions", "apiKey": "none",
                    "models": [{"id": "test"}]}  # fmt: skip
        write(home, ".pi/agent/models.json", {"providers": {"local": provider}})
        return [*program, "--provider", "local", "--model", "test", prompt], {"PI_OFFLINE": "1"}

    def arguments(self) -> Arguments:
        from ..command_line import Arguments  # only for --restart and --exclusive

        return Arguments(
            resume=("--session",),
            values="--provider --model --api-key --system-prompt --append-system-prompt --mode "
            "--session-dir --models --tools -t --thinking --extension -e --skill "
            "--prompt-template --theme",
            sessions="--session --fork",
            dropped="-c --continue -r --resume --no-session",
            one_shot="-p --print",
            others="install remove uninstall update list config",
        )


AGENT = Pi()
