"""Many sessions, processes or records, measured part by part.

many.py ANSWER PARTS sessions N    one process, N sessions, each streams in turn
many.py ANSWER PARTS clients N     N processes with one session each
many.py ANSWER PARTS journal MIB   one session that sends that much and settles nothing

The work is divided into PARTS, and each part is measured.
"""

import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hermes_supervise.agent_shim import session
from texts import Texts

answer, parts, what, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
SUPERVISOR = os.getppid()


def cpu():
    with open(f"/proc/{SUPERVISOR}/schedstat") as file:
        return int(file.read().split()[0]) / 1e3


def cpu_at_rest():
    """The supervisor's time once it is idle: what it still reads and syncs belongs to this part."""
    before = None
    while (now := cpu()) != before:
        before = now
        time.sleep(1.2)
    return now


def timed(step):
    """Microseconds for each record, here and in the supervisor, in the first and the last third."""
    agent, supervisor = [], []
    for _ in range(parts):
        start, burnt = time.perf_counter_ns(), cpu()
        records = step()
        agent.append((time.perf_counter_ns() - start) / 1e3 / records)
        supervisor.append((cpu_at_rest() - burnt) / records)
    return {"agent": ends(agent), "supervisor": ends(supervisor)}


def ends(took):
    """The medians of the first and of the last third; a single part could be an outlier."""
    third = max(1, parts // 3)
    return [statistics.median(took[:third]), statistics.median(took[-third:])]


def sessions():
    chats = []

    def part():
        chats.extend(
            session(f"chat-{len(chats) + n}", db=answer + ".db") for n in range(count // parts)
        )
        for chat in chats[-count // parts :]:
            for _ in range(50):
                chat.delta("a few words of it, ")
        chats[-1].acknowledged(10)
        return count // parts * 51

    found = timed(part)
    for chat in chats:
        chat.end()
    return found


def clients():
    def part():
        pids = []
        said, heard = os.pipe()
        for number in range(count // parts):
            pid = os.fork()
            if pid == 0:
                chat = session(f"chat-{number}-{os.getpid()}", db=answer + ".db")
                for _ in range(500):
                    chat.delta("a few words of it, ")
                chat.acknowledged(10)
                os.write(heard, b".")
                time.sleep(3600)
            pids.append(pid)
        for _ in pids:
            os.read(said, 1)
        living.extend(pids)
        return count // parts * 501

    living = []
    found = timed(part)
    for pid in living:
        os.kill(pid, 15)
    for pid in living:
        os.waitpid(pid, 0)
    return found


def journal():
    texts = Texts()
    chat = session("chat", db=answer + ".db")
    per = count * 2**20 // 32_000 // parts

    def part():
        for number in range(per):
            chat.message("assistant", texts(number, 32_000))
            if number % 8 == 7:
                chat.acknowledged(30)
        return per

    return timed(part)


found = {"sessions": sessions, "clients": clients, "journal": journal}[what]()
with open(answer + ".new", "w") as file:
    json.dump(found, file)
os.rename(answer + ".new", answer)
if what == "journal":
    time.sleep(3600)
