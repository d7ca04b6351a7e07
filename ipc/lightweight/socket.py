"""`socket` without its enumerations: the C module below it, or `socket` itself where it differs.

Names and behaviour are those of `socket`, except that constants are plain integers.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import *
else:
    try:
        from _socket import *
        from _socket import AF_UNIX, SO_SNDBUF, SOCK_STREAM, SOL_SOCKET, socket

        if not hasattr(socket, "_accept"):
            raise ImportError
    except ImportError:  # a Python without that module, or with another one
        from socket import *
