"""What a run keeps on disk: its folder with the lock, and the journal's segments.

Imports `process` and `model`.
Never interprets a record.
"""
