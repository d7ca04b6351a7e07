"""The supervisor reads a stream of deltas in batches, and nothing else waits for that."""

from __future__ import annotations

import os

from hermes_supervise.supervisor.process.loop import Loop
from support import World, short


def test_a_descriptor_at_rest_is_read_again_without_being_asked_for() -> None:
    loop, (out, into) = Loop(), os.pipe()
    seen: list[bytes] = []

    def read() -> None:
        seen.append(os.read(out, 100))
        loop.pause(out, 0.01)

    loop.when_readable(out, read)
    os.write(into, b"first")
    loop.after(0.002, lambda: os.write(into, b"second"))
    loop.after(0.004, lambda: os.write(into, b"third"))
    loop.run_until(lambda: len(seen) == 2)
    assert seen == [b"first", b"secondthird"], "what came meanwhile is read in one go"
    os.close(out)
    os.close(into)


def test_a_descriptor_forgotten_at_rest_is_not_acted_on_under_its_next_owner() -> None:
    loop, (out, into) = Loop(), os.pipe()
    acted: list[str] = []

    def first() -> None:
        acted.append("first")
        loop.pause(out, 0.005)

    loop.when_readable(out, first)
    os.write(into, b"x")
    loop.run_until(lambda: acted == ["first"])
    loop.forget(out)
    loop.when_readable(out, lambda: acted.append(os.read(out, 1).decode()))
    over: list[bool] = []
    loop.after(0.05, lambda: over.append(True))
    loop.run_until(lambda: bool(over))
    assert acted == ["first", "x"]
    loop.forget(out)
    os.close(out)
    os.close(into)


def test_deltas_that_wait_to_be_read_in_a_batch_survive_a_kill(world: World) -> None:
    agent = world.supervise(
        """
with session("chat") as chat:
    chat.message("user", "quick")
    for number in range(3000):
        chat.delta(f"{number} ")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    agent.finish()
    words = "".join(f"{number} " for number in range(3000))
    assert short(world.messages("chat")) == [("user", "quick"), ("assistant", words)]
