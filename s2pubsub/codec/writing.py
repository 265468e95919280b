"""New events, and the bodies of the records that store them.

Relies on ``strict`` for what may be written. Not for sending records.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from json import encoder
from typing import Any

from s2pubsub.codec.shape import EventInput, event_inputs
from s2pubsub.codec.strict import Default, Replacement, is_plain, kind_of
from s2pubsub.errors import EncodeError
from s2pubsub.event import Event, build_event

ENVELOPE_KEYS = frozenset({"type", "runId", "data", "id", "createdAt", "deliveryAttempt"})
"""Keys of a record that are fields of an event; the others are its ``extra``."""

MAX_RECORD_BYTES = 2**20
"""Largest record that S2 stores, in metered bytes: `RECORD_OVERHEAD` and the body, as events have no headers."""

RECORD_OVERHEAD = 8
"""Metered bytes of a record beside its body."""

_UNWRITABLE = "was changed while it was being written, or the calls of this thread are nested too deeply to write it"

# Without its own search for cycles: the walk before it is bounded.
_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":"))

_quote = encoder.encode_basestring


def _writer() -> Callable[[Any], str]:
    """What `_ENCODER.encode` does, without making a C encoder anew for each value, which takes as long as the value."""
    make = getattr(encoder, "c_make_encoder", None)
    if make is None:  # another Python than CPython
        return _ENCODER.encode
    write = make(None, _ENCODER.default, _quote, None, ":", ",", False, False, False)
    return lambda value: "".join(write(value, 0))


_json = _writer()

_MILLISECONDS = [f".{number:03d}Z" for number in range(1000)]
_LAST_DIGITS = [f"{number:02x}" for number in range(256)]

_made_ids: tuple[int, list[str]] = (0, [])
"""A process and what it has made of ids and not used yet."""


class Draft:
    """An event that is to be stored: the body of its record, and what its ``Event`` is made of when its place is known.

    Made on the caller's time, so of as few parts as can be.
    """

    __slots__ = ("_created", "_data", "_extra", "_id", "_run_id", "_type", "body")

    def __init__(
        self,
        type: str,
        data: Any,
        run_id: str,
        id: str,
        created: datetime | int,
        extra: Mapping[str, Any],
        body: bytes,
    ) -> None:
        self._type = type
        self._data = data
        self._run_id = run_id
        self._id = id
        self._created = created
        self._extra = extra
        self.body = body

    def event(self, topic: str, index: int | None) -> Event:
        """The event at ``index`` of ``topic``."""
        created = self._created
        if isinstance(created, int):
            created = _moment(created)
        return build_event(topic, self._type, self._data, self._run_id, self._id, created, index, 1, self._extra)


def encode(
    topic: str,
    *,
    type: str,
    data: Any,
    run_id: str = "",
    id: str | None = None,
    created_at: datetime | None = None,
    extra: Mapping[str, Any] | None = None,
    default: Default | None = None,
) -> tuple[Event, bytes]:
    """Return a new event of ``topic``, not yet stored, and the body of its record.

    Args:
        topic: its topic; not checked here.
        type: free text, may be empty.
        data: any strict JSON value. The event refers to it; it is copied only where ``default`` replaced something.
        run_id: the run it belongs to, may be empty.
        id: its id; None makes a UUID.
        created_at: aware datetime, cut to milliseconds; None is now.
        extra: further keys of the envelope, written behind the known ones.
        default: hook for values of foreign types (any but exactly dict, list, str, int, float, bool and None, so tuples
            and subclasses, too). Its result is checked as strictly and may hold such values again.

    Raises:
        EncodeError: something is not strict JSON, or the record is larger than S2 stores. Names the place.
    """
    draft = compose(type, data, run_id, id, created_at, extra, default)
    return draft.event(topic, None), draft.body


def compose(
    type: str,
    data: Any,
    run_id: str,
    id: str | None,
    created_at: datetime | None,
    extra: Mapping[str, Any] | None,
    default: Default | None,
) -> Draft:
    """Return what `encode` makes, before its event."""
    event_id = _new_id() if id is None else id
    if not (type.__class__ is run_id.__class__ is event_id.__class__ is str):
        for name, text in (("type", type), ("run_id", run_id), ("id", event_id)):
            if text.__class__ is not str:
                raise EncodeError(name, f"must be a str, not {kind_of(text)}")
    created: datetime | int
    if created_at is None:
        created = time.time_ns() // 1_000_000
        created_text = _second(created // 1000) + _MILLISECONDS[created % 1000]
    else:
        created = created_at = _in_milliseconds(created_at)
        created_text = f"{created_at.isoformat(timespec='milliseconds')[:-6]}Z"
    extra = {} if extra is None else _checked_extra(extra)
    body = _write(type, run_id, data, event_id, created_text, extra)
    if body is None:
        for name, text in (("type", type), ("run_id", run_id), ("id", event_id)):
            Replacement(name, None).of(text)
        try:
            data = Replacement("data", default).of(data)
            extra = Replacement("extra", default).of(extra)
        except RuntimeError as error:
            raise EncodeError("data", _UNWRITABLE) from error
        body = _write(type, run_id, data, event_id, created_text, extra)
        if body is None:
            raise EncodeError("data", _UNWRITABLE)
    size = RECORD_OVERHEAD + len(body)
    if size > MAX_RECORD_BYTES:
        raise EncodeError(
            "event",
            f"takes {size} bytes as a record ({RECORD_OVERHEAD} and {len(body)} of UTF-8), and S2 stores at most "
            f"{MAX_RECORD_BYTES}; split its data, or store that elsewhere and publish where",
        )
    return Draft(type, data, run_id, event_id, created, extra, body)


def encode_many(
    topic: str, events: Iterable[Mapping[str, Any] | Event | EventInput], *, default: Default | None = None
) -> list[tuple[Event, bytes]]:
    """Return what `encode` does for each of ``events``; errors name the place as ``events[3].data.price``."""
    encoded = []
    for position, event in enumerate(event_inputs(events)):
        try:
            encoded.append(
                encode(topic, type=event.type, data=event.data, run_id=event.run_id, extra=event.extra, default=default)
            )
        except EncodeError as error:
            raise EncodeError(f"events[{position}].{error.path}", error.problem) from error
    return encoded


def _write(
    type: str, run_id: str, data: Any, event_id: str, created_text: str, extra: Mapping[str, Any]
) -> bytes | None:
    """Return the body, or None when something is not strict JSON."""
    try:
        if is_plain(data) and (not extra or is_plain(extra)):
            more = f",{_json(extra)[1:]}" if extra else "}"
            return (
                f'{{"type":{_quote(type)},"runId":{_quote(run_id)},"data":{_json(data)},"id":{_quote(event_id)},'
                f'"createdAt":"{created_text}","deliveryAttempt":1{more}'
            ).encode()
    except (ValueError, TypeError, RuntimeError):
        # ValueError: NaN, infinity, or a lone surrogate (UnicodeEncodeError). The others: data that another thread
        # changes between the check and here, or a call stack at its limit.
        pass
    return None


def _new_id() -> str:
    """Return a random UUID (version 4). They are made in blocks that differ in the last two digits: asking the system
    for each one's bits would cost as much as all the rest, and hand the interpreter to another thread.
    """
    global _made_ids
    process, ids = _made_ids
    if ids and process == os.getpid():  # asked, since uWSGI forks without telling Python
        try:
            return ids.pop()
        except IndexError:  # another thread had the last one
            pass
    digits = os.urandom(15).hex()
    variant = "89ab"[int(digits[16], 16) & 3]
    block = f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"
    ids = [block + last for last in _LAST_DIGITS]
    first = ids.pop()
    _made_ids = os.getpid(), ids
    return first


@lru_cache(maxsize=16)
def _moment(milliseconds: int) -> datetime:
    """A time since 1970; the same value for all that is published in it."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


@lru_cache(maxsize=4)
def _second(since_1970: int) -> str:
    return datetime.fromtimestamp(since_1970, UTC).isoformat()[:19]


def _in_milliseconds(moment: datetime) -> datetime:
    if not isinstance(moment, datetime):
        raise EncodeError("created_at", f"must be a datetime, not {kind_of(moment)}")
    if moment.utcoffset() is None:
        raise EncodeError("created_at", "has no time zone; use datetime.now(timezone.utc), or .astimezone()")
    try:
        moment = moment.astimezone(UTC)
    except OverflowError:
        raise EncodeError("created_at", "lies outside the years 1 to 9999 in UTC") from None
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _checked_extra(extra: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(extra, Mapping):
        raise EncodeError("extra", f"must be a mapping, not {kind_of(extra)}")
    for key in extra:
        if key in ENVELOPE_KEYS:
            raise EncodeError(f"extra.{key}", "is a key of the event itself; give it as an argument, or rename it")
    return dict(extra)
