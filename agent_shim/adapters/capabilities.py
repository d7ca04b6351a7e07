"""The capabilities that capturing an agent needs, each by the first of several ways that works.

Knows no agent: an adapter lists the capabilities, and the taps that each way needs. Every tap that
can be set is set. A capability works by the first of its ways whose taps are all set; if there is
none, it is missing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Way = tuple[str, ...]
    """Taps, each `Class.method`, that have a capability together."""


class Capabilities:
    """The capabilities of one agent by name, with the ways to each, the best first."""

    def __init__(self, ways: dict[str, list[Way]]) -> None:
        self.ways = ways
        self._set: set[str] = set()
        self._otherwise: dict[str, Callable[[], str | None]] = {}

    def tapped(self, name: str) -> None:
        """The tap `Class.method` is set."""
        self._set.add(name)

    def is_tapped(self, name: str) -> bool:
        return name in self._set

    def otherwise(self, capability: str, way: Callable[[], str | None]) -> None:
        """A way that is not a tap on the agent: `way` returns its name, or None if it is not
        there."""
        self._otherwise[capability] = way

    def at_its_best(self, capability: str) -> bool:
        """True if it works by the first of its ways."""
        return self._set.issuperset(self.ways[capability][0])

    def held(self) -> dict[str, str | None]:
        """The way by which each capability works; None: by none."""
        found: dict[str, str | None] = {}
        for name, ways in self.ways.items():
            way = next((way for way in ways if self._set.issuperset(way)), None)
            other = self._otherwise.get(name)
            found[name] = ", ".join(way) if way else other() if other else None
        return found

    def missing(self) -> list[str]:
        return [name for name, way in self.held().items() if way is None]


def find_class(module: Any, name: str, marks: tuple[str, ...]) -> type | None:
    """The class of this name, or the one that the module itself defines with these methods."""
    found = module.__dict__.get(name)
    if isinstance(found, type):
        return found
    for held in list(module.__dict__.values()):
        if (
            isinstance(held, type)
            and held.__module__ == module.__name__
            and any(hasattr(held, mark) for mark in marks)
        ):
            return held
    return None
