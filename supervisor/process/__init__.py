"""What the operating system knows: processes, signals, the terminal, deaths, process trees.

Imports only `ipc`.
Never names an agent, reads a journal or opens a database.
"""
