"""The event loop acts on what is ready, and on nothing that only has its number."""

from __future__ import annotations

import os

from hermes_supervise.supervisor.process.loop import Loop


def test_a_descriptor_that_took_the_number_of_a_ready_one_is_not_taken_for_ready() -> None:
    loop = Loop()
    first, write_first = os.pipe()
    second, write_second = os.pipe()
    newer: list[tuple[int, int]] = []
    acted: list[str] = []

    def replace_the_second() -> None:
        acted.append("first")
        loop.forget(first)
        loop.forget(second)
        os.close(second)
        newer.append(os.pipe())
        assert newer[0][0] == second, "the number is taken again"
        loop.when_readable(second, lambda: acted.append("the new one"))

    loop.when_readable(first, replace_the_second)
    loop.when_readable(second, lambda: acted.append("second"))
    os.write(write_first, b"1")
    os.write(write_second, b"2")
    rounds = iter((False, True))
    loop.run_until(lambda: next(rounds))
    assert acted == ["first"]

    os.write(newer[0][1], b"3")
    rounds = iter((False, True))
    loop.run_until(lambda: next(rounds))
    assert acted == ["first", "the new one"]
    for fd in (first, write_first, write_second, *newer[0]):
        os.close(fd)
