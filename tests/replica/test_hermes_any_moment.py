"""Real Hermes on a machine that is lost at any moment: what the database has then is resumed on
another one, every word of it once and in order."""

from __future__ import annotations

import os
import random
import re
import time
from typing import Any

import pytest
from fleet import Fleet, Machine
from hermes_world import Hermes, Model, Step, call, say

# So many for each release; another number has other moments.
MOMENTS = int(os.environ.get("MOMENTS", "6" if os.environ.get("SLOW") else "1"))
WORDS, REPLIES = 30, 4


def script(passed: int) -> list[list[Step]]:
    """Replies of numbered words, with a tool call behind each but the last; the test is told when
    word number `passed` is out."""
    replies: list[list[Step]] = []
    number = 0
    for reply in range(REPLIES):
        steps: list[Step] = []
        for _ in range(WORDS):
            number += 1
            steps += [("text", f"w{number} "), ("pause", 0.01)]
            if number == passed:
                steps.append(("passed", "moment"))
        if reply < REPLIES - 1:
            steps.append(call("terminal", {"command": "sleep 0.1"}, f"call_{reply}"))
        replies.append(steps)
    return replies


def numbers(text: str) -> list[int]:
    return [int(found) for found in re.findall(r"w(\d+) ", text + " ")]


def replicated(fleet: Fleet) -> int:
    return max(numbers(fleet.bodies().decode("utf-8", "replace")), default=0)


def chat(hermes: Hermes, question: str, *more: str) -> list[str]:
    return [hermes.command, "chat", "-q", question, "-Q", "--yolo", *more]


def answers(machine: Machine, session: str) -> list[int]:
    rows = machine.messages(session)
    return numbers(" ".join(str(row["content"]) for row in rows if row["role"] == "assistant"))


def sent(request: dict[str, Any]) -> list[int]:
    texts = [str(m.get("content") or "") for m in request["messages"] if m["role"] == "assistant"]
    return numbers(" ".join(texts))


@pytest.mark.parametrize("moment", range(MOMENTS))
@pytest.mark.parametrize("version", ["0.19.0", "0.13.0"])
def test_lost_at_any_moment(fleet: Fleet, model: Model, version: str, moment: int) -> None:
    chance = random.Random(f"{version} {moment} {MOMENTS}")
    passed = chance.randrange(1, WORDS * REPLIES)
    here, there = fleet.machine(), fleet.machine()
    hermes = Hermes(version, here, model)
    model.script = script(passed)
    here.run(chat(hermes, "count for me"))
    model.wait_until_held("moment")
    time.sleep(chance.choice([0.0, 0.03, 0.1, 0.3]))  # another moment, no more
    lost = here.id
    here.lose()
    model.script = []
    there_now = replicated(fleet)

    hermes = Hermes(version, there, model)
    fleet.declare_lost(lost, there)
    done = there.call("fleet", "recover", "--all-lost")
    assert done.returncode == 0, done.stderr
    if not there_now:
        return  # so early that only the question is there, or not even that
    with there.database() as db:
        [[session]] = [tuple(row) for row in db.execute("SELECT id FROM sessions")]
    assert answers(there, session) == list(range(1, there_now + 1)), passed
    questions = [row["content"] for row in there.messages(session) if row["role"] == "user"]
    assert questions == ["count for me"]
    model.script = [say("and so it goes on")]
    before = len(model.requests)
    again = there.run(chat(hermes, "go on", "--resume", session))
    assert again.finish(120) == 0, again.errors
    assert sent(model.requests[before]) == list(range(1, there_now + 1))
    there.call("fleet", "recover", session)
    assert answers(there, session) == list(range(1, there_now + 1)), "once"
