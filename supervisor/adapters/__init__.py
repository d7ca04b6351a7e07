"""What recovery has to know of particular agents: one module each."""
