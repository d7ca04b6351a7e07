"""What supervision costs, measured beside its peers in one run.

    make bench          everything, interleaved, about a quarter of an hour
    make bench-quick    the same with fewer repetitions, about two minutes

Standard library only. Nothing here asserts a time: it measures, and docs/bench.md says what
was found. A module a question; `programs/` holds what runs in other interpreters.
"""
