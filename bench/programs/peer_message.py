"""A message made durable by a peer, timed: peer_message.py ANSWER PEER FOLDER N SIZE."""

import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from texts import Texts

answer, peer, folder = sys.argv[1:4]
count, size = int(sys.argv[4]), int(sys.argv[5])
texts = Texts()
found = []


def langgraph():
    import sqlite3

    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.sqlite import SqliteSaver

    saver = SqliteSaver(
        sqlite3.connect(os.path.join(folder, "langgraph.db"), check_same_thread=False)
    )
    saver.setup()
    config = {"configurable": {"thread_id": str(os.getpid()), "checkpoint_ns": ""}}
    said = []
    for number in range(count):
        said = [*said[-9:], {"role": "assistant", "content": texts(number, size)}]
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": said}
        start = time.perf_counter_ns()
        config = saver.put(config, checkpoint, {"source": "loop", "step": number}, {})
        found.append((time.perf_counter_ns() - start) / 1e3)


def openai_agents():
    import asyncio

    from agents import SQLiteSession

    async def say():
        session = SQLiteSession(str(os.getpid()), os.path.join(folder, "agents.db"))
        for number in range(count):
            item = {"role": "assistant", "content": texts(number, size)}
            start = time.perf_counter_ns()
            await session.add_items([item])
            found.append((time.perf_counter_ns() - start) / 1e3)

    asyncio.run(say())


def dbos():
    from dbos import DBOS

    path = os.path.join(folder, "dbos.db")
    DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{path}",
                 "run_admin_server": False, "log_level": "ERROR"})  # fmt: skip

    @DBOS.step()
    def say(text):
        return text

    @DBOS.workflow()
    def talk():
        for number in range(count):
            text = texts(number, size)
            start = time.perf_counter_ns()
            say(text)
            found.append((time.perf_counter_ns() - start) / 1e3)

    DBOS.launch()
    talk()
    DBOS.destroy()


{"langgraph": langgraph, "openai-agents": openai_agents, "dbos": dbos}[peer]()
with open(answer, "w") as file:
    json.dump(found, file)
os._exit(0)
