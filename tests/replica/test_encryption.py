"""With a key, nothing that was said leaves the machine readable; without it, nothing is lost."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psycopg
import pytest
from fleet import Fleet, Machine
from hermes_supervise.supervisor.replica import seal
from hermes_supervise.supervisor.replica.server import Differs, Server
from support import kill, until, wait_dead

pytest.importorskip("cryptography", reason="`pip install -e '.[dev]'` brings cryptography")

STREAM = "ab" * 16
KEY, OTHER = b"k" * 32, b"o" * 32

SECRETS = """
with session("chat-1", source="cli", model="a-model") as chat:
    chat.title("The title of quetzalcoatl")
    chat.message("user", "a question on quetzals")
    chat.delta("an answer on quetzals")
    ready()
    forever()
"""
SAID = [("user", "a question on quetzals"), ("assistant", "an answer on quetzals")]


def said(machine: Machine) -> list[tuple[str, str]]:
    return [(row["role"], row["content"]) for row in machine.messages("chat-1")]


def key_file(machine: Machine, *keys: bytes) -> Path:
    path = machine.folder / "key"
    path.unlink(missing_ok=True)
    path.touch(0o600)
    path.write_text("".join(key.hex() + "\n" for key in keys))
    machine.env["HERMES_SUPERVISE_REPLICA_KEY"] = str(path)
    return path


def shipped(fleet: Fleet, records: int) -> None:
    count = "SELECT count(*) FROM hermes_supervise.frame WHERE seq > 0"
    until(lambda: fleet.query(count)[0][0] >= records, "the records are there", 60)


def everything_there(fleet: Fleet) -> bytes:
    """Every value of every table."""
    tables = ("machine", "run", "stream", "share", "frame")
    rows = [row for t in tables for row in fleet.query(f"SELECT * FROM hermes_supervise.{t}")]
    values = [value for row in rows for value in row]
    return b"\n".join(v if isinstance(v, bytes) else str(v).encode() for v in values)


# -- sealing -------------------------------------------------------------------------------------


def test_what_is_sealed_opens_at_its_place_with_its_key_only() -> None:
    ours, theirs = seal.Sealer([KEY]), seal.Sealer([OTHER])
    sealed = ours.seal(b"a frame", STREAM, 7)
    assert b"frame" not in sealed
    assert ours.open(sealed, STREAM, 7) == b"a frame"
    assert seal.Sealer([OTHER, KEY]).open(sealed, STREAM, 7) == b"a frame"
    for stream, position in ((STREAM, 8), ("cd" * 16, 7)):
        with pytest.raises(seal.Damaged):
            ours.open(sealed, stream, position)
    for index in range(12, len(sealed)):
        changed = bytearray(sealed)
        changed[index] ^= 1
        with pytest.raises(seal.Damaged):
            ours.open(bytes(changed), STREAM, 7)
    for size in range(12, len(sealed)):
        with pytest.raises(seal.Damaged):
            ours.open(sealed[:size], STREAM, 7)
    with pytest.raises(seal.KeyProblem, match=seal.id_of(KEY).hex()):
        theirs.open(sealed, STREAM, 7)
    with pytest.raises(seal.KeyProblem, match="--replica-key"):
        seal.Sealer([]).open(sealed, STREAM, 7)
    assert ours.open(b"HSV1 not sealed", STREAM, 7) == b"HSV1 not sealed"


def test_the_hash_is_equal_for_the_same_thing_at_the_same_place_only() -> None:
    ours = seal.Sealer([KEY])

    def compared(plain: bytes, position: int, sealer: seal.Sealer = ours) -> bytes:
        return sealer.seal(plain, STREAM, position)[: seal.COMPARED]

    assert compared(b"x", 1) == compared(b"x", 1)
    assert ours.seal(b"x", STREAM, 1) != ours.seal(b"x", STREAM, 1)
    others = [compared(b"y", 1), compared(b"x", 2), compared(b"x", 1, seal.Sealer([OTHER]))]
    assert compared(b"x", 1) not in others


def test_a_key_file_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(seal.KeyProblem, match="cannot be read"):
        seal.read_keys(str(path))
    for text in ("", "\n", "abc", "zz" * 32, "ab" * 31, "ab" * 32 + "\nno"):
        path.write_text(text)
        path.chmod(0o600)
        with pytest.raises(seal.KeyProblem, match="fleet key"):
            seal.read_keys(str(path))
    path.write_text(f"{'ab' * 32}\n\n{'cd' * 32}\n")
    assert seal.read_keys(str(path)) == [b"\xab" * 32, b"\xcd" * 32]
    path.chmod(0o640)
    with pytest.raises(seal.KeyProblem, match="chmod 600"):
        seal.read_keys(str(path))


def test_a_position_holds_one_thing_although_it_is_encrypted(fleet: Fleet) -> None:
    server, sealer = Server(fleet.url), seal.Sealer([KEY])

    def frame(position: int, plain: bytes, by: seal.Sealer = sealer) -> tuple[str, int, int, bytes]:
        return STREAM, position, position, by.seal(plain, STREAM, position)

    server.ship("m", [frame(1, b"one"), frame(2, b"two")], {STREAM: "r"}, [], [])
    server.ship("m", [frame(2, b"two"), frame(3, b"three")], {}, [], [])
    for different in (frame(3, b"other"), frame(3, b"three", seal.Sealer([])),
                      frame(3, b"three", seal.Sealer([OTHER]))):  # fmt: skip
        with pytest.raises(Differs):
            server.ship("m", [different, frame(4, b"four")], {}, [], [])
    assert server.have([STREAM])[STREAM][0] == 3
    server.close()


# -- machines --------------------------------------------------------------------------------------


def test_the_database_never_sees_a_word_and_the_key_brings_all_of_them_back(fleet: Fleet) -> None:
    here, there = fleet.machine(), fleet.machine()
    key_file(here, KEY)
    # Rows from before the run, which are shipped beside the records.
    del here.env["HERMES_SUPERVISE_REPLICA"]
    before = 'with session("chat-1", source="cli") as chat:\n    chat.message("user", "quetzal 0")'
    assert here.supervise(before).finish() == 0
    here.env["HERMES_SUPERVISE_REPLICA"] = fleet.url
    here.supervise(SECRETS).wait_for("ready")
    shipped(fleet, 4)
    lost = here.id
    here.lose()
    stored = everything_there(fleet)
    assert b"quetzal" not in stored and b"a-model" not in stored and b"python" not in stored
    assert b"chat-1" in stored  # ids stay readable
    fleet.declare_lost(lost, there)

    for keys, why in (((), "--replica-key"), ((OTHER,), "another key")):
        if keys:
            key_file(there, *keys)
        refused = there.call("fleet", "recover", "chat-1")
        assert refused.returncode == 1 and why in refused.stderr, refused.stderr
        assert seal.id_of(KEY).hex() in refused.stderr
        assert not there.db.exists()
        [run] = there.fleet()["runs"]
        assert (run["claimed_by"], run["state"]) == (None, "lost")
        assert run["sessions"] == [{"session": "chat-1", "title": None}]

    key_file(there, OTHER, KEY)  # a new key, and the one from before
    [run] = there.fleet()["runs"]
    assert run["sessions"][0]["title"] == "The title of quetzalcoatl"
    done = there.call("fleet", "recover", "chat-1")
    assert done.returncode == 0, done.stderr
    assert said(there) == [("user", "quetzal 0"), *SAID]
    row = there.session("chat-1")
    assert row is not None and row["title"] == "The title of quetzalcoatl"


def test_records_that_were_changed_in_the_database_are_left_out_and_said_to_be(
    fleet: Fleet,
) -> None:
    here, there = fleet.machine(), fleet.machine()
    key_file(here, KEY)
    here.supervise(SECRETS).wait_for("ready")
    shipped(fleet, 4)
    lost = here.id
    here.lose()
    changed = fleet.query(
        "UPDATE hermes_supervise.frame SET body = set_byte(body, length(body) - 1, "
        "(get_byte(body, length(body) - 1) + 1) %% 256) WHERE seq = 3 RETURNING seq"
    )
    assert changed == [(3,)]
    fleet.declare_lost(lost, there)
    key_file(there, KEY)
    there.call("fleet", "recover", "chat-1")
    assert said(there) == SAID[1:]
    shown = " ".join(there.call("show", "chat-1").stdout.split())
    assert "1 records were changed in the database" in shown


def test_without_its_key_the_shipper_sends_nothing_and_loses_nothing(fleet: Fleet) -> None:
    here = fleet.machine()
    key = key_file(here, KEY)
    # As a key on a disk that is not there when the shipper starts.
    away = key.with_suffix(".away")
    here.env["HERMES_SUPERVISE_REPLICA"] = "service=ours"
    services = here.folder / "services"
    here.env["PGSERVICEFILE"] = str(services)
    services.write_text("[ours]\nhost=/nowhere/at/all\n")
    run = here.supervise(SECRETS)
    run.wait_for("ready")
    until(lambda: here.status().get("problem"), "the shipper runs")
    key.rename(away)
    settings = psycopg.conninfo.conninfo_to_dict(fleet.url)
    services.write_text("[ours]\n" + "".join(f"{k}={v}\n" for k, v in settings.items()))
    waits = until(lambda: "records wait" in str(here.status().get("problem")), "it says so", 60)
    assert waits and here.status()["connected"]
    assert str(key) in here.status()["problem"]
    assert fleet.query("SELECT count(*) FROM hermes_supervise.frame") == [(0,)]
    away.rename(key)
    shipped(fleet, 4)
    until(lambda: here.status().get("problem") is None, "it is well again")
    assert b"quetzal" not in everything_there(fleet)


def test_a_run_that_is_over_is_sent_again_encrypted_if_a_standby_lacks_it(fleet: Fleet) -> None:
    here = fleet.machine()
    key_file(here, KEY)
    done = here.supervise(SECRETS.replace("    ready()\n    forever()\n", ""))
    assert done.finish() == 0
    here.until_shipped()
    until(lambda: not here.processes(), "the shipper is done")
    whole = fleet.query("SELECT seq FROM hermes_supervise.frame ORDER BY stream, position")
    for table in ("frame", "share", "stream", "run"):
        fleet.query(f"DELETE FROM hermes_supervise.{table}")
    again = here.supervise("ready()")
    assert again.finish() == 0
    here.until_shipped()
    assert fleet.query("SELECT seq FROM hermes_supervise.frame ORDER BY stream, position") == whole
    assert b"quetzal" not in everything_there(fleet)
    ended = "SELECT count(*), count(ended_at) FROM hermes_supervise.run"
    assert fleet.query(ended) == [(2, 2)]
    known = "SELECT count(*) FROM hermes_supervise.stream JOIN hermes_supervise.run USING (run)"
    assert fleet.query(known) == [(1,)]


def test_a_key_that_cannot_be_used_is_said_before_the_agent_starts(fleet: Fleet) -> None:
    here = fleet.machine()
    key_file(here, KEY).chmod(0o644)
    done = here.call("--", "sh", "-c", "exit 3")
    assert done.returncode == 3
    assert "not replicated" in done.stderr and "chmod 600" in done.stderr
    assert here.call("--strict", "--", "true").returncode == 125
    [records] = [finding for finding in here.fleet("doctor") if finding["about"] == "records"]
    assert records["verdict"] == "bad" and "chmod 600" in records["text"]


def test_fleet_key_makes_a_key_file_once(fleet: Fleet) -> None:
    here = fleet.machine()
    path = here.folder / "key"
    del here.env["HERMES_SUPERVISE_REPLICA"]
    done = here.call("fleet", "key", str(path))
    assert done.returncode == 0 and "keep a copy" in done.stdout
    [key] = seal.read_keys(str(path))
    again = here.call("fleet", "key", str(path))
    assert again.returncode != 0 and "exists already" in again.stderr
    assert seal.read_keys(str(path)) == [key]


@pytest.mark.parametrize("keys", [(OTHER, KEY), (OTHER,)], ids=["before it", "in its place"])
def test_a_key_changed_while_a_run_is_shipped_is_no_alarm(
    fleet: Fleet, keys: tuple[bytes, ...]
) -> None:
    """What is there was encrypted with the key before; the shipper that asks has a new one."""
    here, there = fleet.machine(), fleet.machine()
    key_file(here, KEY)
    talks = "    sys.stdin.readline()\n    chat.message('user', 'and now')\n    forever()"
    run = here.supervise(SECRETS.replace("    forever()", talks), stdin=subprocess.PIPE)
    run.wait_for("ready")
    shipped(fleet, 4)
    key_file(here, *keys)
    pid = here.shipper
    kill(pid)
    wait_dead(pid)
    assert run.process.stdin is not None
    run.process.stdin.write(b"\n")
    run.process.stdin.flush()
    shipped(fleet, 5)
    assert here.status()["problem"] is None
    lost = here.id
    here.lose()
    key_file(there, OTHER, KEY)
    fleet.declare_lost(lost, there)
    assert there.call("fleet", "recover", "chat-1").returncode == 0
    assert ("user", "and now") in said(there)
