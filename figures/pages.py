"""A page of the docs with a part that a program writes: between two marks, and nowhere else.

Pure. Used by the bench, the torture campaign, the kill-point sweep, the matrix of Hermes' releases
and the table of settings. For each of them a test renders the part anew and compares.
"""

from __future__ import annotations


def with_part(page: str, begin: str, end: str, part: str) -> str:
    """The page with `part`, which ends with a newline, between its two marks."""
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{part}{end}{after}"
