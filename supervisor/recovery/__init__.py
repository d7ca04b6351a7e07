"""Recovery: one function of (journal, state.db), used at a death, at the next start, and by hand.

gather      reads a stream's files into frames               I/O
replay      folds frames into sessions                       pure
outcome     what a death means for a session                 pure, a table
reconcile   compares a session with its rows, plans          pure
statedb     applies a plan, with a marker, exactly once      I/O
finish      the order of these steps; hooks are queued (see ../hooks)
"""
