"""Desktop launchers, systemd units and notifications.

May import `model`. Never starts an agent itself.
"""
