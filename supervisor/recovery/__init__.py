"""Journal to plan: gather a stream, replay it, decide the outcome, reconcile, finish.

Imports `agents`, `statedb`, `storage` and the rooms below them.
Never imports `hooks`: it reports what happened, and the caller queues hooks.
"""
