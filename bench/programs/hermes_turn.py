"""Hermes' own code, timed: hermes_turn.py ANSWER MODEL DELTAS MESSAGES TURNS."""

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
texts = Texts()
found = {"delta": [], "append": [], "turn": []}
for _ in range(turns):
    start = time.perf_counter_ns()
    agent.run_conversation("hello")
    found["turn"].append((time.perf_counter_ns() - start) / 1e6)
for _ in range(5):
    start = time.perf_counter_ns()
    for _ in range(deltas // 5):
        agent._fire_stream_delta("word ")
    found["delta"].append((time.perf_counter_ns() - start) / 1e3 / (deltas // 5))
for number in range(messages):
    text = texts(number, 2000)
    start = time.perf_counter_ns()
    db.append_message(name, "assistant", content=text)
    found["append"].append((time.perf_counter_ns() - start) / 1e3)
found["supervised"] = hasattr(run_agent.AIAgent._fire_stream_delta, "__wrapped__")
with open(answer, "w") as file:
    json.dump(found, file)
os._exit(0)
