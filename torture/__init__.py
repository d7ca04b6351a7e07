"""The torture campaign: random scenarios, real SIGKILLs, and a model of what must be left.

Never replaces a part of the product: sockets, SQLite, signals and entry functions are real. It only
saves the start of interpreters: processes are forked from one that has everything imported. A share
of the scenarios goes through the command line instead.
"""
