"""Plan to rows: how state.db is opened, read, compared and written.

Imports `model` and `process`.
Never reads a journal and never names an agent.
"""
