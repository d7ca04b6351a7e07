"""What supervision costs, measured together with similar programs in one run.

    make bench          everything, interleaved, about a quarter of an hour
    make bench-quick    the same with fewer repetitions, about two minutes

Standard library only. Nothing here asserts a time: it measures, and docs/bench.md shows the
results. Each module answers one question; `programs/` holds what runs in other interpreters.
"""
