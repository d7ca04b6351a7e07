"""The story of a death as one page of HTML. Pure.

Never runs a script, never fetches anything, and lets no text through that is not escaped. It is
read in a browser, on a phone, in the dark and on paper.
"""

from __future__ import annotations

import time
from html import escape
from itertools import pairwise
from typing import Any

from .. import notice
from ..recovery.report import Settled
from . import show, story
from .page_style import STYLE
from .story import Event
from .words import clock, one_line

_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
"""
_FOOT = """<footer>{made}</footer>
</main>
</body>
</html>
"""
_WIDE, _LANE, _LEFT = 960.0, 26.0, 8.0
_NAMES = {"it was": "It was", "silence": "Silence", "agent": "Agent", "memory": "Memory",
          "recovered": "Recovered", "not recovered": "Not recovered", "hooks": "Hooks",
          "left running": "Left running"}  # fmt: skip


def page(
    found: list[Settled],
    session: dict[str, Any] | None,
    messages: list[dict[str, Any]],
    *,
    redacted: bool = False,
) -> str:
    last = found[-1]
    title = one_line(str((session or {}).get("title") or last.session))
    parts = [_HEAD.format(title=_text(f"{title} \u2013 {last.outcome}"), style=STYLE)]
    for one in reversed(found):
        parts.append(_death(one, title, messages))
    parts.append(_transcript(messages))
    made = f"hermes-supervise, {clock(time.time())}"
    made += "; redacted: what was said is left out" if redacted else ""
    parts.append(_FOOT.format(made=_text(made)))
    return "".join(parts)


def _text(text: object) -> str:
    """Escaped, and without what would turn the direction of what follows or hide it."""
    from ..text import printable

    return escape(printable(str(text)), quote=True)


# -- one death ---------------------------------------------------------------------------------


def _death(one: Settled, title: str, messages: list[dict[str, Any]]) -> str:
    events = story.timeline(one, messages)
    kind = "bad" if one.outcome == "interrupted" else "good"
    parts = [
        f'<header class="{kind}"><p class="badge">{_text(one.outcome)}</p>',
        f"<h1>{_text(title)}</h1>",
        f'<p class="cause">{_text(one.cause)}</p>',
        *([f'<p class="silence">{_text(quiet)}</p>'] if (quiet := notice.silence(one)) else []),
        f'<p class="when"><time datetime="{_iso(one.died_at)}">{_text(clock(one.died_at))}</time>',
        f" &middot; <code>{_text(one.session)}</code></p></header>",
        _figures(one),
        "<section><h2>Timeline</h2>",
        _drawing(events),
        _steps(events),
        "</section>",
        _last_words(one, messages),
        "<section><h2>What is known</h2><dl>",
    ]
    facts = story.facts(one)
    if one.outcome == "interrupted" and one.resume:
        facts.append(("resume", [one.resume]))
    facts.append(("state.db", [one.db]))
    for name, lines in facts:
        shown = "".join(_fact(line) for line in lines)
        parts.append(f"<div><dt>{_text(_NAMES.get(name, name))}</dt><dd>{shown}</dd></div>")
    parts.append("</dl></section>")
    return "\n".join(parts)


def _fact(line: str) -> str:
    opening = '<p class="branch">' if line.startswith(" ") else "<p>"
    return f"{opening}{_text(line)}</p>"


def _figures(one: Settled) -> str:
    """The few numbers that are looked for first."""
    counts = one.recovered
    shown = [
        ("messages recovered", f"{counts.messages:,}"),
        ("characters of the reply in progress", f"{counts.partial_characters:,}"),
        ("tool calls of unknown effect", f"{counts.calls_unknown:,}"),
    ]
    if one.launched and one.died_at >= one.launched:
        shown.append(("from launch to death", notice.duration(one.died_at - one.launched)))
    cells = "".join(f"<li><b>{_text(v)}</b><span>{_text(k)}</span></li>" for k, v in shown)
    return f'<ul class="figures">{cells}</ul>'


def _last_words(one: Settled, messages: list[dict[str, Any]]) -> str:
    parts = []
    for heading, role in (("The user's last words", "user"), ("Its last words", "assistant")):
        said = story.last_words(one, messages, role)
        if said is not None:
            parts.append(f"<figure><figcaption>{heading}</figcaption>{_quoted(said)}</figure>")
    for name, arguments in story.open_call(one, messages):
        call = f"<code>{_text(name)}</code>" + (
            f"<pre>{_text(arguments)}</pre>" if arguments else ""
        )
        caption = "The call that was running"
        parts.append(f"<figure><figcaption>{caption}</figcaption>{call}</figure>")
    if not parts:
        return ""
    return '<section><h2>At the end</h2><div class="words">' + "".join(parts) + "</div></section>"


def _quoted(text: str) -> str:
    cut = text if len(text) <= 1200 else text[:1200] + f"\u2026 ({len(text):,} characters in all)"
    return f"<blockquote>{_text(cut)}</blockquote>"


# -- the timeline ------------------------------------------------------------------------------


def _drawing(events: list[Event]) -> str:
    """To scale, but for long waits, which are drawn shorter: what was dense stays readable."""
    places = _places([event.at for event in events])
    spans = [event for event in events if event.until is not None]
    lanes = {id(event): index for index, event in enumerate(spans[-6:])}
    height = 70 + _LANE * len(lanes)
    death = next((p for p, e in zip(places, events, strict=True) if e.kind == "death"), _WIDE)
    parts = [
        f'<svg viewBox="0 0 {_WIDE:.0f} {height:.0f}" role="img" '
        'aria-label="The timeline, drawn; the list below says the same">',
        f'<rect class="after" x="{death:.1f}" y="8" width="{max(0.0, _WIDE - death):.1f}" '
        f'height="{height - 16:.0f}"/>',
        f'<line class="axis" x1="{_LEFT}" y1="34" x2="{_WIDE - _LEFT}" y2="34"/>',
    ]
    for place, event in zip(places, events, strict=True):
        kind, label = event.kind, _text(event.text)
        if id(event) in lanes:
            y = 58 + _LANE * lanes[id(event)]
            end = _place_of(event.until or event.at, events, places)
            wide = max(4.0, end - place)
            parts.append(
                f'<g class="{kind}"><rect x="{place:.1f}" y="{y - 8:.0f}" width="{wide:.1f}" '
                f'height="16" rx="4"><title>{label}</title></rect>'
                f"{_beside(place, wide, y, label)}</g>"
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
            anchor = "end" if place > _WIDE / 2 else "start"
            shift = -8 if place > _WIDE / 2 else 8 if event.kind == "death" else 0
            moment = time.strftime("%H:%M:%S", time.localtime(event.at))
            parts.append(
                f'<text class="moment" x="{place + shift:.1f}" y="20" text-anchor="{anchor}">'
                f"{moment}</text>"
            )
    return f'<div class="drawing">{"".join(parts)}</svg></div>'


def _beside(place: float, wide: float, y: float, label: str) -> str:
    """A bar's label, on the side where there is room."""
    if place + wide < _WIDE * 0.6:
        return f'<text x="{place + wide + 8:.1f}" y="{y + 4:.0f}">{label}</text>'
    return f'<text x="{place - 8:.1f}" y="{y + 4:.0f}" text-anchor="end">{label}</text>'


