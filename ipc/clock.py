"""A clock that only goes forward, and the boot that its readings belong to.

Never raises. The wall clock may be set while a process runs, and may have been wrong in an earlier
boot. Records of several processes are therefore ordered by this clock, which all processes of one
boot share. Two readings of different boots say nothing about each other.
"""

from __future__ import annotations

import time

# Goes on while the machine is suspended, which CLOCK_MONOTONIC does not. Not on every system.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", -1)

if _CLOCK != -1:

    def now() -> int:
        """Nanoseconds since the machine was started."""
        return time.clock_gettime_ns(_CLOCK)

else:

    def now() -> int:
        """Nanoseconds since some moment before the process was started."""
        return time.monotonic_ns()


def boot() -> str:
    """An id of the current boot; empty where the system has none: then nothing is compared."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""
