"""End-of-session hooks: what to run (planner), the queue on disk, and the runner.

    observer   what recovery settled  →  planner  →  enqueue  →  queue  →  launcher  →  runner

May import `recovery` and the rooms below it. Never undoes a recovery, whatever a hook does.
"""
