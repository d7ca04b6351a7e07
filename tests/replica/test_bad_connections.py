"""What is between a machine and its database delays, stalls and cuts: real servers and sockets."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import psycopg
import pytest
from fleet import Fleet
from hermes_supervise.supervisor.replica.server import Server, Unreachable
from proxy import Proxy
from support import until

SEQS = "SELECT seq FROM hermes_supervise.frame WHERE seq > 0 ORDER BY position"
TALKATIVE = """
with session("chat-1") as chat:
    chat.message("user", "go on")
    ready()
    for number in range(400):
        chat.delta(f"{number} ")
        time.sleep(0.005)
    ready("done")
    forever()
"""


@pytest.fixture
def proxy(fleet: Fleet) -> Iterator[Proxy]:
    if fleet.postgres.external:
        pytest.skip("the server is somebody else's")
    made = Proxy(fleet.postgres, str(psycopg.conninfo.conninfo_to_dict(fleet.url)["dbname"]))
    try:
        yield made
    finally:
        made.close()


def everything(fleet: Fleet) -> list[int]:
    return [row[0] for row in fleet.query(SEQS)]


def test_a_server_that_takes_everything_and_never_answers_is_given_up(
    fleet: Fleet, proxy: Proxy
) -> None:
    server = Server(proxy.url, patience=1.0)
    stream = "0" * 32
    server.ship("m", [(stream, 1, 1, b"one")], {stream: "r"}, [], [])
    proxy.stall()
    with pytest.raises(Unreachable, match="no answer"):
        server.ship("m", [(stream, 2, 2, b"two")], {}, [], [])
    with pytest.raises(Unreachable):
        server.renew("m", 1)  # at once: it is given up for good
    server.close()


def test_a_slow_server_is_waited_for_as_long_as_something_moves(fleet: Fleet, proxy: Proxy) -> None:
    server = Server(proxy.url, patience=1.0)
    stream = "0" * 32
    proxy.delay = 0.05
    # Many small pieces, each of them late.
    server.ship("m", [(stream, 1, 1, b"x" * 2_000_000)], {stream: "r"}, [], [])
    assert server.have([stream])[stream][0] == 1
    server.close()


def test_a_connection_cut_at_any_byte_loses_and_doubles_nothing(fleet: Fleet, proxy: Proxy) -> None:
    here = fleet.machine()
    here.env["HERMES_SUPERVISE_REPLICA"] = proxy.url
    run = here.supervise(TALKATIVE)
    run.wait_for("ready")
    chance = random.Random(17)
    for cuts in range(1, 13):
        # The handshake, the settings, the questions, or a batch.
        proxy.cut_after = chance.randrange(1, 6000)
        until(lambda cuts=cuts: proxy.cuts >= cuts or here_is_done(fleet), "it is cut", 60)
    proxy.cut_after = None
    run.wait_for("done")
    until(lambda: len(everything(fleet)) >= 402, "all of it", 90)
    assert everything(fleet) == list(range(1, 403))
    assert proxy.cuts > 3


def here_is_done(fleet: Fleet) -> bool:
    return len(everything(fleet)) >= 402


@pytest.mark.skipif(not os.environ.get("SLOW"), reason="a minute of silence; `make test-slow`")
def test_the_shipper_goes_on_elsewhere_when_its_server_is_stopped(
    fleet: Fleet, proxy: Proxy
) -> None:
    """Behind the same address there is a server again, but the old connections hang for ever."""
    here = fleet.machine()
    here.env["HERMES_SUPERVISE_REPLICA"] = proxy.url
    run = here.supervise(TALKATIVE)
    run.wait_for("ready")
    until(lambda: everything(fleet), "the first records")
    proxy.stall()
    run.wait_for("done")
    until(lambda: here.status().get("connected") is False, "it is given up", 120)
    assert "no answer" in here.status()["problem"]
    assert len(everything(fleet)) < 402
    proxy.go_on()
    until(lambda: len(everything(fleet)) >= 402, "all of it", 120)
    assert everything(fleet) == list(range(1, 403))
