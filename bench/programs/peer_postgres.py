"""A message made durable by a peer on a PostgreSQL server, timed.

peer_postgres.py ANSWER langgraph|dbos URL N SIZE    microseconds for each message
peer_postgres.py ANSWER langgraph-load URL N SIZE    seconds to load a thread of N messages
"""

import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from texts import Texts

answer, peer, url = sys.argv[1:4]
count, size = int(sys.argv[4]), int(sys.argv[5])
texts = Texts()
found = []


def saver():
    import psycopg
    from langgraph.checkpoint.postgres import PostgresSaver

    db = psycopg.connect(url, autocommit=True, prepare_threshold=0,
                         row_factory=psycopg.rows.dict_row)  # fmt: skip
    made = PostgresSaver(db)
    made.setup()
    return made


def put(made, config, said, number):
    from langgraph.checkpoint.base import empty_checkpoint

    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"messages": said}
    version = f"{number + 1:032}.0"
    checkpoint["channel_versions"] = {"messages": version}
    start = time.perf_counter_ns()
    config = made.put(config, checkpoint, {"source": "loop", "step": number}, {"messages": version})
    found.append((time.perf_counter_ns() - start) / 1e3)
    return config


def langgraph():
    made = saver()
    config = {"configurable": {"thread_id": str(os.getpid()), "checkpoint_ns": ""}}
    said = []
    for number in range(count):
        said = [*said[-9:], {"role": "assistant", "content": texts(number, size)}]
        config = put(made, config, said, number)


def langgraph_load():
    thread = {"configurable": {"thread_id": "long", "checkpoint_ns": ""}}
    said = [{"role": "assistant", "content": texts(number, size)} for number in range(count)]
    put(saver(), thread, said, 0)
    found.clear()
    start = time.perf_counter()
    loaded = saver().get_tuple(thread).checkpoint["channel_values"]["messages"]
    found.append(time.perf_counter() - start)
    assert loaded == said


def dbos():
    from dbos import DBOS

    DBOS(config={"name": "bench", "system_database_url": url, "run_admin_server": False,
                 "log_level": "ERROR"})  # fmt: skip

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


{"langgraph": langgraph, "langgraph-load": langgraph_load, "dbos": dbos}[peer]()
with open(answer, "w") as file:
    json.dump(found, file)
os._exit(0)
