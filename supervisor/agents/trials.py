"""Files for an agent that `doctor --prove` starts in a home of its own."""

from __future__ import annotations

import json
import os


def write(home: str, name: str, content: object) -> None:
    """Write a settings file: a text as it is, anything else as JSON."""
    path = os.path.join(home, name)
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    with open(path, "x", encoding="utf-8") as file:
        file.write(content if isinstance(content, str) else json.dumps(content))
