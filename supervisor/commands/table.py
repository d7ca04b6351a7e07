"""Tables for a terminal: aligned, no wider than it is, one row below the other where it is narrow.

Never cuts anything where nobody looks (`width` is None), and never trusts `len`: what a character
takes on a terminal is none, one or two columns.
"""

from __future__ import annotations

from unicodedata import category, east_asian_width

from ..plain import dataclass, field
from .paint import Paint

_GAP = "  "
_ELLIPSIS = "\u2026"
# What is to be typed is in this colour, and never folded.
COMMAND = "cyan"


@dataclass
class Column:
    title: str
    least: int = 0
    """How narrow it may become where there is little room; 0: not at all."""
    right: bool = False


@dataclass
class Row:
    cells: list[str]
    styles: dict[int, str] = field(default_factory=dict)
    """Column to colour."""
    notes: list[tuple[str, str]] = field(default_factory=list)
    """Lines below it, each with its colour: folded where they are too long, unless they are to be
    typed."""


def measure(text: str) -> int:
    """Columns that a text takes."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def _columns(character: str) -> int:
    if category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if east_asian_width(character) in ("W", "F") else 1


def cut(text: str, width: int | None) -> str:
    """No wider than `width`; an ellipsis says that there was more."""
    if width is None or measure(text) <= width:
        return text
    kept, used = "", 0
    for character in text:
        used += _columns(character)
        if used > width - 1:
            break
        kept += character
    return kept.rstrip() + _ELLIPSIS if width > 0 else ""


def fold(text: str, width: int | None, indent: str = "") -> list[str]:
    """Broken at blanks so that it fits, each line but the first behind `indent`."""
    if width is None or measure(text) <= width:
        return [text]
    lines, line = [], ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line.strip() else line + word
        if line.strip() and measure(longer) > width:
            lines.append(line)
            line = indent + word
        else:
            line = longer
    return [*lines, line]


def render(columns: list[Column], rows: list[Row], paint: Paint) -> list[str]:
    """Lines without a trailing blank. An empty column has no place in it."""
    used = [i for i in range(len(columns)) if any(row.cells[i] for row in rows)]
    widths = {
        i: max(measure(columns[i].title), *(measure(row.cells[i]) for row in rows)) for i in used
    }
    if paint.width is not None and not _fit(columns, widths, paint.width):
        return _stacked([columns[i] for i in used], used, rows, paint)
    lines = [_line(columns, widths, [column.title for column in columns], {}, paint, "dim")]
    for row in rows:
        lines.append(_line(columns, widths, row.cells, row.styles, paint))
        lines += _notes(row, paint)
    return lines


def _notes(row: Row, paint: Paint) -> list[str]:
    room = None if paint.width is None else paint.width - len(_GAP)
    return [
        _GAP + paint(line, style)
        for note, style in row.notes
        for line in (fold(note, room, _GAP) if style != COMMAND else [note])
    ]


def _fit(columns: list[Column], widths: dict[int, int], room: int) -> bool:
    """Narrow the widest column that may be narrowed until all fit; False if they cannot."""
    while sum(widths.values()) + len(_GAP) * (len(widths) - 1) > room:
        able = [i for i, width in widths.items() if 0 < columns[i].least < width]
        if not able:
            return False
        widths[max(able, key=lambda i: widths[i] - columns[i].least)] -= 1
    return True


def _line(
    columns: list[Column],
    widths: dict[int, int],
    cells: list[str],
    styles: dict[int, str],
    paint: Paint,
    style: str = "",
) -> str:
    line, owed = "", ""
    for i, width in widths.items():
        text = cut(cells[i], width)
        blank = " " * (width - measure(text))
        painted = paint(text, styles.get(i, style))
        line += owed + (blank + painted if columns[i].right else painted)
        owed = ("" if columns[i].right else blank) + _GAP
    return line.rstrip()


def _stacked(columns: list[Column], places: list[int], rows: list[Row], paint: Paint) -> list[str]:
    """For a narrow terminal: the first cell as a heading, the others by name below it."""
    lines = []
    title = max((measure(column.title) for column in columns[1:]), default=0)
    room = None if paint.width is None else paint.width - title - 2 * len(_GAP)
    for row in rows:
        first = cut(row.cells[places[0]], paint.width)
        lines.append(paint(first, row.styles.get(places[0], "") or "bold"))
        for column, i in zip(columns[1:], places[1:], strict=True):
            if row.cells[i]:
                name = column.title.lower() + " " * (title - measure(column.title))
                text = paint(cut(row.cells[i], room), row.styles.get(i, ""))
                lines.append(_GAP + paint(name, "dim") + _GAP + text)
        lines += _notes(row, paint)
    return lines
