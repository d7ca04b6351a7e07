"""Fuzzing of what reads bytes that others wrote: `make fuzz`. See __main__.py."""
