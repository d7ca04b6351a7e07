"""Socket to journal: the listener, the server, its connections, and the reader of rings.

Imports `storage` and the rooms below it.
Never interprets more of a record than it needs to route it.
"""
