"""Journal to plan: gather a stream, replay it, decide the outcome, reconcile, finish.

Imports `agents`, `statedb`, `storage` and the rooms below them, and `replica`: what is
still to be shipped is kept.
Never imports `hooks`: it reports what happened, and the caller queues hooks.
"""
