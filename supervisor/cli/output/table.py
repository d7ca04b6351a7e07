"""Tables that fit the terminal: aligned columns, or one cell below the other if it is narrow.

Never cuts anything if the output is not a terminal (`width` is None). Never uses `len` for widths:
a character takes zero, one or two columns.
"""

from __future__ import annotations

from unicodedata import category, east_asian_width

from ....ipc.lightweight.dataclass import dataclass, field
from .style import Style

_GAP = "  "
_ELLIPSIS = "\u2026"
# The style of a command that people may copy. It is never folded.
COMMAND = "cyan"


@dataclass
class Column:
    title: str
    least: int = 0
    """The smallest width if there is little room; 0: it is never narrowed."""
    right: bool = False


@dataclass
class Row:
    cells: list[str]
    styles: dict[int, str] = field(default_factory=dict)
    """Column number to style."""
    notes: list[tuple[str, str]] = field(default_factory=list)
    """Lines below it, each with its style. Long lines are folded, except commands."""


def measure(text: str) -> int:
    """How many columns a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def _columns(character: str) -> int:
    if category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if east_asian_width(character) in ("W", "F") else 1


def cut(text: str, width: int | None) -> str:
    """At most `width` columns; an ellipsis shows that something was cut."""
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
    """Broken at spaces so that it fits; every line after the first starts with `indent`."""
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


def fill(mark: str, parts: list[str], width: int | None) -> list[str]:
    """The parts behind a mark, as many on a line as fit. A part that is wider than a line is
    cut."""
    begin = f"{mark} "
    room = None if width is None else width - measure(begin)
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]}{_GAP}{part}" if lines else part
        if lines and (room is None or measure(longer) <= room):
            lines[-1] = longer
        else:
            lines.append(cut(part, room))
    indent = " " * measure(begin)
    return [(indent if i else begin) + line for i, line in enumerate(lines)]


def room_for_notes(style: Style) -> int | None:
    return None if style.width is None else style.width - len(_GAP)


def render(columns: list[Column], rows: list[Row], style: Style) -> list[str]:
    """The lines of a table, without trailing spaces. Empty columns are left out."""
    used = [i for i in range(len(columns)) if any(row.cells[i] for row in rows)]
    widths = {
        i: max(measure(columns[i].title), *(measure(row.cells[i]) for row in rows)) for i in used
    }
    if style.width is not None and not _fit(columns, widths, style.width):
        return _stacked([columns[i] for i in used], used, rows, style)
    lines = [_line(columns, widths, [column.title for column in columns], {}, style, "dim")]
    for row in rows:
        lines.append(_line(columns, widths, row.cells, row.styles, style))
        lines += _notes(row, style)
    return lines


def _notes(row: Row, style: Style) -> list[str]:
    room = room_for_notes(style)
    return [
        _GAP + style(line, name)
        for note, name in row.notes
        for line in (fold(note, room, _GAP) if name != COMMAND else [note])
    ]


def _fit(columns: list[Column], widths: dict[int, int], room: int) -> bool:
    """Narrow the widest columns until all fit. False if they cannot."""
    while sum(widths.values()) + len(_GAP) * (len(widths) - 1) > room:
        narrowable = [i for i, width in widths.items() if 0 < columns[i].least < width]
        if not narrowable:
            return False
        widths[max(narrowable, key=lambda i: widths[i] - columns[i].least)] -= 1
    return True


def _line(
    columns: list[Column],
    widths: dict[int, int],
    cells: list[str],
    styles: dict[int, str],
    style: Style,
    default: str = "",
) -> str:
    line, padding = "", ""
    for i, width in widths.items():
        text = cut(cells[i], width)
        blank = " " * (width - measure(text))
        styled = style(text, styles.get(i, default))
        line += padding + (blank + styled if columns[i].right else styled)
        padding = ("" if columns[i].right else blank) + _GAP
    return line.rstrip()


def _stacked(columns: list[Column], places: list[int], rows: list[Row], style: Style) -> list[str]:
    """For a narrow terminal: the first cell is a heading, the others follow with their titles."""
    lines = []
    title = max((measure(column.title) for column in columns[1:]), default=0)
    room = None if style.width is None else style.width - title - 2 * len(_GAP)
    for row in rows:
        first = cut(row.cells[places[0]], style.width)
        lines.append(style(first, row.styles.get(places[0], "") or "bold"))
        for column, i in zip(columns[1:], places[1:], strict=True):
            if row.cells[i]:
                name = column.title.lower() + " " * (title - measure(column.title))
                text = style(cut(row.cells[i], room), row.styles.get(i, ""))
                lines.append(_GAP + style(name, "dim") + _GAP + text)
        lines += _notes(row, style)
    return lines
