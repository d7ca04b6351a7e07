"""`dataclasses` and `enum` in their own notation, without importing them.

Importing them, and compiling code for each class, takes longer than a whole recovery. Here only a
class with many objects gets compiled code, because that then makes objects faster.

Never more than this project needs: fields in order, defaults, equality, a repr, a copy; members
with a name and a value, in order. A type checker sees the ordinary modules.
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
        """A default that is made for each object."""

        def __init__(self, *, default_factory):
            self.make = default_factory

    def dataclass(cls):
        names = tuple(cls.__annotations__)
        defaults = {name: cls.__dict__[name] for name in names if name in cls.__dict__}
        for name, default in defaults.items():
            if isinstance(default, field):
                delattr(cls, name)
        instances = 0

        def __init__(self, *args, **named):
            nonlocal instances
            instances += 1
            given = {**dict(zip(names, args)), **named}  # noqa: B905
            absent = [name for name in names if name not in given]
            proper = len(given) == len(args) + len(named) and len(given) + len(absent) == len(names)
            if instances > _FEW or not proper or any(name not in defaults for name in absent):
                compiled = _compiled(names, defaults)
                compiled.__qualname__ = f"{cls.__qualname__}.__init__"
                if instances > _FEW:
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
        """An `__init__` as `dataclasses` makes it, which also raises the usual TypeErrors."""
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

    def replace(value, **changes):
        fields = {name: getattr(value, name) for name in value._fields}
        return value.__class__(**{**fields, **changes})

    def asdict(value):
        if hasattr(value, "_fields"):
            return {name: asdict(getattr(value, name)) for name in value._fields}
        if isinstance(value, dict):
            return {key: asdict(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return value.__class__(asdict(item) for item in value)
        return value

    class _Members(type):
        def __new__(kind, name, bases, body):
            def is_member(key):
                return key[:2] != "__" and not hasattr(body[key], "__get__")  # nor a method

            rest = {key: value for key, value in body.items() if not is_member(key)}
            cls = super().__new__(kind, name, bases, rest)
            cls._members = []
            for key, value in body.items():
                if is_member(key):
                    member = object.__new__(cls)
                    member.name, member.value = key, value
                    setattr(cls, key, member)
                    cls._members.append(member)
            return cls

        def __iter__(cls):
            return iter(cls._members)

        def __len__(cls):
            return len(cls._members)

        def __call__(cls, value):
            for member in cls._members:
                if member.value == value:
                    return member
            raise ValueError(f"{value!r} is not a valid {cls.__qualname__}")

    class Enum(metaclass=_Members):
        def __str__(self):
            return f"{self.__class__.__name__}.{self.name}"

        def __repr__(self):
            return f"<{self}: {self.value!r}>"


__all__ = ["Enum", "asdict", "dataclass", "field", "replace"]
