"""Plain data that the other rooms share: a replayed stream, its sessions, run settings.

Imports `process` (for the cause of a death).
Never does I/O.
"""
