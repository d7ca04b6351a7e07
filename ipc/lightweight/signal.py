"""`signal` without its enumerations: the C module below it, or `signal` itself where it differs.

Names and behaviour are those of `signal`, except that signals and handlers are plain integers.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from signal import *
else:
    try:
        from _signal import *
        from _signal import SIG_DFL, SIG_IGN, getsignal, pthread_sigmask, set_wakeup_fd, signal
    except ImportError:  # a Python without that module, or with another one
        from signal import *
