"""The torture campaign: random lives, real deaths, and a model of what must be left of them.

Never replaces a part of the product: real sockets, real SQLite, real SIGKILL, the real entry
functions. What it saves on is the start of interpreters: processes are forked from one that has
everything imported, except for a share of scenarios that goes through the command line.
"""
