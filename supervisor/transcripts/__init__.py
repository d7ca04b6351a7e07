"""The process that follows an unmodified agent through the files it writes, whatever the agent.

It reads what is new (follow.py), drops what was reported before (deduplicator.py) and reports the
rest to the supervisor as a client of its socket (main.py).

May import `recovery`, `ingest`, `agents` and the rooms below them. Never writes to state.db.
"""
