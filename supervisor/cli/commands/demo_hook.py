"""The demo's hook: writes down how it was called."""

from __future__ import annotations

import json
import sys


def main() -> None:
    event = json.load(sys.stdin)
    extra = event["extra"]
    with open(sys.argv[1], "a", encoding="utf-8") as file:
        file.write(
            f"{event['hook_event_name']}(session_id={event['session_id']!r},\n"
            f"    completed={extra['completed']}, interrupted={extra['interrupted']},\n"
            f"    model={extra['model']!r}, reason={extra['reason']!r})\n"
        )


if __name__ == "__main__":
    main()
