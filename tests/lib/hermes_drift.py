"""Installed releases of Hermes, rebuilt into shapes that others have or are likely to have.

A shape is a copy of Hermes' own modules, in front of the installed ones: of most files a link,
of those that the shape changes a new one.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import ClassVar

from hermes_world import Hermes

# Which of Hermes' classes are rebuilt, and the module that has each.
CLASSES = {
    "AIAgent": "run_agent.py",
    "SessionDB": "hermes_state.py",
    "PluginManager": "hermes_cli/plugins.py",
}

# Appended to a class' module. `methods` are what the class itself defines, by name.
_REBUILD = """

def _rebuild(cls):
    import types
    methods = {name: held for name, held in vars(cls).items()
               if isinstance(held, types.FunctionType) and not name.startswith("__")}
    rest = {name: held for name, held in vars(cls).items()
            if name not in methods and name not in ("__dict__", "__weakref__")}
BODY

NAME = _rebuild(NAME)
"""
_BODIES = {
    # 0.21: every method in a mixin of another module.
    "mixins": """
    first = dict(list(methods.items())[::2])
    second = dict(list(methods.items())[1::2])
    one = type("FirstMixin", (), first)
    two = type("SecondMixin", (), second)
    return type(cls)(cls.__name__, (one, two), rest)
""",
    # 0.21's `_forward`: a function that looks its target up at each call.
    "forwarders": """
    def forward(name):
        def forwarder(self, *args, **named):
            return methods[name](self, *args, **named)
        return forwarder
    return type(cls)(cls.__name__, (), {**rest, **{name: forward(name) for name in methods}})
""",
    # A facade that has nothing of its own and asks another object for all.
    "lazy attributes": """
    import functools
    def __getattr__(self, name):
        if name in methods:
            return functools.partial(methods[name], self)
        if older is not None:
            return older(self, name)
        raise AttributeError(name)
    older = rest.get("__getattr__")
    return type(cls)(cls.__name__, (), {**rest, "__getattr__": __getattr__})
""",
}
# 0.20: a turn's messages are stored together, at the end of a flush. Of a long list in parts.
_BATCH = {
    "SessionDB": """

def _store_in_batches(cls):
    append_one = cls.append_message

    def append_message(self, session_id, role, *args, **named):
        flushing = self.__dict__.get("_flushing")
        if flushing is None:
            return append_one(self, session_id, role, *args, **named)
        names = ("content", "tool_name", "tool_calls", "tool_call_id")
        flushing.append((session_id, {"role": role, **dict(zip(names, args)), **named}))

    def append_messages_batch(self, session_id, messages, chunk_rows=None):
        if chunk_rows is not None and len(messages) > chunk_rows:
            return sum(self.append_messages_batch(session_id, messages[at : at + chunk_rows])
                       for at in range(0, len(messages), chunk_rows))
        for row in messages:
            row["_row_id"] = append_one(self, session_id, **row)
        return len(messages)

    cls.append_message, cls.append_messages_batch = append_message, append_messages_batch

_store_in_batches(SessionDB)
""",
    "AIAgent": """

def _flush_in_batches(cls):
    flush = cls._flush_messages_to_session_db

    def _flush_messages_to_session_db(self, *args, **named):
        db = self._session_db
        if db is None:
            return flush(self, *args, **named)
        db._flushing = []
        try:
            return flush(self, *args, **named)
        finally:
            rows, db._flushing = db._flushing, None
            if rows:
                db.append_messages_batch(
                    session_id=rows[0][0], messages=[row for _, row in rows], chunk_rows=2)

    cls._flush_messages_to_session_db = _flush_messages_to_session_db

_flush_in_batches(AIAgent)
""",
}
# A turn is a coroutine function: whoever calls it awaits it.
_ASYNC = {
    "AIAgent": """

def _as_coroutine(cls):
    import asyncio
    run = cls.run_conversation

    async def run_conversation(self, *args, **named):
        return await asyncio.to_thread(run, self, *args, **named)

    cls.run_conversation = run_conversation

_as_coroutine(AIAgent)
"""
}
_APPENDED = {"batch": _BATCH, "async": _ASYNC}
SHAPES = (*_BODIES, *_APPENDED)


class Drifted(Hermes):
    """A release in another shape."""

    def adapted(self, source: str) -> str:
        """A program that uses it, in its own words."""
        return self._words.sub(lambda found: self._rename[found[0]], source)

    @property
    def renamed_names(self) -> list[str]:
        return list(self._rename)

    _rename: ClassVar[dict[str, str]] = {}
    _words = re.compile(r"(?!)")

    def take(self, shape: str = "", *, rename: dict[str, str] | None = None) -> None:
        """Rebuild it. `rename` gives every word of Hermes' source that is another one here."""
        folder = self.world.folder / "drift"
        _links(self._site(), folder)
        for name, file in CLASSES.items():
            source = _APPENDED.get(shape, {}).get(name, "")
            if shape in _BODIES:
                source = _REBUILD.replace("BODY", _BODIES[shape].strip("\n"))
                source = source.replace("NAME", name)
            if source:
                _write(folder / file, (folder / file).read_text() + source)
        if rename:
            self._rename = rename  # type: ignore[misc]
            self._words = re.compile(r"\b(" + "|".join(map(re.escape, rename)) + r")\b")
            for path in sorted(folder.rglob("*.py")):
                text = path.read_text(errors="surrogateescape")
                changed = self.adapted(text)
                if changed != text:
                    _write(path, changed)
        self.world.env["PYTHONPATH"] = str(folder)

    def _site(self) -> Path:
        [site] = self.folder.glob("lib/python3*/site-packages")
        return site


def _links(site: Path, folder: Path) -> None:
    [listed] = site.glob("hermes_agent-*.dist-info/top_level.txt")
    for name in listed.read_text().split():
        if (site / f"{name}.py").exists():
            _link(site / f"{name}.py", folder / f"{name}.py")
        for inside, _, files in os.walk(site / name):
            for file in files:
                path = Path(inside) / file
                _link(path, folder / path.relative_to(site))


def _link(path: Path, link: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(path)


def _write(path: Path, text: str) -> None:
    """In place of a link, never through it. What was compiled of the other file is not ours."""
    path.unlink()
    path.write_text(text, errors="surrogateescape")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


# Every name of Hermes' that the adapter taps, but those of what it may do without.
TAPPED = (
    "run_conversation", "_execute_tool_calls", "_invoke_tool", "_compress_context",
    "_fire_stream_delta", "_fire_reasoning_delta", "_reset_stream_delivery_tracking",
    "_persist_session", "_flush_messages_to_session_db", "append_message",
    "create_session", "replace_messages", "end_session", "invoke_hook",
)  # fmt: skip
ALL = (
    *TAPPED, "clear_messages", "reopen_session", "archive_and_compact", "rewind_to_message",
    "restore_rewound", "_insert_message_rows", "AIAgent", "SessionDB", "PluginManager",
    "_session_db", "_db_persisted", "_is_ephemeral_scaffolding",
)  # fmt: skip


def renamed(names: tuple[str, ...]) -> dict[str, str]:
    return {name: f"{name}_as_it_is_called_later" for name in names}
