"""Machines with a run to be shipped: replica_homes.py ANSWER CONNINFO FOLDER MACHINES RECORDS SIZE.

Each machine is a state folder, FOLDER/<number>/state, with a journal of RECORDS records: deltas of
SIZE letters, a message in every fifty. The answer: the folder of each machine's replica, its run's
folder and its stream. A run is open as long as its folder is there.
"""

import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hermes_supervise.ipc import frames, records
from hermes_supervise.supervisor.replica import places
from hermes_supervise.supervisor.storage.journal import SEGMENT_BYTES, segment_name
from texts import Texts

answer, where, above = sys.argv[1:4]
machines, count, size = map(int, sys.argv[4:7])
texts = Texts()
RUN = "20260101-000000-00000000"
os.umask(0o077)


def record(number, session):
    if number % 50 == 0:
        message = {"role": "assistant", "content": texts(number, size)}
        return records.pack({"kind": "message", "session": session, "uid": f"u{number}",
                             "at": time.time(), "message": message})  # fmt: skip
    return records.pack_delta(session, texts(number, size))


def made(number):
    state = os.path.join(above, str(number), "state")
    os.environ["XDG_STATE_HOME"] = state
    folder = os.path.join(state, "hermes-supervise", "runs", RUN)
    os.makedirs(folder, 0o700)
    stream, session = os.urandom(16).hex(), f"chat-{number}"
    hello = {"kind": "hello", "version": 1, "oldest": 1, "stream": stream, "pid": 1}
    data = [frames.encode(0, records.pack(hello))]
    begin = {"kind": "session", "session": session, "source": "cli", "at": time.time()}
    data.append(frames.encode(1, records.pack(begin)))
    data += [frames.encode(seq, record(seq, session)) for seq in range(2, count + 1)]
    segment = b""
    segments = []
    for frame in data:
        segment += frame
        if len(segment) >= SEGMENT_BYTES:
            segments.append(segment)
            segment = data[0]
    for place, contents in enumerate([*segments, segment], 1):
        with open(os.path.join(folder, segment_name(stream, place)), "wb") as file:
            file.write(contents)
    about = {"folder": folder, "db": os.path.join(above, str(number), "state.db"),
             "command": ["agent"], "cwd": "/", "started": time.time(), "boot": "b"}  # fmt: skip
    places.register(where, RUN, folder, about)
    return {"target": places.target_folder(where), "folder": folder, "stream": stream,
            "segment": len(segments) + 1}  # fmt: skip


with open(answer, "w") as file:
    json.dump([made(number) for number in range(machines)], file)
