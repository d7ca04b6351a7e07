"""Notices of changes in folders. Everything that uses watchdog is here.

Not to be relied on alone: whoever is woken looks at the files, and at all of them from time to
time. Where the kernel gives no notices (no inotify, or none left), the folders are scanned once a
second instead.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Any

from watchdog.events import (
    DirCreatedEvent,
    FileCreatedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.polling import PollingObserver

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# Not that a file was opened or read: we do that ourselves.
_EVENTS: list[type[FileSystemEvent]] = [
    DirCreatedEvent, FileCreatedEvent, FileModifiedEvent, FileMovedEvent
]  # fmt: skip


class Changes(FileSystemEventHandler):
    """Lives as long as its process: its threads are never joined."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._watched: dict[str, bool] = {}
        self._observer: Any = None
        self._changed: deque[str] = deque()  # written by another thread

    def watch(self, places: list[str]) -> bool:
        """Watch the places that exist, a file by way of its folder. True if all of them exist."""
        complete = True
        for place in places:
            folder = place if os.path.isdir(place) else os.path.dirname(place)
            deep = folder == place
            if not os.path.isdir(folder):
                complete = False
            elif folder not in self._watched or (deep and not self._watched[folder]):
                self._watched[folder] = deep
                self._schedule(folder, deep)
        return complete

    def take(self) -> set[str]:
        """The paths that have changed since the last call."""
        return {self._changed.popleft() for _ in range(len(self._changed))}

    def _schedule(self, folder: str, deep: bool) -> None:
        try:
            if self._observer is None:
                self._observer = Observer()
                self._observer.start()
            self._observer.schedule(self, folder, recursive=deep, event_filter=_EVENTS)
        except OSError:
            if self._observer is not None:
                self._observer.stop()
            self._observer = PollingObserver(timeout=1.0)
            self._observer.start()
            for watched, below in self._watched.items():
                self._observer.schedule(self, watched, recursive=below, event_filter=_EVENTS)

    def on_any_event(self, event: FileSystemEvent) -> None:
        self._changed.extend(
            os.fsdecode(path) for path in (event.src_path, event.dest_path) if path
        )
        self._wake()
