"""Hooks in place of an agent that cannot run them: a queue that outlives every process.

entry       what is to be run, what came of it, when it is due    pure
queue       the files, and who may work on which                  I/O
owed        which hooks an occasion owes to whom
plugins     Python hooks, found by their entry point
process     one hook as a process, contained
runner      works through the queue, tries again, gives up
minder      starts runners, and waits for them a moment
idle        sessions that have been quiet for too long
"""
