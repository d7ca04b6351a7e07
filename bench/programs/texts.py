"""Texts of a given size that rarely repeat: slices of the standard library's source."""

import os
import sysconfig


def corpus():
    folder = sysconfig.get_path("stdlib")
    parts = []
    for name in sorted(os.listdir(folder)):
        if name.endswith(".py"):
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                parts.append(file.read())
    return "".join(parts)


class Texts:
    def __init__(self):
        self._all = corpus()

    def __call__(self, number, size):
        start = number * size % (len(self._all) - size)
        return self._all[start : start + size]
