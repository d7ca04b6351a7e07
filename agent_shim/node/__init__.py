"""Not Python: the guest inside Node agents. The supervisor copies these files."""
