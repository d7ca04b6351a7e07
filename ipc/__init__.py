"""The language both ends speak: frames, records, and where they meet.

Standard library only, and no I/O but the checks in `endpoint`: the shim carries
this package into the agent's interpreter, whatever that is.
"""
