"""Plain JSON lines: any file that the user names with `--watch`, whichever agent writes it."""

from __future__ import annotations

from ..protocol import Agent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..protocol import Database, LineFiles, Place


class Jsonl(Agent):
    name = "jsonl"
    title = "JSON lines"

    def sources(self, place: Place) -> list[LineFiles | Database]:
        from .transcript import JsonlFiles  # the parser imports json

        return [JsonlFiles(path) for path in place.paths]


AGENT = Jsonl()
