"""The language that both ends speak: frames, records, the ring's layout, and where they meet.

Imports the standard library only, and nothing else of ours: the shim carries this package into the
agent's interpreter, which may be another version of Python (3.8 or later). Does no I/O, except for
the checks in `endpoint`.
"""
