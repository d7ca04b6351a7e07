"""Programs that import Hermes' AIAgent themselves, and a model that answers by question."""

from __future__ import annotations

import json
from typing import Any

from hermes_world import Hermes, Model, Step, say
from support import DEADLINE, until


class KnowsQuestions(Model):
    """Answers by what the last message says, so that agents may ask in any order.

    `answers` has a list of steps for every answer to a message that holds its key.
    """

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[str, list[list[Step]]] = {}

    def _steps(self, body: dict[str, Any]) -> list[Step]:
        if not body.get("tools"):
            return say("An aside")
        self.requests.append(body)
        messages = body["messages"]
        for message in reversed(messages):
            text = json.dumps(message.get("content"))
            for key, answers in self.answers.items():
                if message["role"] == "user" and key in text and answers:
                    return answers.pop(0)
        return say("All done")


def program(hermes: Hermes, source: str) -> str:
    """A script that has `agent(id, **more)` and `go(function)`, which calls it in a thread."""
    return hermes.world.script(
        f"""
os.environ["HERMES_YOLO_MODE"] = "1"
from hermes_state import SessionDB
from run_agent import AIAgent

db = SessionDB()

def agent(id, **more):
    about = dict(base_url="http://127.0.0.1:{hermes.model.port}/v1", api_key="none",
                 model="scripted", session_id=id, platform="webui", session_db=db,
                 quiet_mode=True, skip_context_files=True)
    return AIAgent(**(about | more))

def go(function):
    threading.Thread(target=function, daemon=True).start()

{source}
forever()
"""
    )


def handed_over(hermes: Hermes, piece: str, times: int = 1) -> None:
    """Wait until the supervisor has been given a piece of a reply, so many times."""

    def there() -> bool:
        return hermes.world.said().count(piece.encode()) >= times

    until(there, f"{piece!r} is handed over {times} times", deadline=DEADLINE * 2)
