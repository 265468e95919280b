"""What JSON carries unchanged to Python and JavaScript readers, and where a value does not fit.

Relies on nothing but the errors. Not for writing JSON. Two walks over a value: `is_plain` is quick and only says yes or
no; `Replacement` is slow, names the place in its error, and applies a ``default`` hook. A value may hold exactly
``dict`` (keys ``str``), ``list``, ``str``, ``int`` within ±(2**53 - 1), finite ``float``, ``bool`` and ``None``.
Subclasses are refused, since they would come back as their base. So is 2**53: JavaScript reads 2**53 + 1 as that, too.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import attrs

from s2pubsub.errors import EncodeError

MAX_DEPTH = 100
"""Deepest nesting of dicts and lists that is written.

The C encoder of Python 3.13 overflows a thread stack of 64 KiB, the smallest in practice, beyond 250 levels.
"""

MAX_INTEGER = 2**53 - 1
"""Largest integer that JavaScript tells from its neighbours (``Number.MAX_SAFE_INTEGER``)."""

MAX_VALUES = 2**19
"""Most values that one event can hold: each takes two bytes at least, and a record has 2**20.

Without this bound, data that refers to the same lists again and again would be walked for ever.
"""

Default = Callable[[Any], Any]
"""A hook like that of ``json.dumps``: takes a value of a foreign type, returns what to store instead."""

_SHOWN = 40
"""Characters of a key that a message shows."""

_SCALARS = frozenset({str, bool, type(None), float})

# First match wins, so what a class is for comes before what it is made of (a StrEnum is a str, too).
_HINTS = (
    ("enum.Enum", "use its .value"),
    ("numpy.generic", "use value.item()"),
    ("numpy.ndarray", "use value.tolist()"),
    ("pydantic.main.BaseModel", 'use value.model_dump(mode="json")'),
    ("django.utils.functional.Promise", "use str(value)"),
    ("datetime.date", "use value.isoformat()"),
    ("datetime.time", "use value.isoformat()"),
    ("datetime.timedelta", "use value.total_seconds()"),
    ("decimal.Decimal", "use str(value)"),
    ("fractions.Fraction", "use str(value)"),
    ("uuid.UUID", "use str(value)"),
    ("pathlib.PurePath", "use str(value)"),
    ("pathlib._local.PurePath", "use str(value)"),
    ("builtins.tuple", "use list(value)"),
    ("builtins.set", "use sorted(value) or list(value)"),
    ("builtins.frozenset", "use sorted(value) or list(value)"),
    ("builtins.bytes", "use base64 text"),
    ("builtins.bytearray", "use base64 text"),
    ("builtins.memoryview", "use base64 text"),
    ("builtins.complex", "use [value.real, value.imag]"),
    ("builtins.str", "use str(value)"),
    ("builtins.int", "use int(value)"),
    ("builtins.float", "use float(value)"),
    ("builtins.dict", "use dict(value)"),
    ("builtins.list", "use list(value)"),
)


def is_plain(value: Any) -> bool:
    """Say whether ``value`` is strict JSON; NaN, infinities and lone surrogates are left to the encoder to find."""
    return _room_behind((value,), 0, MAX_VALUES) >= 0


def _room_behind(container: Any, depth: int, room: int) -> int:
    """Return how many of ``room`` values remain behind those of ``container``; below 0 when something does not fit."""
    room -= len(container)
    if depth > MAX_DEPTH or room < 0:
        return -1
    if type(container) is dict:
        for key in container:
            if type(key) is not str:
                return -1
        container = container.values()
    for item in container:
        kind = type(item)
        if kind in _SCALARS:
            continue
        if kind is dict or kind is list:
            room = _room_behind(item, depth + 1, room)
            if room < 0:
                return -1
        elif kind is not int or not -MAX_INTEGER <= item <= MAX_INTEGER:
            return -1
    return room


@attrs.define
class Replacement:
    """One walk over one value. ``of`` returns an equal copy, with what ``default`` gave in place of foreign values.

    Attributes:
        root: name of the value in errors, such as ``data``.
        default: the hook; None refuses foreign values.
    """

    root: str
    default: Default | None
    _steps: list[str | int] = attrs.field(factory=list, init=False)
    _around: set[int] = attrs.field(factory=set, init=False)
    _room: int = attrs.field(default=MAX_VALUES, init=False)

    def of(self, value: Any, depth: int = 0) -> Any:
        """Return the copy. ``depth`` is the nesting around ``value``. Raises `EncodeError`."""
        kind = type(value)
        if kind is str:
            self._check_text(value, "")
        elif kind is int:
            if not -MAX_INTEGER <= value <= MAX_INTEGER:
                raise self._error(
                    f"{brief(value)} is beyond ±(2**53 - 1), where JavaScript readers change integers; "
                    "send it as a string: use str(value)"
                )
        elif kind is float:
            if not isfinite(value):
                raise self._error(f"{value!r} is not JSON; send None or a string")
        elif kind is dict or kind is list:
            return self._of_container(value, depth)
        elif kind is not bool and value is not None:
            return self._of_foreign(value, depth)
        return value

    def _of_container(self, value: Any, depth: int) -> Any:
        if id(value) in self._around:
            raise self._error("refers back to a dict or list that it lies in; send an id instead")
        if depth >= MAX_DEPTH:
            raise self._error(f"is nested more than {MAX_DEPTH} levels deep; send flatter data")
        self._room -= len(value)
        if self._room < 0:
            raise EncodeError(self.root, f"holds more than {MAX_VALUES} values, more than fit into one record")
        self._around.add(id(value))
        copy: Any
        if type(value) is list:
            copy = []
            for position, item in enumerate(value):
                self._steps.append(position)
                copy.append(self.of(item, depth + 1))
                self._steps.pop()
        else:
            copy = {}
            for key, item in value.items():
                if type(key) is not str:
                    raise self._error(f"has the key {brief(key)}; keys of JSON are text: use str(key)")
                self._check_text(key, f"has the key {brief(key)}, which ")
                self._steps.append(key)
                copy[key] = self.of(item, depth + 1)
                self._steps.pop()
        self._around.discard(id(value))
        return copy

    def _of_foreign(self, value: Any, depth: int) -> Any:
        if self.default is None:
            raise self._error(f"is of type {kind_of(value)}, which JSON would lose or change; {hint(value)}")
        try:
            stored = self.default(value)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            raise self._error(f"the default hook failed for {kind_of(value)} with {failure}") from error
        # Each replacement counts as a level: a hook whose results need the hook again, without end, is stopped, too.
        if stored is value or depth > MAX_DEPTH:
            raise self._error(f"the default hook gave no JSON value for {kind_of(value)}; {hint(value)}")
        return self.of(stored, depth + 1)

    def _check_text(self, text: str, prefix: str) -> None:
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise self._error(
                    f"{prefix}holds a lone surrogate at character {error.start}, which has no UTF-8; "
                    "join the halves of split text, or drop it"
                ) from None

    def _error(self, problem: str) -> EncodeError:
        return EncodeError(self.root + "".join(map(step_of, self._steps)), problem)


def step_of(key: Any) -> str:
    """Return the step of a path that leads to ``key``: ``.name``, ``["a b"]`` or ``[3]``."""
    plain = type(key) is str and key.isascii() and key.isidentifier() and len(key) <= _SHOWN
    return f".{key}" if plain else f"[{brief(key)}]"


def kind_of(value: Any) -> str:
    """Name the type of ``value`` for a message: ``datetime.date``, ``None``."""
    if value is None:
        return "None"
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def hint(value: Any) -> str:
    """Say how to turn ``value`` into JSON."""
    names = {f"{base.__module__}.{base.__qualname__}" for base in type(value).__mro__}
    for name, remedy in _HINTS:
        if name in names:
            return remedy
    if hasattr(type(value), "__attrs_attrs__"):
        return "use attrs.asdict(value)"
    if hasattr(type(value), "__dataclass_fields__"):
        return "use dataclasses.asdict(value)"
    if hasattr(type(value), "keys"):
        return "use dict(value)"
    if hasattr(type(value), "__iter__"):
        return "use list(value)"
    return "convert it first, or give a default hook"


def brief(value: Any) -> str:
    """Show a key or number in a message: bounded, printable, and without running foreign code."""
    kind = type(value)
    if kind is str:
        text = ascii(value[:_SHOWN])[1:-1].replace("\\'", "'").replace('"', '\\"')
        return f'"{text}"' if len(value) <= _SHOWN else f'"{text}..."'
    if kind is int and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if kind in (int, float, bool) or value is None:
        return repr(value)
    return f"of type {kind_of(value)}"
