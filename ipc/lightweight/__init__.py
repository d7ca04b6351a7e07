"""Stand-ins for standard library modules that take long to import, and of which we need little.

    json       `json`, on its C core            saves regular expressions and enumerations
    socket     `socket`                         saves `selectors`, `enum` and what they import
    signal     `signal`                         saves `enum`
    ctypes     one call into the C library      saves `ctypes`
    sha256     `hashlib.sha256`                 saves OpenSSL
    dataclass  `dataclasses` and `enum`         saves both, and the code compiled for each class

A supervisor at rest would pay for each of them with milliseconds at its start and memory for as
long as its agent runs. This is the only place that imports a private module of the standard
library. Each stand-in uses the ordinary module where the private one is missing or differs, and
a test compares the two on every Python that is found.
"""
