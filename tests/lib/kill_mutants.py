"""The sweep, tested: copies of the product with one thing broken, each of which it must catch.

A mutant is a small patch of the source, and the legs of the sweep that can tell. One whose text is
no longer in the source fails at once: it has to be brought up to date, not left out. What only a
loss of power could tell (a sync left out) is for the tests of that; what the ring makes good is
tried where there is none.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

ROOMS = ("ipc", "agent_shim", "supervisor")


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    legs: tuple[str, ...]


MUTANTS = [
    Mutant(
        "no marker: what was written is not known to be ours",
        "supervisor/statedb/writer.py",
        "            self._markers.set(share.key, {**part.note, **marker})\n",
        "            pass\n",
        ("small/helper/self",),
    ),
    Mutant(
        "no transaction: each row for itself",
        "supervisor/statedb/connection.py",
        'db.execute("BEGIN IMMEDIATE")\n',
        'db.execute("SELECT 1")\n',
        ("small/helper/self",),
    ),
    Mutant(
        "acknowledged before it is written down",
        "supervisor/ingest/connection.py",
        "            failed = stream.append(waiting, always_sync=always_sync, room=room)\n",
        "            self._send(waiting[-1][0], b'')\n"
        "            failed = stream.append(waiting, always_sync=always_sync, room=room)\n",
        ("ringless-paced/supervisor/self",),
    ),
    Mutant(
        "the last words of the dead are not heard",
        "supervisor/ingest/server.py",
        "                self._read_to_end(connection)\n                self._close(connection)\n",
        "                self._close(connection)\n",
        ("ringless/agent/self",),
    ),
    Mutant(
        "a hook is not noted as begun",
        "supervisor/hooks/runner.py",
        "        entry.start_attempt(time.time())\n        queue.save(claimed, entry)\n",
        "        entry.start_attempt(time.time())\n",
        ("small/runner/self",),
    ),
    Mutant(
        "a hook is not noted as ended",
        "supervisor/hooks/runner.py",
        "        entry.end_attempt(time.time(), outcome, output)\n    queue.save(claimed, entry)\n",
        "        entry.end_attempt(time.time(), outcome, output)\n",
        ("small/runner/self",),
    ),
    Mutant(
        "a repeated hook does not get `repeated`",
        "supervisor/hooks/entry.py",
        '"repeated": attempt > 1',
        '"repeated": False',
        ("small/runner/self",),
    ),
    Mutant(
        "a hook that was queued and done is queued again",
        "supervisor/hooks/queue.py",
        "            return existing\n        group_folder = folder(",
        "            pass\n        group_folder = folder(",
        ("small/helper/self",),
    ),
    Mutant(
        "hooks are queued before the rows are written",
        "supervisor/recovery/finish.py",
        "        settled = self._settler.settle(dead, living)\n",
        "        for reading in dead:\n"
        "            early = [\n"
        "                SettledSession(s, SessionReport(s.id, self.run.name, reading.stream, '',"
        " 'interrupted', '', 0.0), Cause(), True)\n"
        "                for s in reading.replayed.sessions.values()\n"
        "            ]\n"
        "            self._observer.settled(SettledStream(self.run, self.settings, reading.stream,"
        " reading.replayed, early))\n"
        "        settled = self._settler.settle(dead, living)\n",
        ("small/agent/self",),
    ),
    Mutant(
        "no tombstone: what is left of the files is taken for the whole",
        "supervisor/recovery/finish.py",
        "        os.close(os.open(tomb, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, "
        "0o600))\n",
        "",
        ("segments/helper/group",),
    ),
    Mutant(
        "the files go before the rows are written",
        "supervisor/recovery/finish.py",
        "        settled = self._settler.settle(dead, living)\n",
        "        for reading in dead:\n"
        "            for name in reading.gathered.files:\n"
        "                os.unlink(self.run.path(name))\n"
        "            reading.gathered.files = []\n"
        "        settled = self._settler.settle(dead, living)\n",
        ("small/helper/self",),
    ),
    Mutant(
        "the spool is not read",
        "supervisor/recovery/gather.py",
        '".spool", ".ring"))\n    )',
        '".ring"))\n    )',
        ("whole/supervisor/self",),
    ),
    Mutant(
        "the ring is not read",
        "supervisor/recovery/gather.py",
        '".spool", ".ring"))\n    )',
        '".spool"))\n    )',
        ("whole/agent/group", "burst/agent/group"),
    ),
    Mutant(
        "a recovery that was cut off is not tried again",
        "supervisor/run/recoveries.py",
        "_RECOVERY_TRIES = 3",
        "_RECOVERY_TRIES = 1",
        ("small/helper/self",),
    ),
    Mutant(
        "a runner of hooks that was cut off is not replaced",
        "supervisor/hooks/launcher.py",
        "        if status != 0 and left > 0:\n",
        "        if False:\n",
        ("small/runner/self",),
    ),
    Mutant(
        "nobody inherits",
        "supervisor/adoption.py",
        "    os.execv(sys.executable,",
        "    return\n    os.execv(sys.executable,",
        ("adopted/supervisor/self",),
    ),
    Mutant(
        "the socket of a killed supervisor stays",
        "supervisor/storage/run_folder.py",
        "        os.unlink(endpoint.socket_path(run.name))\n",
        "        pass\n",
        ("small/supervisor/group",),
    ),
    Mutant(
        "how the agent died is not written down",
        "supervisor/ingest/connection.py",
        "            self.write_again(last_frame, always_sync=True)\n",
        "            self.write_again(always_sync=True)\n",
        ("whole/helper/group",),
    ),
    Mutant(
        "a killed agent is said to have exited",
        "supervisor/recovery/outcome.py",
        "    (End.UNKNOWN, True, False): Outcome.COMPLETED,\n",
        "    (End.UNKNOWN, True, False): Outcome.COMPLETED,\n"
        "    (End.UNKNOWN, False, True): Outcome.COMPLETED,\n",
        ("small/supervisor/group",),
    ),
    Mutant(
        "what no journal took is forgotten",
        "supervisor/recovery/gather.py",
        "    for seq, frame in unwritten.frames:\n",
        "    for seq, frame in ():\n",
        ("full/agent/self",),
    ),
    Mutant(
        "the pieces of a long message are not put together",
        "supervisor/recovery/conversation.py",
        "    if len(pieces) < parts:\n        return\n",
        "    return\n",
        ("long/agent/self",),
    ),
    Mutant(
        "a session that goes on stays ended as it was",
        "supervisor/statedb/writer.py",
        "            if life.precedes(share.part.life, self._boot):\n                return True\n",
        "            if life.precedes(share.part.life, self._boot):\n"
        "                return False\n",
        ("reopened/agent/self",),
    ),
]


def applies(root: Path, mutant: Mutant) -> bool:
    return (root / mutant.file).read_text().count(mutant.old) == 1


def made(root: Path, mutant: Mutant, folder: Path) -> Path:
    """A copy of the tree with the mutant in it."""
    for room in ROOMS:
        shutil.copytree(root / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
    assert applies(root, mutant), f"{mutant.name!r} does not fit {mutant.file} any more"
    path = folder / mutant.file
    path.write_text(path.read_text().replace(mutant.old, mutant.new))
    return folder
