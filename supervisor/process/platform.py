"""What differs between operating systems, behind one set of functions.

`linux.py` and `linux_proc.py` have them for Linux. `portable.py` has them for everything else,
built on psutil, kqueue and waitpid. Nothing else in the supervisor names a platform; a test holds
that.

HERMES_SUPERVISE_PLATFORM=portable chooses the portable functions on Linux, so that the tests run
through both.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
IS_LINUX = sys.platform.startswith("linux")
IS_PORTABLE = not IS_LINUX or os.environ.get("HERMES_SUPERVISE_PLATFORM") == "portable"

if IS_PORTABLE and not TYPE_CHECKING:
    from . import portable as _here

    _processes = _here
else:  # types are checked against these; a test compares the signatures of both
    from . import linux as _here
    from . import linux_proc as _processes

# whether other processes than our children can be looked at: on Linux, whether /proc is there
sees_processes = _processes.sees_processes
# identity
process_start = _here.process_start
is_another = _here.is_another
boot_id = _here.boot_id
pid_namespace = _here.pid_namespace
since_boot = _here.since_boot
# deaths: a Watch has a descriptor that becomes readable at the death, or none
Watch = _here.Watch
watch = _here.watch
# processes
ProcessInfo = _processes.ProcessInfo
process_table = _processes.process_table
own_children = _processes.own_children
user_of = _processes.user_of
command_line = _processes.command_line
environment = _processes.environment
below = _processes.below
# files
fd_target = _processes.fd_target
open_files = _processes.open_files
is_open_for_writing = _processes.is_open_for_writing
lock_holder = _processes.lock_holder
# memory
resident = _processes.resident
proportional = _processes.proportional
group_memory = _here.group_memory
oom_kills = _here.oom_kills
# ourselves
HAS_SUBREAPERS = _here.HAS_SUBREAPERS
become_subreaper = _here.become_subreaper
is_subreaper = _here.is_subreaper
forbid_core_dump = _here.forbid_core_dump
die_with_parent = _here.die_with_parent
# peers: pid and uid at the other end of a Unix socket; how that process ended
peer_of = _here.peer_of
peer_exit_status = _here.peer_exit_status
