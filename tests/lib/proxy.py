"""A TCP proxy on loopback before a real server: it delays, stalls or cuts what passes it."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any

import psycopg
from postgres import Postgres


class Proxy:
    """Passes everything on, until it is told otherwise. To a client, a proxy that stalls is a
    server that takes what is sent, and never answers."""

    def __init__(self, postgres: Postgres, database: str) -> None:
        settings = psycopg.conninfo.conninfo_to_dict(postgres.url(database))
        self._server = os.path.join(str(settings["host"]), ".s.PGSQL.5432")
        self._listener = socket.socket()
        # What is delayed waits with whoever sent it.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        port = self._listener.getsockname()[1]
        self.url = f"host=127.0.0.1 port={port} user=postgres dbname={database} sslmode=disable"
        self._goes_on = threading.Event()
        self._goes_on.set()
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.delay = 0.0
        """Seconds that each piece is on its way, in either direction."""
        self.cut_after: int | None = None
        """So many bytes from clients are let through; then all connections are cut, once."""
        self.cuts = 0
        self.met = 0
        """Connections so far."""
        self._begin(self._accept)

    def stall(self) -> None:
        self._goes_on.clear()

    def go_on(self) -> None:
        self._goes_on.set()

    def cut(self) -> None:
        """Every connection is closed on both sides."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                _shut(end)

    def close(self) -> None:
        _shut(self._listener)
        self._listener.close()
        self.go_on()
        self.cut()
        for thread in self._threads:
            thread.join(10)
        for end in self._ends:
            end.close()

    def _begin(self, what: Any, *values: Any) -> None:
        thread = threading.Thread(target=what, args=values, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.met += 1
            server = socket.socket(socket.AF_UNIX)
            self._ends += (client, server)
            try:
                server.connect(self._server)
            except OSError:
                _shut(client)
                continue
            with self._lock:
                self._pairs.append((client, server))
            self._begin(self._pump, client, server, True)
            self._begin(self._pump, server, client, False)

    def _pump(self, source: socket.socket, sink: socket.socket, from_client: bool) -> None:
        try:
            while piece := source.recv(65536):
                if self.delay:
                    time.sleep(self.delay)
                self._goes_on.wait()
                left = self.cut_after
                if from_client and left is not None:
                    sink.sendall(piece[:left])
                    self.cut_after = left - len(piece)
                    if left <= len(piece):
                        self.cut_after = None
                        self.cuts += 1
                        self.cut()
                        return
                else:
                    sink.sendall(piece)
        except OSError:
            pass  # cut
        for end in (source, sink):
            _shut(end)


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
