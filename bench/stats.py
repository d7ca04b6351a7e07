"""Reduces samples to the numbers shown: minimum, median, quartiles, ratios with their spread."""

from __future__ import annotations

import statistics
from typing import Any

Summary = dict[str, float]


def summary(samples: list[float]) -> Summary:
    """Summarise repeated measurements of one thing."""
    quarter = statistics.quantiles(samples, n=4) if len(samples) > 1 else [samples[0]] * 3
    return {
        "n": len(samples),
        "min": min(samples),
        "median": statistics.median(samples),
        "q1": quarter[0],
        "q3": quarter[2],
    }


def ratio(samples: list[float], floor: list[float]) -> Summary:
    """The ratio to the floor. Both were measured alternately, so the spread is that of the rounds'
    ratios; `min` compares the best of each, which noise cannot improve."""
    rounds = [a / b for a, b in zip(samples, floor, strict=False) if b]
    return {**summary(rounds), "min": min(samples) / min(floor)}


def target(what: str, measured: float, bound: float, unit: str, *, least: bool = False) -> Any:
    """A target of the project, and whether the measured figure meets it."""
    met = measured >= bound if least else measured <= bound
    return {
        "what": what, "measured": measured, "bound": bound, "unit": unit,
        "least": least, "met": met,
    }  # fmt: skip
