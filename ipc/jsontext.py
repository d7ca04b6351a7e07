"""The name of `lightweight.json` in 0.1.0.

A process that was started before an upgrade may import it late.
"""

from __future__ import annotations

from .lightweight.json import compact, dumps, loads, quoted

__all__ = ["compact", "dumps", "loads", "quoted"]
