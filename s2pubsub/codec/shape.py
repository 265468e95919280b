"""Mappings to values, checked for what they are: events that are to be published, and settings.

Relies on a bare ``cattrs`` converter, whose conversions are all replaced by checks. Not for what JSON can carry
(``strict``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import attrs
from cattrs import Converter
from cattrs.gen import make_dict_structure_fn, override

from s2pubsub.codec.strict import kind_of, step_of
from s2pubsub.errors import EncodeError
from s2pubsub.event import Event

T = TypeVar("T", bound=attrs.AttrsInstance)


@attrs.frozen(kw_only=True)
class EventInput:
    """An event that is still to be published: the keys of `publish_many`'s mappings."""

    type: str
    data: Any
    run_id: str = ""
    extra: Mapping[str, Any] = attrs.field(factory=dict)


class _Mismatch(Exception):
    """A key of a mapping does not fit its class."""

    def __init__(self, key: Any, problem: str) -> None:
        self.key = key
        self.problem = problem


def event_inputs(events: Iterable[Mapping[str, Any] | Event | EventInput]) -> list[EventInput]:
    """Return what to publish: from mappings with the keys of `EventInput`, or from events (type, data, run_id, extra).

    Raises `EncodeError` that names the event and the key.
    """
    if isinstance(events, (str, bytes, Mapping)) or not isinstance(events, Iterable):
        raise EncodeError("events", f"must be a sequence of mappings or events, not {kind_of(events)}")
    inputs = []
    for position, event in enumerate(events):
        if isinstance(event, Event):
            inputs.append(EventInput(type=event.type, data=event.data, run_id=event.run_id, extra=event.extra))
        elif isinstance(event, EventInput):
            inputs.append(event)
        elif isinstance(event, Mapping):
            try:
                inputs.append(_structure(EventInput, event))
            except _Mismatch as error:
                raise EncodeError(f"events[{position}]{step_of(error.key)}", error.problem) from None
        else:
            raise EncodeError(f"events[{position}]", f"must be a mapping or an Event, not {kind_of(event)}")
    return inputs


def structure(cls: type[T], mapping: Mapping[str, Any], where: str) -> T:
    """Return the attrs class ``cls`` made of ``mapping``, whose values must have the fields' types as they are.

    Nothing is converted: a bool is not a number, text is not a number (an int will do for a float). ``where`` names the
    mapping in errors: a ValueError that gives the key, and for an unknown one the nearest known.
    """
    if not isinstance(mapping, Mapping):
        raise ValueError(f"{where} must be a mapping, not {kind_of(mapping)}")
    try:
        return _structure(cls, mapping)
    except _Mismatch as error:
        raise ValueError(f"{where}{step_of(error.key)}: {error.problem}") from None


def _structure(cls: type[T], mapping: Mapping[Any, Any]) -> T:
    fields = attrs.fields_dict(cls)
    # Not left to cattrs, which would report the missing key before the misspelt one that was meant for it, and of which
    # older versions fail on unknown keys that are no text.
    for key in mapping:
        if key not in fields:
            near = get_close_matches(key, fields, n=1) if isinstance(key, str) else []
            known = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(fields)}"
            raise _Mismatch(key, f"is not a known key; {known}")
    for name, field in fields.items():
        if field.default is attrs.NOTHING and name not in mapping:
            raise _Mismatch(name, "is missing")
    return _CONVERTER.structure(mapping, cls)


def _structure_hook(cls: type[Any]) -> Callable[[Mapping[str, Any], Any], Any]:
    checks = {field.name: override(struct_hook=_check(field.name)) for field in attrs.fields(cls)}
    return make_dict_structure_fn(cls, _CONVERTER, **checks)  # type: ignore[arg-type]  # its own flags are keywords, too


def _check(name: str) -> Callable[[Any, Any], Any]:
    def check(value: Any, expected: Any) -> Any:
        if not _fits(value, expected):
            raise _Mismatch(name, f"must be {_describe(expected)}, not {kind_of(value)}")
        return value

    return check


def _fits(value: Any, expected: Any) -> bool:
    origin = get_origin(expected)
    if origin in (Union, UnionType):
        return any(_fits(value, choice) for choice in get_args(expected))
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in get_args(expected))
    if expected is float:
        return type(value) in (float, int)
    if expected in (str, int, bool):
        return type(value) is expected
    # A Protocol that cannot be checked at run time is its user's to check.
    if expected is Any or getattr(expected, "_is_protocol", False):
        return True
    return isinstance(value, origin or expected)


def _describe(expected: Any) -> str:
    if get_origin(expected) in (Union, UnionType):
        return " or ".join(_describe(choice) for choice in get_args(expected))
    if expected is type(None):
        return "None"
    if get_origin(expected) is Literal:
        return " or ".join(repr(choice) for choice in get_args(expected))
    return str(expected.__name__)


_CONVERTER = Converter(forbid_extra_keys=True, detailed_validation=False)
_CONVERTER.register_structure_hook_factory(attrs.has, _structure_hook)
