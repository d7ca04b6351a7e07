"""Tokens: what a streamed delta costs the agent, and both processes at a given rate."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from . import environment
from .stats import ratio, summary, target

_SENDERS = ("product", "raw", "coalesced")
_WHO = (*_SENDERS, "nothing")
# Deltas a second to seconds: a slow rate needs more time, because noise is a larger share of it.
_RATES = {100: 6, 1000: 2, 10_000: 2}
_RATES_OF_A_QUICK_RUN = {100: 3, 10_000: 1}
_NAMES = {
    "product": "hermes-supervise", "raw": "floor: raw frames one by one",
    "coalesced": "floor: coalesced to 20 ms", "nothing": "the loop itself",
}  # fmt: skip


def measure(quick: bool) -> dict[str, Any]:
    rounds, in_turns = (1, _RATES_OF_A_QUICK_RUN) if quick else (6, _RATES)
    hot: dict[str, list[float]] = {who: [] for who in _WHO}
    rates: dict[tuple[str, int], list[dict[str, list[float]]]] = {}
    append: list[float] = []
    with environment.world() as world:
        for _ in range(rounds):
            for who in _WHO:
                hot[who] += world.ask(_command(who), who, "hot", 5000, 5)
            if environment.HERMES.exists():
                program = environment.program("hermes_append.py", environment.HERMES)
                append += world.ask(program, world.folder / "appended.db", 100, 20)
            for per_second, turns in in_turns.items():
                for who in _SENDERS:
                    seen = world.ask(_command(who), who, "rate", per_second, turns)
                    rates.setdefault((who, per_second), []).append(seen)
    hot_rows = [[_NAMES[w], summary(hot[w]), ratio(hot[w], hot["raw"])] for w in _WHO]
    rate_rows: list[list[Any]] = []
    for who in _SENDERS:
        row: list[Any] = [_NAMES[who]]
        for per_second in in_turns:
            row += [_of(rates, [who], per_second, side) for side in ("agent", "receiver")]
        rate_rows.append(row)
    loop = [[_of(rates, _SENDERS, per_second, "loop"), None] for per_second in in_turns]
    rate_rows.append([_NAMES["nothing"], *(cell for pair in loop for cell in pair)])
    product = rate_rows[0]
    targets = [
        target("a delta in a hot loop", summary(hot["product"])["median"], 10, "us"),
        target("supervisor at 10,000 deltas/s", product[-1], 15, "% of a core"),
    ]
    left_out = []
    if quick:
        left_out.append("whether the agent's share at 100/s is reached: three turns do not tell")
    else:
        targets.insert(1, target("agent at 100 deltas/s", product[1], 1, "% of a core"))
    if append:
        hot_rows.append(["Hermes' append_message, 20 letters", summary(append), None])
        share = summary(hot["product"])["median"] / summary(append)["median"]
        targets.insert(1, target("a delta, against Hermes' append_message", share, 1 / 50, "x"))
    else:
        left_out.append("Hermes: not installed")
    columns = ["at"] + [
        f"{side} at {rate:,}/s, %" for rate in in_turns for side in ("agent", "receiver")
    ]
    return {
        "title": "A token",
        "tables": [
            {"columns": ["a delta of 20 letters", "hot loop, us", "x raw"], "rows": hot_rows},
            {"columns": columns, "rows": rate_rows},
        ],
        "targets": targets,
        "left_out": left_out,
        "notes": [
            "Hot: as fast as the agent can. At a rate: the share of a core, without the share of "
            "the loop itself, which is measured in the same process in turns of a second; the "
            "median of all turns. The floors check nothing and keep nothing, so nothing could be "
            "recovered from them.",
        ],
    }


def _command(who: str) -> list[str]:
    program = environment.program("speak.py")
    return [*environment.SUPERVISE, "--", *program] if who == "product" else program


def _of(
    rates: dict[tuple[str, int], list[dict[str, list[float]]]],
    who: Iterable[str],
    rate: int,
    side: str,
) -> float:
    found = [took for name in who for seen in rates[name, rate] for took in seen[side]]
    return statistics.median(found)
