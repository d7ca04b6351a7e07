"""Writes the journal of a dead process: journal.py ANSWER N SIZE [KIND]."""

import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hermes_supervise.ipc import frames, records
from hermes_supervise.supervisor.storage.journal import SEGMENT_BYTES, segment_name
from texts import Texts

answer, count, letters = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
texts = Texts()
state = os.path.join(os.environ["XDG_STATE_HOME"], "hermes-supervise")
folder = os.path.join(state, "runs", "20260101-000000-00000000")
for path in (os.path.dirname(state), state, os.path.dirname(folder), folder):
    os.makedirs(path, 0o700, exist_ok=True)
stream = os.urandom(16).hex()
hello = records.pack({"kind": "hello", "version": 1, "oldest": 1, "stream": stream, "pid": 1})
head = frames.encode(0, hello)
with open(os.path.join(folder, "run.json"), "w") as file:
    json.dump({"boot": "another", "db": os.path.join(os.environ["HERMES_HOME"], "state.db")}, file)


def chat_records():
    began = time.time()
    yield {"kind": "session", "session": "chat", "source": "cli", "at": began}
    for number in range(count):
        role = "user" if number % 2 == 0 else "assistant"
        message = {"role": role, "content": texts(number, letters)}
        yield {"kind": "message", "session": "chat", "uid": f"u{number}", "at": began + number,
               "message": message}  # fmt: skip


number, size = 0, SEGMENT_BYTES
for seq, record in enumerate(chat_records(), 1):
    if size >= SEGMENT_BYTES:
        number, size = number + 1, 0
        with open(os.path.join(folder, segment_name(stream, number)), "wb") as file:
            file.write(head)
    data = frames.encode(seq, records.pack(record))
    with open(os.path.join(folder, segment_name(stream, number)), "ab") as file:
        file.write(data)
    size += len(data)
with open(answer, "w") as file:
    json.dump(number, file)
