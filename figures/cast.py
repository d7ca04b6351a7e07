"""The picture in the README: the real demo, recorded in a terminal and drawn as an SVG that plays.

    python -m figures.cast [FILE]        (`make pictures`)

Never invents a line: it records what `hermes-supervise demo` prints, and when, up to the end of its
first part.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import tempfile
import termios
import time
from html import escape
from pathlib import Path

import pyte

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "demo.svg"
COLUMNS, ROWS = 104, 120
# Of a character and a line, in pixels.
_WIDE, _HIGH = 7.8, 18.0
_LEFT, _TOP = 18.0, 52.0
_COLOURS = {"red": "#f0766a", "green": "#6fcf97", "brown": "#e0b050", "yellow": "#e0b050",
            "cyan": "#7dd3e0", "blue": "#7db4ea", "magenta": "#b79be0"}  # fmt: skip
# Sequences that the emulator does not know, and would show in part.
_UNKNOWN = re.compile(rb"\x1b\[[<>][0-9;]*[a-z]")
_STYLE = """
text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;
fill:#e8e4dd;white-space:pre}
.bold{font-weight:700}.dim{fill:#8f897f}
.line{opacity:0;animation:appear .01s linear forwards}
.typed{animation:type steps(40,end) forwards}
@keyframes appear{to{opacity:1}}
@keyframes type{from{opacity:1;clip-path:inset(0 100% 0 0)}to{opacity:1;clip-path:inset(0 0 0 0)}}
@media (prefers-reduced-motion:reduce){.line{animation:none;opacity:1}}
"""


class Line:
    def __init__(self, began: float) -> None:
        self.began = began
        self.ended = began
        self.cells: list[tuple[str, str, bool]] = []


def record(command: list[str], env: dict[str, str]) -> list[Line]:
    """The lines that a command leaves on a terminal, and when each began and was complete."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, env)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    lines: dict[int, Line] = {}
    began = time.monotonic()
    while True:
        try:
            data = os.read(terminal, 4096)
        except OSError:  # nobody has the other side any more
            break
        if not data:
            break
        stream.feed(_UNKNOWN.sub(b"", data))
        at = time.monotonic() - began
        for row in sorted(screen.dirty):
            shown = screen.display[row].rstrip()
            line = lines.get(row)
            if shown and line is None:
                line = lines[row] = Line(at)
            if line is not None:
                line.ended = at
                cells = screen.buffer[row]
                line.cells = [
                    (cells[x].data, cells[x].fg, cells[x].bold) for x in range(len(shown))
                ]
        screen.dirty.clear()
    os.close(terminal)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != 0:
        raise SystemExit(f"{' '.join(command)} ended with {status}")
    last = max(lines, default=-1)
    return [lines.get(row) or Line(0.0) for row in range(last + 1)]


def first_part(lines: list[Line]) -> list[Line]:
    """Up to the second heading."""
    heads = [at for at, line in enumerate(lines) if text_of(line).startswith("=== ")]
    shown = lines[heads[0] : heads[1]]
    while shown and not shown[-1].cells:
        shown.pop()
    return shown


def text_of(line: Line) -> str:
    return "".join(character for character, _, _ in line.cells)


def draw(lines: list[Line]) -> str:
    wide = _LEFT * 2 + COLUMNS * _WIDE
    high = _TOP + len(lines) * _HIGH + 14
    start = min(line.began for line in lines if line.cells)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high:.0f}" '
        f'role="img" aria-label="hermes-supervise demo, in a terminal"><style>{_STYLE}</style>',
        f'<rect width="{wide:.0f}" height="{high:.0f}" rx="10" fill="#1b1a18"/>',
        *(f'<circle cx="{22 + 20 * n}" cy="20" r="6" fill="#4a463f"/>' for n in range(3)),
        f'<text x="{wide / 2:.0f}" y="25" text-anchor="middle" class="dim">make demo</text>',
    ]
    for number, line in enumerate(lines):
        if not line.cells:
            continue
        y = _TOP + number * _HIGH
        lasts = line.ended - line.began
        kind, delay = "line", f"animation-delay:{line.began - start + 0.4:.2f}s"
        if lasts > 0.25:
            kind, delay = "line typed", f"{delay};animation-duration:{lasts:.2f}s"
        parts.append(
            f'<text x="{_LEFT:.0f}" y="{y:.0f}" class="{kind}" style="{delay}" '
            f'xml:space="preserve">{_spans(line)}</text>'
        )
    return "\n".join(parts) + "\n</svg>\n"


def _spans(line: Line) -> str:
    spans: list[tuple[str, str, bool]] = []
    for character, colour, bold in line.cells:
        if spans and spans[-1][1:] == (colour, bold):
            spans[-1] = (spans[-1][0] + character, colour, bold)
        else:
            spans.append((character, colour, bold))
    return "".join(_span(*span) for span in spans)


def _span(text: str, colour: str, bold: bool) -> str:
    fill = f' fill="{_COLOURS[colour]}"' if colour in _COLOURS else ""
    weight = ' class="bold"' if bold else ""
    return f"<tspan{weight}{fill}>{escape(text)}</tspan>" if fill or weight else escape(text)


def words(picture: str) -> str:
    """The text of a picture, without what differs from one run to the next: numbers, where a line
    is broken, and whether a hook is already done."""
    plain = re.sub(r"<style>.*?</style>|<[^>]+>", "", picture, flags=re.S)
    return " ".join(re.sub(r"\d+", "0", plain).split()).replace("hook still running", "hook ran")


def main() -> None:
    goal = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    with tempfile.TemporaryDirectory() as home:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HERMES_", "XDG_"))}
        env = {**kept, "HOME": home, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
        env["XDG_RUNTIME_DIR"] = home
        env.pop("NO_COLOR", None)
        command = [sys.executable, "-m", "hermes_supervise.supervisor", "demo"]
        goal.write_text(draw(first_part(record(command, env))), encoding="utf-8")


if __name__ == "__main__":
    main()
