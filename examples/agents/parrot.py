"""Parrot, an agent that does not exist: what one file in supervisor/agents/ has to say.

Parrot writes `~/.parrot/<session>.jsonl`, a line for each message:

    {"time": "2026-01-31T12:00:00Z", "who": "user", "text": "hello"}
    {"time": "2026-01-31T12:00:01Z", "who": "parrot", "text": "hello!", "model": "polly-1"}

and is resumed with `parrot --resume <session>`. docs/adding-an-agent.md goes through this file.
"""

from __future__ import annotations

import os

from .protocol import Agent, Fold, LineFiles

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .command_line import Arguments
    from .protocol import Database, Entry, Place, Record


class Parrot(Agent):
    name = "parrot"
    title = "Parrot"
    programs = ("parrot", "parrot-cli")
    writes_transcripts = True

    def sources(self, place: Place) -> list[LineFiles | Database]:
        return [ParrotFiles(place)]

    def arguments(self) -> Arguments:
        from .command_line import Arguments  # not needed to launch it

        return Arguments(resume=("--resume",), sessions="--resume", values="--model")


class ParrotFiles(LineFiles):
    def __init__(self, place: Place) -> None:
        home = place.env.get("HOME") or os.path.expanduser("~")
        self._folder = os.path.join(home, ".parrot")

    def folders(self) -> list[str]:
        return [self._folder]

    def fold(self, path: str) -> ParrotFold:
        return ParrotFold(path)

    def time_of(self, entry: Entry) -> object:
        return entry.get("time")


class ParrotFold(Fold):
    def __init__(self, path: str) -> None:
        self.family = os.path.basename(path).removesuffix(".jsonl")

    def line(self, entry: Entry, key: str) -> list[Record]:
        from .messages import about, assistant, moment, said  # imports json

        at, text = moment(entry.get("time")), str(entry.get("text") or "")
        session = about(
            self.family, at, source="parrot", model=entry.get("model"),
            resume=f"parrot --resume {self.family}",
        )  # fmt: skip
        if entry.get("who") == "user":
            return [session, said(self.family, key, {"role": "user", "content": text}, at)]
        return [session, said(self.family, key, assistant(text), at)]


AGENT = Parrot()
