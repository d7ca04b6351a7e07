"""One supervised run: start, supervision, background jobs, restart, takeover, notice.

Imports every room but `cli`.
Never writes to state.db itself: recovery runs in a forked process.
"""
