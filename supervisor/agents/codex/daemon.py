"""A client of Codex' daemon that only asks and listens.

Codex' TUI is a client of `codex app-server`, which does the work, writes the transcripts and
outlives the TUI. It speaks JSON-RPC over a WebSocket on a Unix socket. Never answers a request of
the daemon's and never starts, changes or ends anything there.
"""

from __future__ import annotations

import base64
import json
import os
import select
import socket
import time

from ...process.platform import command_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Message = dict[str, Any]

_TIMEOUT = 5.0
_TEXT, _BINARY, _CLOSE, _PING = 1, 2, 8, 9
_LONGEST = 256 * 1024 * 1024
# The MCP server that each TUI offers to the threads that it has open.
_TUI = "codex_tui"


class Unreachable(OSError):
    """No daemon, or none that we understand."""


def home(env: Mapping[str, str]) -> str:
    base = env.get("HOME") or os.path.expanduser("~")
    return env.get("CODEX_HOME") or os.path.join(base, ".codex")


def living(codex_home: str) -> int | None:
    """The daemon's pid, if it is alive."""
    try:
        with open(os.path.join(codex_home, "app-server-daemon", "daemon.pid"), "rb") as file:
            pid = json.load(file)["pid"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    is_daemon = isinstance(pid, int) and "app-server" in command_line(pid)
    return pid if is_daemon else None


class Daemon:
    """One connection."""

    def __init__(self, codex_home: str) -> None:
        path = os.path.join(codex_home, "app-server-control", "app-server-control.sock")
        # The real path: the address of a socket is short.
        self._socket = _open(os.path.realpath(path))
        self._data = bytearray()
        self._parts = b""
        self._waiting: list[Message] = []
        self._calls = 0
        self._is_waiting = False
        try:
            about = {"name": "hermes-supervise", "title": "hermes-supervise", "version": "0"}
            # Without this a thread can only be joined together with all that was ever said in it.
            capabilities = {"experimentalApi": True}
            self.call("initialize", {"clientInfo": about, "capabilities": capabilities})
            self._send({"method": "initialized"})
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def call(self, method: str, params: Message) -> Message:
        """The result of a request. What comes before it is kept for `next`."""
        self._calls += 1
        self._send({"id": self._calls, "method": method, "params": params})
        end = time.monotonic() + _TIMEOUT
        while (left := end - time.monotonic()) > 0:
            message = self._receive(left)
            if message is None:
                break
            if "method" in message:
                self._waiting.append(message)
            elif message.get("id") == self._calls:
                result = message.get("result")
                if not isinstance(result, dict):
                    raise Refused(str(message.get("error")))
                return result
        raise Unreachable(f"no answer to {method}")

    def next(self, seconds: float) -> Message | None:
        """What the daemon tells; None if there is nothing for so long."""
        return self._waiting.pop(0) if self._waiting else self._receive(seconds)

    def has_news(self) -> bool:
        """True if `next` has something that came with an answer."""
        return bool(self._waiting)

    def is_drained(self) -> bool:
        """True if somebody else waits in `next`, and there is nothing to be had. Raises nothing."""
        if not self._is_waiting or self._waiting:
            return False
        try:
            return not select.select([self._socket], [], [], 0)[0] and self._is_waiting
        except (OSError, ValueError):
            return True  # it was closed

    def threads(self) -> list[str]:
        """The threads that it has loaded."""
        found = self.call("thread/loaded/list", {}).get("data")
        return [str(thread) for thread in found] if isinstance(found, list) else []

    def tui_of(self, thread: str) -> list[int]:
        """The processes of the TUI that has a thread open. The daemon reaches a TUI through a port
        on which the TUI listens."""
        found = self.call("mcpServerStatus/list", {"threadId": thread}).get("data")
        for server in found if isinstance(found, list) else ():
            if isinstance(server, dict) and server.get("name") == _TUI:
                port = str(server.get("httpOrigin")).rpartition(":")[2]
                return _listening(int(port)) if port.isdigit() else []
        return []

    # -- WebSocket ---------------------------------------------------------------------------

    def _send(self, message: Message) -> None:
        data = json.dumps(message).encode()
        mask = os.urandom(4)
        size = len(data)
        if size < 126:
            head = bytes([0x80 | _TEXT, 0x80 | size])
        elif size < 65536:
            head = bytes([0x80 | _TEXT, 0x80 | 126]) + size.to_bytes(2, "big")
        else:
            head = bytes([0x80 | _TEXT, 0x80 | 127]) + size.to_bytes(8, "big")
        masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
        self._socket.settimeout(_TIMEOUT)
        self._socket.sendall(head + mask + masked)

    def _receive(self, seconds: float) -> Message | None:
        end = time.monotonic() + seconds
        while True:
            while (frame := self._frame()) is not None:
                if (message := self._message(*frame)) is not None:
                    return message
            self._socket.settimeout(max(0.001, end - time.monotonic()))
            self._is_waiting = True
            try:
                data = self._socket.recv(65536)
            except TimeoutError:
                return None
            finally:
                self._is_waiting = False
            if not data:
                raise Unreachable("the daemon has closed the connection")
            self._data += data

    def _frame(self) -> tuple[int, bool, bytes] | None:
        """The next frame: its kind, whether it is the last of its message, what is in it."""
        data = self._data
        if len(data) < 2:
            return None
        size, at = data[1] & 127, 2
        if size >= 126:
            at = 4 if size == 126 else 10
            if len(data) < at:
                return None
            size = int.from_bytes(data[2:at], "big")
        if size > _LONGEST:
            raise Unreachable("a frame of the daemon's is too long")
        if len(data) < at + size:
            return None
        kind, last, payload = data[0] & 15, bool(data[0] & 0x80), bytes(data[at : at + size])
        del data[: at + size]
        return kind, last, payload

    def _message(self, kind: int, last: bool, payload: bytes) -> Message | None:
        if kind == _CLOSE:
            raise Unreachable("the daemon has closed the connection")
        if kind not in (0, _TEXT, _BINARY):
            return None  # a ping too: what it asks for is an answer
        self._parts += payload
        if not last:
            return None
        whole, self._parts = self._parts, b""
        try:
            message = json.loads(whole)
        except ValueError:
            return None
        return message if isinstance(message, dict) else None


class Refused(Unreachable):
    """The daemon answers a request with an error."""


def _open(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_TIMEOUT)
        connection.connect(path)
        key = base64.b64encode(os.urandom(16)).decode()
        connection.sendall(
            "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            byte = connection.recv(1)
            if not byte or len(answer) > 65536:
                raise Unreachable("it is not a daemon of Codex'")
            answer += byte
        if b" 101 " not in answer.partition(b"\r\n")[0]:
            raise Unreachable("the daemon refuses the connection")
    except BaseException:
        connection.close()
        raise
    return connection


def _listening(port: int) -> list[int]:
    """The processes that listen on a port of loopback, as far as we may see them."""
    import psutil  # heavy, and only where a daemon has a TUI

    try:
        found = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return []
    listening = [c for c in found if c.status == psutil.CONN_LISTEN]
    return sorted({c.pid for c in listening if c.pid and c.laddr and c.laddr.port == port})


def tui_of(codex_home: str, thread: str) -> list[int]:
    """The processes of the TUI that has a thread open; none if no daemon knows."""
    try:
        daemon = Daemon(codex_home)
    except OSError:
        return []
    try:
        return daemon.tui_of(thread)
    except OSError:
        return []
    finally:
        daemon.close()
