"""Hermes Agent, seen from outside its process: the agent whose own database state.db is.

Never imports Hermes: its plugins run in its own interpreter, by the shim's `hermes_hooks`.
"""

from __future__ import annotations

import os

from ..protocol import Agent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ...model.stream import ReplayedStream, Session
    from ..command_line import Arguments
    from ..protocol import Finding, OwnHooks, WayIn


class Hermes(Agent):
    name = "hermes"
    title = "Hermes"
    programs = ("hermes", "hermes-agent", "hermes-acp")
    injected = True
    stores_itself = True
    ends_idle_sessions = True

    def recognise(self, command: list[str]) -> int | None:
        from .ways_in import arguments_at  # only for a command line that contains the name

        return arguments_at(command)

    def ways_in(self, command: list[str], env: dict[str, str], folder: str) -> list[WayIn]:
        from .ways_in import ways_in  # only when a Hermes is started

        return ways_in(command, env, folder)

    def lost_from_the_start(self, ways: list[WayIn]) -> str:
        from .ways_in import lost_from_the_start  # only when a Hermes is started

        return lost_from_the_start(ways)

    def why_not_captured(self, pid: int) -> str | None:
        from .ways_in import why_not_captured  # only for a Hermes that said nothing

        return why_not_captured(pid)

    def out_of_reach(self, command: list[str], sign: str, why: str | None) -> str | None:
        from .ways_in import out_of_reach  # only after a run that captured nothing

        return out_of_reach(sign, why)

    # The rest is asked for after a death, by hooks, or by people: not at a launch.

    def trial(
        self, program: list[str], home: str, work: str, url: str, prompt: str
    ) -> tuple[list[str], dict[str, str]] | None:
        from ..trials import write  # only for `doctor --prove`

        write(
            home,
            ".hermes/config.yaml",
            f"""\
model:
  default: scripted
  provider: custom
  base_url: {url}/v1
  api_key: none
""",
        )
        env = {"HERMES_HOME": os.path.join(home, ".hermes")}
        return [*program, "chat", "-q", prompt, "--yolo"], env

    def arguments(self) -> Arguments:
        from ..command_line import Arguments  # only for --restart and --exclusive

        return Arguments(
            resume=("--resume",),
            values="-m --model --provider -t --toolsets -s --skills --max-turns --source -p "
            "--profile",
            sessions="-r --resume -c --continue",
            # A session remembers its folder; another worktree would not have its files.
            dropped="-w --worktree",
            asks="-q --query",
            ask=("-q",),
            unsaid="--image",
            calls={"chat": False},
            only_calls=True,
            cannot="-z --oneshot",
            unquoted_names=True,
        )

    def resume_hint(self, session: Session) -> str:
        from .sessions import resume_hint  # only after a death

        return resume_hint(session.id)

    def inner_findings(self, answer: dict[str, Any], arguments: list[str]) -> list[Finding]:
        from .doctor import inner_findings  # only for doctor

        return inner_findings(answer, arguments)

    def bootstrap(self, words: list[str]) -> str | None:
        from .ways_in import bootstrap  # only when a Hermes is started

        return bootstrap(words)

    def losses(self, answer: dict[str, Any]) -> str:
        from .doctor import losses  # only for doctor

        return losses(answer)

    def may_be_ended(self, session: Session) -> bool:
        from .sessions import may_be_ended  # only after a death

        return may_be_ended(session)

    def died_closing(self, session: Session, stream: ReplayedStream) -> bool:
        from .sessions import died_closing  # only after a death

        return died_closing(session, stream)

    def left_unclosed(self, session: Session) -> bool:
        from .sessions import left_unclosed  # only after a death

        return left_unclosed(session)

    def was_cut_off(self, session: Session, reason: str | None) -> bool:
        from .sessions import was_cut_off  # only after a death

        return was_cut_off(session, reason)

    def is_own_note(self, text: str) -> bool:
        from .sessions import is_own_note  # only for show and report

        return is_own_note(text)

    def is_between_requests(self, session: Session) -> bool:
        from .sessions import is_between_requests  # only after a death

        return is_between_requests(session)

    def is_the_users(self, session: Session) -> bool:
        from .sessions import is_the_users  # only after a death

        return is_the_users(session)

    def keep_what_was_shown(self, session: Session) -> None:
        from .sessions import keep_what_was_shown  # only after a death

        keep_what_was_shown(session)

    def open_sessions(self, db: str) -> dict[str, list[tuple[int, bool]]]:
        from .leases import leases  # only for sweep

        return leases(db)

    def own_hooks(
        self, session: Session, stream: ReplayedStream, extra: dict[str, Any], timeout: float
    ) -> OwnHooks | None:
        from .sessions import own_hooks  # only after a death

        return own_hooks(session, stream, extra, timeout)

    def hook_environment(self, ours: Mapping[str, str], theirs: dict[str, str]) -> dict[str, str]:
        """Without our own HERMES_* variables: they belong to another home, or to the supervisor."""
        kept = {name: value for name, value in ours.items() if not name.startswith("HERMES_")}
        return kept | theirs

    def installed_here(self) -> dict[str, Any]:
        from .ways_in import installed_here  # only for a session from another machine

        return installed_here()

    def orphan_kind(self, pid: int, words: list[str]) -> str | None:
        from .orphans import kind  # only after a death

        return kind(pid, words)

    def secret_files(self, words: list[str]) -> list[str]:
        from .orphans import dumps  # only after a death

        return dumps(words)


AGENT = Hermes()
