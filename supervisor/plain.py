"""Classes that are mostly fields, in the notation of `dataclasses` and without importing it:
that import, and the code it makes for each class, takes longer than a whole recovery.

Never more than is needed here: fields in order, defaults, equality, a repr, a copy.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import asdict, dataclass, field, replace
else:
    _NOT_GIVEN = object()

    class field:
        """A default that is made anew for every object."""

        def __init__(self, *, default_factory):
            self.make = default_factory

    def dataclass(cls):
        names = tuple(cls.__annotations__)
        words, lines, known = ["self"], [], {"_NOT_GIVEN": _NOT_GIVEN}
        for name in names:
            default = cls.__dict__.get(name, _NOT_GIVEN)
            if isinstance(default, field):
                delattr(cls, name)
                known[f"make_{name}"] = default.make
                words.append(f"{name}=_NOT_GIVEN")
                given = f"make_{name}() if {name} is _NOT_GIVEN else {name}"
            else:
                known[f"default_{name}"] = default
                words.append(name if default is _NOT_GIVEN else f"{name}=default_{name}")
                given = name
            lines.append(f"\n    self.{name} = {given}")
        exec(f"def __init__({', '.join(words)}):{''.join(lines)}", known)
        cls.__init__ = known["__init__"]
        cls.__init__.__qualname__ = f"{cls.__qualname__}.__init__"
        cls._fields = names
        cls.__eq__, cls.__hash__, cls.__repr__ = _equal, None, _shown
        return cls

    def _equal(self, other):
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self._fields)

    def _shown(self):
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"{self.__class__.__qualname__}({fields})"

    def replace(found, **changes):
        return found.__class__(**{name: getattr(found, name) for name in found._fields} | changes)

    def asdict(value):
        if hasattr(value, "_fields"):
            return {name: asdict(getattr(value, name)) for name in value._fields}
        if isinstance(value, dict):
            return {key: asdict(item) for key, item in value.items()}
        return [asdict(item) for item in value] if isinstance(value, list | tuple) else value


__all__ = ["asdict", "dataclass", "field", "replace"]
