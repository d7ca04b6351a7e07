"""What happened to a session, as one HTML page. Pure.

Never runs a script, never fetches anything, and never contains unescaped text. It is made for
browsers and phones, light and dark, and for paper.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

from ...recovery.report import SessionReport
from ...run import notice
from ..commands import show
from . import replicated, story
from .formatting import date_and_time, one_line, package_version, time_of_day
from .page_frame import closing, opening
from .page_frame import escaped as _text
from .story import Event

_LANE, _LEFT = 26.0, 8.0
# The drawing is made twice: its text must be readable on a phone as well, so it is not scaled down.
_WIDTHS = {"wide": 960.0, "narrow": 340.0}
_LETTER = 6.7
# Facts that are a path or a command, or end in one.
_CODE = ("resume it", "state.db")
_ENDS_IN_CODE = ("hooks", "left running")


def page(
    reports: list[SessionReport],
    session: dict[str, Any] | None,
    messages: list[dict[str, Any]],
    *,
    redacted: bool = False,
) -> str:
    last = reports[-1]
    title = one_line(str((session or {}).get("title") or last.session))
    parts = [opening(f"{title} \u2013 {last.outcome}")]
    for number in range(len(reports), 0, -1):
        which = f"End {number} of {len(reports)}" if len(reports) > 1 else ""
        parts.append(_death(reports[number - 1], title, messages, which))
    parts.append(_transcript(messages))
    footer = f"hermes-supervise {package_version()}, {date_and_time(time.time())}"
    footer += "; redacted: texts are left out" if redacted else ""
    parts.append(closing(footer))
    return "".join(parts)


# -- one death ---------------------------------------------------------------------------------


def _death(
    report: SessionReport, title: str, messages: list[dict[str, Any]], which: str = ""
) -> str:
    """`which`: the number of this death, if the session has several."""
    events = story.timeline(report, messages)
    kind = "bad" if report.outcome == "interrupted" else "good"
    when = f'<time datetime="{_iso(report.died_at)}">{_text(date_and_time(report.died_at))}</time>'
    no_reply = notice.missing_reply(report)
    parts = [
        f'<header class="{kind}"><p class="badge">{_text(_label(report.outcome))}</p>',
        f'<p class="which">{_text(which)}</p>' if which else "",
        f"<h1>{_text(title)}</h1>",
        f'<p class="cause">{_text(report.cause)}</p>',
        f'<p class="silence">{_text(no_reply)}</p>' if no_reply else "",
        f'<p class="when">{when}',
        f" &middot; <code>{_text(report.session)}</code></p></header>",
        _figures(report),
        "<section><h2>Timeline</h2>",
        *(_drawing(events, name, wide) for name, wide in _WIDTHS.items()),
        _steps(events),
        "</section>",
        _last_messages(report, messages),
        "<section><h2>Details</h2><dl>",
    ]
    facts = story.facts(report) + replicated.facts(report.stream)
    resume = notice.resume_command(report)
    if report.outcome == "interrupted" and resume:
        facts.append(("resume it", [resume]))
    facts.append(("state.db", [report.db]))
    for name, lines in facts:
        shown = "".join(_fact(name, line) for line in lines)
        parts.append(f"<div><dt>{_text(_label(name))}</dt><dd>{shown}</dd></div>")
    parts.append("</dl></section>")
    return "\n".join(parts)


def _label(name: str) -> str:
    """In one case, wherever it comes from. The name of a file stays as it is."""
    return name if name == "state.db" else name[:1].upper() + name[1:]


def _fact(name: str, line: str) -> str:
    if line.startswith(" "):
        return f'<p class="branch"><code>{_text(line)}</code></p>'
    if name in _CODE:
        return f"<p><code>{_text(line)}</code></p>"
    before, colon, command = line.partition(": ")
    if name in _ENDS_IN_CODE and colon:
        return f"<p>{_text(before)}: <code>{_text(command)}</code></p>"
    return f"<p>{_text(line)}</p>"


def _figures(report: SessionReport) -> str:
    """The numbers that people look for first."""
    counts = report.recovered
    counted = [
        (counts.messages, "Message recovered", "Messages recovered"),
        (counts.partial_characters, "Character of the reply in progress",
         "Characters of the reply in progress"),
        (counts.calls_unknown, "Tool call with unknown effect", "Tool calls with unknown effect"),
    ]  # fmt: skip
    shown = [(single if number == 1 else more, f"{number:,}") for number, single, more in counted]
    if report.launched and report.died_at >= report.launched:
        shown.append(("Run time", notice.duration(report.died_at - report.launched)))
    cells = "".join(f"<li><b>{_text(v)}</b><span>{_text(k)}</span></li>" for k, v in shown)
    return f'<ul class="figures">{cells}</ul>'


def _last_messages(report: SessionReport, messages: list[dict[str, Any]]) -> str:
    parts = []
    for heading, text in story.last_words(report, messages):
        parts.append(f"<figure><figcaption>{heading}</figcaption>{_quoted(text)}</figure>")
    for name, arguments in story.open_call(report, messages):
        call = f"<code>{_text(name)}</code>" + (
            f"<pre>{_text(arguments)}</pre>" if arguments else ""
        )
        caption = "Running tool call"
        parts.append(f"<figure><figcaption>{caption}</figcaption>{call}</figure>")
    if not parts:
        return ""
    return (
        '<section><h2>Just before the end</h2><div class="words">'
        + "".join(parts)
        + "</div></section>"
    )


def _quoted(text: str) -> str:
    cut = text if len(text) <= 1200 else text[:1200] + f"\u2026 ({len(text):,} characters in all)"
    return f"<blockquote>{_text(cut)}</blockquote>"


# -- the timeline ------------------------------------------------------------------------------


def _drawing(events: list[Event], name: str, wide: float) -> str:
    """Not to scale: long waits are drawn shorter, so that dense parts stay readable."""
    places = _places([event.at for event in events], wide)
    spans = [event for event in events if event.until is not None]
    lanes = {id(event): index for index, event in enumerate(spans[-6:])}
    height = 70 + _LANE * len(lanes)
    death = next((p for p, e in zip(places, events, strict=True) if e.kind == "death"), wide)
    parts = [
        f'<svg viewBox="0 0 {wide:.0f} {height:.0f}" role="img" '
        'aria-label="Timeline; the list below has the same content">',
        f'<rect class="after" x="{death:.1f}" y="8" width="{max(0.0, wide - death):.1f}" '
        f'height="{height - 16:.0f}"/>',
        f'<line class="axis" x1="{_LEFT}" y1="34" x2="{wide - _LEFT}" y2="34"/>',
    ]
    for place, event in zip(places, events, strict=True):
        kind, label = event.kind, _text(event.text)
        if id(event) in lanes:
            y = 58 + _LANE * lanes[id(event)]
            end = max(place + 4, _place_of(event.until or event.at, events, places))
            parts.append(
                f'<g class="{kind}"><rect x="{place:.1f}" y="{y - 8:.0f}" '
                f'width="{end - place:.1f}" '
                f'height="16" rx="4"><title>{label}</title></rect>'
                f"{_beside(place, end, y, event.text, wide if end >= death else death)}</g>"
            )
        if event.kind == "death":
            parts.append(
                f'<g class="death"><line x1="{place:.1f}" y1="8" x2="{place:.1f}" '
                f'y2="{height - 8:.0f}"/><path d="M{place - 6:.1f} 28l12 12m0 -12l-12 12"/>'
                f"<title>{label}</title></g>"
            )
        else:
            circle = f'<circle class="{kind}" cx="{place:.1f}" cy="34" r="6">'
            parts.append(f"{circle}<title>{label}</title></circle>")
    for place, event in zip(places, events, strict=True):
        if event.kind == "death" or event is events[0]:
            anchor = "end" if place > wide / 2 else "start"
            shift = -8 if place > wide / 2 else 8 if event.kind == "death" else 0
            moment = time.strftime("%H:%M:%S", time.localtime(event.at))
            parts.append(
                f'<text class="moment" x="{place + shift:.1f}" y="20" text-anchor="{anchor}">'
                f"{moment}</text>"
            )
    return f'<div class="drawing {name}">{"".join(parts)}</svg></div>'


def _beside(place: float, end: float, y: float, label: str, border: float) -> str:
    """A label next to its bar, on the side where it fits, or else on the one with more room, and
    cut to fit there. `border`: what it does not cross on the right."""
    before, after = (int(space / _LETTER) for space in (place - 16, border - end - 16))
    right = after >= len(label) or after >= before
    room = after if right else before
    shown = _text(label if len(label) <= room else label[: max(1, room - 1)] + "\u2026")
    if right:
        return f'<text x="{end + 8:.1f}" y="{y + 4:.0f}">{shown}</text>'
    return f'<text x="{place - 8:.1f}" y="{y + 4:.0f}" text-anchor="end">{shown}</text>'


def _places(moments: list[float], wide: float) -> list[float]:
    """The position of each moment. The width of a gap is its length to the power of 0.4."""
    gaps = [max(0.0, later - at) for at, later in pairwise(moments)]
    widths = [0.35 + gap**0.4 for gap in gaps]
    whole = sum(widths) or 1.0
    room, left, places = wide - 4 * _LEFT, 2 * _LEFT, [2 * _LEFT]
    for width in widths:
        left += width / whole * room
        places.append(left)
    return places[: len(moments)]


def _place_of(at: float, events: list[Event], places: list[float]) -> float:
    """The position of any moment: that of the next event."""
    for event, place in zip(events, places, strict=True):
        if event.at >= at:
            return place
    return places[-1]


def _steps(events: list[Event]) -> str:
    parts, before = ['<ol class="steps">'], None
    for event in events:
        at = time_of_day(event.at)
        step = "" if before is None else f"+{notice.duration(event.at - before)}"
        before = event.at
        length = "" if event.until is None else f" ({notice.duration(event.until - event.at)})"
        parts.append(
            f'<li class="{event.kind}"><time datetime="{_iso(event.at)}">{at}</time>'
            f'<span class="step">{_text(step)}</span>'
            f"<span>{_with_code(event)}{_text(length)}</span></li>"
        )
    return "".join(parts) + "</ol>"


def _with_code(event: Event) -> str:
    text = one_line(event.text)
    if not event.command:
        return _text(text)
    before, command, after = text.partition(event.command)
    return f"{_text(before)}<code>{_text(command)}</code>{_text(after)}"


def _iso(at: float) -> str:
    seconds, milliseconds = divmod(round(at * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{milliseconds:03d}Z"


# -- the transcript ----------------------------------------------------------------------------


def _transcript(messages: list[dict[str, Any]]) -> str:
    if not messages:
        return "<section><h2>Transcript</h2><p>No messages to show.</p></section>"
    parts = ["<section><h2>Transcript</h2>"]
    for message in messages:
        role = str(message.get("role"))
        marks = [message.get("finish_reason"), message.get("effect_disposition")]
        shown = [str(mark) for mark in marks if mark and mark != "stop"]
        kind = role if role in ("user", "assistant", "tool", "system") else "other"
        at = message.get("timestamp")
        when = date_and_time(at) if isinstance(at, int | float) and 0 < at < 1e11 else ""
        badges = "".join(f'<em class="mark">{_text(_label(mark))}</em>' for mark in shown)
        content = "".join(f"<pre>{_text(text)}</pre>" for text in show.texts(message))
        parts.append(
            f'<article class="{kind}"><h3>{_text(_label(role))}{badges}'
            f"<time>{_text(when)}</time></h3>{content}</article>"
        )
    return "\n".join(parts) + "</section>\n"
