"""What the campaign finds: a difference between what must be there and what is."""

from __future__ import annotations

from dataclasses import dataclass

CATEGORIES = ("lost", "duplicated", "misordered", "misreported")


@dataclass
class Violation(Exception):
    category: str
    text: str
