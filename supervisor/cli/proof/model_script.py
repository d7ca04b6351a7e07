"""What the scripted model says, and when it waits.

The last line of the last user message is the script:

    WORDS n           n words, w000 to wNNN, one piece each, in lines of ten
    CALL command      a call of the agent's shell tool, then, with its result, the word "done"
    anything else     "ok": agents also ask for titles and the like

After `held_at` words the stream waits until somebody opens the gate, so that the agent can be
killed at a place that is known, without a clock.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator

WORD = re.compile(r"w\d{3}")


def words(count: int) -> Iterator[str]:
    for number in range(count):
        yield f"w{number:03d}" + ("\n\n" if number % 10 == 9 else " ")


class Script:
    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.held_at = 10**9
        self.pace = 0.02
        self.thought = ""
        """What it thinks before it speaks, in the APIs that show it."""
        self.preface = ""
        """What it says before it calls a tool, in the same."""
        self.delay = 0.0
        """Seconds until the first word of a reply."""
        self.only_with_tools = False
        """A request without tools is for a title or the like, and gets "ok"."""
        self.sent = 0
        """Of the reply that spoke last."""
        self.spoken = 0
        """Of all."""
        self._stopped = False

    def hold_after(self, count: int) -> None:
        """Stop streaming after so many words until `gate` is set; after -1, before it answers."""
        self.held_at = count
        self.gate.clear()

    def go_on_until(self, count: int) -> None:
        """Let what is held go on, and hold it again after so many words."""
        self.held_at = count
        self.gate.set()
        self.gate.clear()

    def stop(self) -> None:
        """Say nothing more."""
        self._stopped = True
        self.gate.set()

    def pieces(self, text: str) -> Iterator[str]:
        """A reply, piece by piece, as the script asks."""
        found = re.search(r"WORDS (\d+)", text)
        if found is None:
            yield "ok"
            return
        time.sleep(self.delay)
        for number, word in enumerate(words(int(found[1]))):
            if number == self.held_at:
                self.gate.wait(120)
            if self._stopped:
                return
            time.sleep(self.pace)
            self.sent = number + 1
            self.spoken += 1
            yield word
