"""Machines in network namespaces: one is cut off, another claims its run, and the network heals.

Every address is inside a namespace that the test itself makes; nothing leaves the machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet import Fleet, Machine, database
from postgres import Postgres, entering
from support import until

LONG = 120
TALK = """
with session("chat-1") as chat:
    chat.message("user", "before the cut")
    ready()
    sys.stdin.readline()
    chat.message("assistant", "behind the cut")
    ready("said")
    forever()
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=30)


class Network:
    """A namespace for the server, and one for each machine, with a cable to it."""

    def __init__(self) -> None:
        self.server = f"hs{os.getpid()}s"
        self._made: list[str] = []
        self._add(self.server)

    def _add(self, name: str) -> None:
        ip("netns", "add", name)
        self._made.append(name)

    def plug(self, number: int) -> tuple[str, str]:
        """A namespace for a machine, and the server's address as that machine sees it."""
        name, cable = f"hs{os.getpid()}m{number}", f"m{number}"
        here, there = f"192.0.2.{4 * number + 2}", f"192.0.2.{4 * number + 1}"
        self._add(name)
        ip("-n", name, "link", "add", "up0", "type", "veth", "peer", "name", cable,
           "netns", self.server)  # fmt: skip
        ip("-n", name, "address", "add", f"{here}/30", "dev", "up0")
        ip("-n", self.server, "address", "add", f"{there}/30", "dev", cable)
        ip("-n", name, "link", "set", "up0", "up")
        ip("-n", self.server, "link", "set", cable, "up")
        return name, there

    def cut(self, number: int) -> None:
        """Nothing arrives any more, and neither side is told."""
        ip("-n", self.server, "link", "set", f"m{number}", "down")

    def heal(self, number: int) -> None:
        ip("-n", self.server, "link", "set", f"m{number}", "up")

    def close(self) -> None:
        for name in reversed(self._made):
            ip("netns", "del", name)


class NetworkMachine(Machine):
    namespace = ""

    @property
    def command(self) -> list[str]:
        return [*entering(self.namespace), *super().command]


@pytest.fixture
def network() -> Iterator[Network]:
    if os.environ.get("REPLICA_TEST_URL"):
        pytest.skip("the server is not ours to put into a namespace")
    missing = [name for name in ("ip", "nsenter", "setpriv") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} (iproute2, util-linux) not installed")
    if os.getuid() != 0:
        pytest.skip("only root may make network namespaces")
    try:
        made = Network()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def machines(network: Network, tmp_path: Path) -> Iterator[tuple[Fleet, Machine, Machine]]:
    """Two machines and a server, each in a namespace of its own."""
    try:
        plugged = [network.plug(number) for number in range(2)]
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no cables between network namespaces here: {error.stderr.strip()}")
    postgres = Postgres(network.server)
    try:
        for server, url in database(postgres):
            fleet = Fleet(server, url, tmp_path)
            name = url.rsplit("=", 1)[1]
            for number, (namespace, address) in enumerate(plugged):
                where = f"host={address} user=postgres dbname={name}"
                machine = NetworkMachine(tmp_path / f"m{number}", where)
                machine.namespace = namespace
                machine.env["HERMES_SUPERVISE_ON_SESSION_END"] = machine.hook[1]
                fleet.machines.append(machine)
            try:
                yield fleet, fleet.machines[0], fleet.machines[1]
            finally:
                fleet.close()
    finally:
        postgres.close()


def said(machine: Machine) -> list[str]:
    return [row["content"] for row in machine.messages("chat-1")]


SLOW = pytest.mark.skipif(
    not os.environ.get("SLOW"), reason="half a minute of silence; `make test-slow`"
)


@pytest.mark.parametrize("is_noticed", [False, pytest.param(True, marks=SLOW)])
def test_cut_off_claimed_and_healed(
    network: Network, machines: tuple[Fleet, Machine, Machine], is_noticed: bool
) -> None:
    """`is_noticed`: the network heals only after the connection was given up."""
    fleet, here, there = machines
    run = here.supervise(TALK, stdin=subprocess.PIPE)
    run.wait_for("ready")
    fleet.until_there("before the cut")
    before = fleet.query("SELECT stream, position, body FROM hermes_supervise.frame")

    network.cut(0)
    assert here.call("fleet", "--json").returncode != 0, "it reaches the server no more"
    fleet.declare_lost(here.id, there)
    done = there.call("fleet", "recover", "chat-1", deadline=LONG)
    assert done.returncode == 0, done.stderr
    assert said(there) == ["before the cut"]
    until(lambda: there.events(), "the hook is run there")
    assert run.process.stdin is not None
    run.process.stdin.write(b"\n")
    run.process.stdin.flush()
    run.wait_for("said")
    if is_noticed:
        until(lambda: here.status().get("connected") is False, "it has noticed", LONG)
    assert b"behind the cut" not in fleet.bodies()

    network.heal(0)
    until(lambda: b"behind the cut" in fleet.bodies(), "the rest is replicated", LONG)
    until(lambda: here.status().get("taken"), "it knows that its run was claimed", LONG)
    run.kill_agent()
    run.finish(LONG)
    # Nothing is deleted, on either side.
    after = fleet.query("SELECT stream, position, body FROM hermes_supervise.frame")
    assert set(before) < set(after)
    assert said(here) == ["before the cut", "behind the cut"]
    # Its user is told, and nothing is finalised twice.
    [hook] = until(lambda: hooks_put_away(here), "the hook is put away")
    assert hook["state"] == "dead" and "recovered this session" in hook["outcome"]
    assert here.events() == []
    # What it said meanwhile is added where it was recovered, without a second hook.
    more = there.call("fleet", "recover", "chat-1", deadline=LONG)
    assert more.returncode == 0, more.stderr
    assert said(there) == ["before the cut", "behind the cut"]
    assert len(there.events()) == 1
    states = {machine["machine"]: machine["state"] for machine in there.fleet()["machines"]}
    assert states[here.id] != "lost"


def hooks_put_away(machine: Machine) -> list[dict[str, str]]:
    found = json.loads(machine.call("hooks", "--json").stdout)
    entries = found["hooks"] if isinstance(found, dict) else found
    return [hook for hook in entries if hook["state"] in ("dead", "abandoned", "done")]
