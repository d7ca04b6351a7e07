"""What every HTML page of ours begins and ends with. Pure.

Never runs a script, never fetches anything, and never contains unescaped text.
"""

from __future__ import annotations

from html import escape

from .page_style import STYLE

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
_FOOT = """<footer>{text}</footer>
</main>
</body>
</html>
"""


def opening(title: str) -> str:
    return _HEAD.format(title=escaped(title), style=STYLE)


def closing(text: str) -> str:
    return _FOOT.format(text=escaped(text))


def escaped(text: object) -> str:
    """Escaped, and without characters that would hide text or change its direction."""
    from ...model.text import printable  # start-up: only for some pages

    return escape(printable(str(text)), quote=True)
