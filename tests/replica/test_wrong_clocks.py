"""Every machine's clock is wrong, each in another way: leases and claims go by the database's."""

from __future__ import annotations

import time

from fleet import Fleet, Machine

# Every Python below a machine reads its clock wrong.
WRONG = """
import time
_time, _ns = time.time, time.time_ns
time.time = lambda: _time() + {0}
time.time_ns = lambda: _ns() + int({0}) * 10**9
"""
DAY = 86400
TALK = """
with session("chat-1", source="cli") as chat:
    chat.message("user", "question {0}")
    chat.delta("answer {0}")
    ready()
    forever()
"""


def with_clock(fleet: Fleet, off: float) -> Machine:
    made = fleet.machine()
    folder = made.folder / "clock"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(WRONG.format(off))
    made.env["PYTHONPATH"] = str(folder)
    return made


def speak(fleet: Fleet, machine: Machine, number: int) -> None:
    machine.supervise(TALK.format(number)).wait_for("ready")
    fleet.until_there(f"answer {number}")


def test_a_session_moves_over_machines_whose_clocks_are_years_apart(fleet: Fleet) -> None:
    early, late, third = (with_clock(fleet, days * DAY) for days in (-700, 900, 0.3))
    speak(fleet, early, 1)
    [listed] = late.fleet()["machines"]
    assert listed["state"] == "alive"
    refused = late.call("fleet", "lost", early.id)
    assert refused.returncode == 1 and "lease" in refused.stderr
    lost = early.id
    early.lose()
    fleet.declare_lost(lost, late)
    assert late.call("fleet", "recover", "chat-1").returncode == 0
    first = late.messages("chat-1")[0]
    assert first["timestamp"] < time.time() - 600 * DAY, "the clock was really wrong"
    speak(fleet, late, 2)
    lost = late.id
    late.lose()
    fleet.declare_lost(lost, third)
    # The latest run is the one that the database saw last, not the one that says so.
    done = third.call("fleet", "recover", "chat-1")
    assert done.returncode == 0, done.stderr
    rows = [(row["role"], row["content"]) for row in third.messages("chat-1")]
    assert rows == [
        ("user", "question 1"), ("assistant", "answer 1"),
        ("user", "question 2"), ("assistant", "answer 2"),
    ]  # fmt: skip
