"""Fuzzing of everything that reads foreign bytes: `make fuzz`. See __main__.py."""
