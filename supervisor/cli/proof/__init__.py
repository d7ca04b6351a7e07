"""Proof by trial: a real agent against a scripted model, killed at two moments and recovered.

May import every room below `cli`. Never touches a home, a database or a run of the user's.
"""
