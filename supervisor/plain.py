"""Classes that are mostly fields, and names that stand for themselves, in the notation of
`dataclasses` and `enum` and without importing them: that, and the code made for each class, takes
longer than a whole recovery. Only a class that many objects are made of gets code of its own, which
then makes them faster.

Never more than is needed here: fields in order, defaults, equality, a repr, a copy; members with
a name and a value, in order.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import asdict, dataclass, field, replace
    from enum import Enum
else:
    _NOT_GIVEN = object()
    _FEW = 50

    class field:
        """A default that is made anew for every object."""

        def __init__(self, *, default_factory):
            self.make = default_factory

    def dataclass(cls):
        names = tuple(cls.__annotations__)
        defaults = {name: cls.__dict__[name] for name in names if name in cls.__dict__}
        for name, default in defaults.items():
            if isinstance(default, field):
                delattr(cls, name)
        made = 0

        def __init__(self, *args, **named):
            nonlocal made
            made += 1
            given = dict(zip(names, args, strict=False)) | named
            absent = [name for name in names if name not in given]
            proper = len(given) == len(args) + len(named) and len(given) + len(absent) == len(names)
            if made > _FEW or not proper or any(name not in defaults for name in absent):
                compiled = _compiled(names, defaults)
                compiled.__qualname__ = f"{cls.__qualname__}.__init__"
                if made > _FEW:
                    cls.__init__ = compiled
                compiled(self, *args, **named)
                return
            for name in names:
                value = given[name] if name in given else defaults[name]
                made_anew = name not in given and isinstance(value, field)
                self.__dict__[name] = value.make() if made_anew else value

        cls.__init__ = __init__
        cls._fields = names
        cls.__eq__, cls.__hash__, cls.__repr__ = _equal, None, _shown
        return cls

    def _compiled(names, defaults):
        """Also what says what is wrong with what it is given."""
        words, lines, known = ["self"], [], {"_NOT_GIVEN": _NOT_GIVEN}
        for name in names:
            default = defaults.get(name, _NOT_GIVEN)
            if isinstance(default, field):
                known[f"make_{name}"] = default.make
                words.append(f"{name}=_NOT_GIVEN")
                given = f"make_{name}() if {name} is _NOT_GIVEN else {name}"
            else:
                known[f"default_{name}"] = default
                words.append(name if default is _NOT_GIVEN else f"{name}=default_{name}")
                given = name
            lines.append(f"\n    self.{name} = {given}")
        exec(f"def __init__({', '.join(words)}):{''.join(lines)}", known)
        return known["__init__"]

    def _equal(self, other):
        if other.__class__ is not self.__class__:
            return NotImplemented
        return self.__dict__ == other.__dict__

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

    class _Members(type):
        def __new__(kind, name, bases, said):
            made = super().__new__(
                kind, name, bases, {k: v for k, v in said.items() if k[0] == "_"}
            )
            made._members = []
            for key, value in said.items():
                if key[0] != "_":
                    member = made()
                    member.name, member.value = key, value
                    setattr(made, key, member)
                    made._members.append(member)
            return made

        def __iter__(cls):
            return iter(cls._members)

    class Enum(metaclass=_Members):
        def __repr__(self):
            return f"{self.__class__.__qualname__}.{self.name}"


__all__ = ["Enum", "asdict", "dataclass", "field", "replace"]
