"""Measures Hermes' own code: hermes_turn.py ANSWER MODEL DELTAS MESSAGES TURNS.

Alternates between our taps and Hermes' own methods in one process, because two processes differ
from each other by more than the taps add.
"""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from texts import Texts

answer, address = sys.argv[1:3]
deltas, messages, turns = map(int, sys.argv[3:6])
home = Path(os.environ["HERMES_HOME"])
(home / "config.yaml").write_text(
    f"model:\n  default: scripted\n  provider: custom\n  base_url: {address}\n  api_key: none\n"
)
import run_agent  # noqa: E402
from hermes_state import SessionDB  # noqa: E402

db = SessionDB(db_path=home / "state.db")
name = f"bench-{os.getpid()}"
agent = run_agent.AIAgent(
    base_url=address, api_key="none", model="scripted", quiet_mode=True, session_id=name,
    platform="cli", session_db=db, skip_context_files=True, skip_memory=True,
    stream_delta_callback=lambda text: None, enabled_toolsets=[],
)  # fmt: skip
taps = [
    (owner, method, function)
    for owner in (run_agent.AIAgent, SessionDB)
    for method, function in vars(owner).items()
    if "agent_shim" in getattr(getattr(function, "__code__", None), "co_filename", "")
]
assert taps, "not supervised"


def in_turns(count, work):
    """Milliseconds each, without and with the taps; the first of each is a warm-up."""
    found = {"without": [], "with": []}
    for number in range(count):
        tapped = number % 4 in (0, 3)
        for owner, method, function in taps:
            setattr(owner, method, function if tapped else function.__wrapped__)
        start = time.perf_counter_ns()
        work(number)
        took = (time.perf_counter_ns() - start) / 1e6
        if number > 1:
            found["with" if tapped else "without"].append(took)
    for owner, method, function in taps:
        setattr(owner, method, function)
    return found


def some_deltas(number):
    for _ in range(100):
        agent._fire_stream_delta("word ")


texts = Texts()
said = []


def a_message(number):
    said[:] = [*said[-1:], {"role": "assistant", "content": texts(number, 2000)}]
    agent._flush_messages_to_session_db(said)


found = {
    "turn": in_turns(turns, lambda number: agent.run_conversation("hello")),
    "message": in_turns(messages, a_message),
    "delta": in_turns(deltas // 100, some_deltas),
}
[[stored]] = db._conn.execute("SELECT count(*) FROM messages WHERE session_id = ?", (name,))
assert stored == 2 * turns + messages, stored
with open(answer, "w") as file:
    json.dump(found, file)
os._exit(0)
