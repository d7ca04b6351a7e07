"""The journal on PostgreSQL: shipped while the agent runs, rebuilt on another machine.

Imports `ingest` (to read a ring), `statedb`, `storage` and the rooms below them. Only `server.py`
speaks to the database.
Never in the agent's way, and never loaded by a run without `--replica`.
"""
