"""Codex CLI: known by its command, tracked through its rollout files."""

from __future__ import annotations

import os

from ..protocol import Agent, waits_for_reply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...model.stream import ReplayedStream, Session
    from ..command_line import Arguments
    from ..protocol import Database, LineFiles, Place


class Codex(Agent):
    name = "codex"
    title = "Codex CLI"
    programs = ("codex",)
    writes_transcripts = True
    trial_ready = "Ask Codex"
    tap_sees = "each word of a reply, from the daemon that its TUI is a client of"

    def sources(self, place: Place) -> list[LineFiles | Database]:
        from .daemon import home  # these import json
        from .tap import CodexTap, Complete
        from .transcript import CodexFiles

        files = CodexFiles(place, complete := Complete())
        if place.tap is None:
            return [files]
        # The transcript first: a question comes before the reply to it.
        return [files, CodexTap(home(place.env), place.tap, complete, place.announced)]

    def tapped(
        self, command: list[str], env: dict[str, str], folder: str
    ) -> tuple[list[str], dict[str, str]] | None:
        at = self.recognise(command)
        # The tap is a client of the daemon's: nothing is added to the start.
        return (command, env) if at is not None and self._why_not(command, at) is None else None

    def goes_on(self, tap: str, env: Mapping[str, str]) -> int | None:
        if not os.listdir(tap):
            return None  # no thread was heard of: most runs that only ask for something
        from .daemon import home, living  # they import json and threads
        from .tap import notes

        running = any(note["running"] for note in notes(tap).values())
        return living(home(env)) if running else None

    def why_not_tapped(self, place: Place) -> str | None:
        return self._why_not(place.arguments, 0)

    def _why_not(self, command: list[str], at: int) -> str | None:
        from ..command_line import parse, value_of  # only when a Codex is started

        parsed = parse(self.arguments(), command, at)
        if parsed.one_shot or not parsed.has_session:
            return "only its TUI shows one, and has a daemon that tells it"
        if value_of(command[at:], "--disable") == "daemon_auto_start":
            return "--disable daemon_auto_start: without a daemon nobody tells it"
        return None

    def may_have_shown_more(self, session: Session, stream: ReplayedStream) -> bool:
        # The daemon sends a word to its TUI and to us, in no known order: one that was killed in
        # between has shown it, and we have not got it.
        return waits_for_reply(session, stream)

    def work_folder(self, arguments: list[str], cwd: str) -> str:
        from ..command_line import value_of  # only where its transcripts are read

        return os.path.join(cwd, value_of(arguments, "-C", "--cd") or "")

    def not_recorded(self, arguments: list[str]) -> str | None:
        if "--ephemeral" in arguments:
            return "--ephemeral makes it write no transcript"
        return None

    def trial(
        self, program: list[str], home: str, work: str, url: str, prompt: str
    ) -> tuple[list[str], dict[str, str]] | None:
        from ..trials import write  # only for `doctor --prove`

        write(
            home,
            ".codex/config.toml",
            f"""\
model = "gpt-test"
model_provider = "local"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[model_providers.local]
name = "local"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "LOCAL_KEY"

[projects."{work}"]
trust_level = "trusted"
""",
        )
        return program, {"LOCAL_KEY": "none"}

    def arguments(self) -> Arguments:
        from ..command_line import Arguments  # only for --restart and --exclusive

        return Arguments(
            resume=("resume",),
            values="-m --model -p --profile -c --config -s --sandbox -a --ask-for-approval -C --cd "
            "--add-dir --enable --disable --local-provider -o --output-last-message "
            "--output-schema --color",
            sessions="resume",
            dropped="--last --all",
            unsaid="-i --image",
            calls={"exec": True, "e": True},
            others="login logout mcp mcp-server app-server completion sandbox debug apply a cloud "
            "features review fork proto execpolicy responses-api-proxy",
        )


AGENT = Codex()
