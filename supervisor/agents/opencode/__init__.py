"""opencode: known by its command, tracked through its database."""

from __future__ import annotations

import os

from ..protocol import Agent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..command_line import Arguments
    from ..protocol import Database, LineFiles, Place


class Opencode(Agent):
    name = "opencode"
    title = "opencode"
    programs = ("opencode", "opencode-ai")
    writes_transcripts = True
    tap_sees = "each word of a reply and each call before it runs, by a plugin"

    def sources(self, place: Place) -> list[LineFiles | Database]:
        from .transcript import OpencodeDatabase  # imports json and apsw

        return [OpencodeDatabase(place)]

    def tapped(
        self, command: list[str], env: dict[str, str], folder: str
    ) -> tuple[list[str], dict[str, str]] | None:
        at = self.recognise(command)
        if at is None:
            return None
        from .tap import start_with, why_not  # only when an opencode is started

        cwd = self.work_folder(command[at:], os.getcwd())
        if why_not(command, at, self.arguments(), env, cwd) is not None:
            return None
        return start_with(command, env, folder)

    def why_not_tapped(self, place: Place) -> str | None:
        from .tap import why_not  # only for `doctor`

        return why_not(place.arguments, 0, self.arguments(), place.env, place.cwd)

    def work_folder(self, arguments: list[str], cwd: str) -> str:
        from ..command_line import parse, value_of  # only where its transcripts are read

        named = value_of(arguments, "--dir") or parse(self.arguments(), arguments, 0).folder
        return os.path.join(cwd, named or "")

    def not_recorded(self, arguments: list[str]) -> str | None:
        from ..command_line import value_of  # only when an opencode is started

        if arguments[:1] == ["attach"] or value_of(arguments, "--attach"):
            return "it is a client of a server, which stores the sessions where it runs"
        return None

    def trial(
        self, program: list[str], home: str, work: str, url: str, prompt: str
    ) -> tuple[list[str], dict[str, str]] | None:
        from ..trials import write  # only for `doctor --prove`

        provider = {
            "npm": "@ai-sdk/openai-compatible", "name": "local",
            "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
            "models": {"test": {"name": "test"}},
        }  # fmt: skip
        write(home, ".config/opencode/opencode.json", {
            "provider": {"local": provider}, "model": "local/test", "small_model": "local/test",
            "autoupdate": False, "share": "disabled",
            "permission": {"bash": "allow", "edit": "allow", "external_directory": "allow"},
        })  # fmt: skip
        # As after its first start, in which it downloads what plugins may need.
        write(home, ".config/opencode/package-lock.json", {
            "packages": {"": {"dependencies": {"@opencode-ai/plugin": "1"}}}
        })  # fmt: skip
        os.mkdir(os.path.join(home, ".config/opencode/node_modules"))
        env = dict.fromkeys((
            "OPENCODE_DISABLE_MODELS_FETCH", "OPENCODE_DISABLE_LSP_DOWNLOAD",
            "OPENCODE_DISABLE_AUTOUPDATE",
        ), "1")  # fmt: skip
        return [*program, "--prompt", prompt], {**env, "PWD": work}

    def arguments(self) -> Arguments:
        from ..command_line import Arguments  # only for --restart and --exclusive

        return Arguments(
            resume=("--session",),
            values="-m --model --agent --port --hostname --format --title --attach --log-level "
            "--variant --dir --command",
            sessions="-s --session",
            dropped="-c --continue --fork",
            unsaid="--prompt -f --file",
            calls={"run": True},
            others="acp mcp attach debug providers auth agent upgrade uninstall serve web models "
            "stats export import github pr session plugin db completion",
            folder=True,
        )


AGENT = Opencode()
