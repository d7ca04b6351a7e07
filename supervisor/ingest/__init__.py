"""Socket to journal: the listener, the server with its connections, the streams, rings.

    listener  →  server, connection  →  streams  →  storage/journal.py
                                         ↑
                                         ring_reader

Imports `storage` and the rooms below it.
Never interprets more of a record than it needs to route it.
"""