def _places(moments: list[float]) -> list[float]:
    """Where each moment is drawn: a gap is as wide as its length to the power of 0.4."""
    gaps = [max(0.0, later - at) for at, later in pairwise(moments)]
    widths = [0.35 + gap**0.4 for gap in gaps]
    whole = sum(widths) or 1.0
    room, left, places = _WIDE - 4 * _LEFT, 2 * _LEFT, [2 * _LEFT]
    for width in widths:
        left += width / whole * room
        places.append(left)
    return places[: len(moments)]


def _place_of(at: float, events: list[Event], places: list[float]) -> float:
    """Of any moment, between the two events that it is between."""
    for event, place in zip(events, places, strict=True):
        if event.at >= at:
            return place
    return places[-1]


def _steps(events: list[Event]) -> str:
    parts, before = ['<ol class="steps">'], None
    for event in events:
        at = time.strftime("%H:%M:%S", time.localtime(event.at)) + f"{event.at % 1:.3f}"[1:5]
        step = "" if before is None else f"+{notice.duration(event.at - before)}"
        before = event.at
        length = "" if event.until is None else f" ({notice.duration(event.until - event.at)})"
        parts.append(
            f'<li class="{event.kind}"><time datetime="{_iso(event.at)}">{at}</time>'
            f'<span class="step">{_text(step)}</span>'
            f"<span>{_text(one_line(event.text))}{_text(length)}</span></li>"
        )
    return "".join(parts) + "</ol>"


def _iso(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f"{at % 1:.3f}"[1:5] + "Z"


# -- the transcript ----------------------------------------------------------------------------


def _transcript(messages: list[dict[str, Any]]) -> str:
    if not messages:
        return "<section><h2>Transcript</h2><p>There is none to read.</p></section>"
    parts = ["<section><h2>Transcript</h2>"]
    for message in messages:
        role = str(message.get("role"))
        marks = [message.get("finish_reason"), message.get("effect_disposition")]
        told = [str(mark) for mark in marks if mark and mark != "stop"]
        kind = role if role in ("user", "assistant", "tool", "system") else "other"
        at = message.get("timestamp")
        when = clock(at) if isinstance(at, int | float) and 0 < at < 1e11 else ""
        badges = "".join(f'<em class="mark">{_text(mark)}</em>' for mark in told)
        said = "".join(f"<pre>{_text(text)}</pre>" for text in show.texts(message))
        parts.append(
            f'<article class="{kind}"><h3>{_text(role)}{badges}<time>{_text(when)}</time></h3>'
            f"{said}</article>"
        )
    return "\n".join(parts) + "</section>\n"
