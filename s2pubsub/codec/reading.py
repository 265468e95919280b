"""Records to events.

Relies on ``json``'s scanner, and on ``fast`` for the records that it takes. Not for getting records. Reading is more
liberal than writing: integers of any size that Python reads, lone surrogates and unknown keys of the envelope come as
they are. A number too large for a float (``1e999``, which JavaScript reads as Infinity) is a decode error, since nobody
could pass the event on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from math import isfinite
from typing import Any, NoReturn

from s2pubsub.codec import fast
from s2pubsub.codec.strict import kind_of
from s2pubsub.codec.writing import ENVELOPE_KEYS
from s2pubsub.errors import DecodeError
from s2pubsub.event import Event, build_event

MAX_READ_DEPTH = 250
"""Deepest nesting of a record that is read, envelope included.

Deeper than what is written, as others may write more. The C scanner overflows a 64 KiB thread stack beyond 400 levels.
"""

_WHITE_SPACE = " \t\n\r"
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NEITHER_QUOTES_NOR_BRACKETS = bytes(set(range(256)) - set(_STEPS) - set(b'"'))
_DATE = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[Tt ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d+))?)?([Zz]|[+-]\d\d:?\d\d)?)?)?)?",
    re.ASCII,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def decode(topic: str, index: int | None, body: bytes) -> Event:
    """Return the event that the record at ``index`` of ``topic`` holds. Raises `DecodeError` for every other body."""
    try:
        if fast.read_envelope is not None and not is_deeper(body, fast.DEPTH):
            try:
                e = fast.read_envelope(body)
                attempt = e.deliveryAttempt
                if type(attempt) is int:
                    return build_event(topic, e.type, e.data, e.runId, e.id, _moment(e.createdAt), index, attempt, {})
            except (ValueError, RecursionError):
                pass  # what follows takes it, or says what is wrong with it
        if is_deeper(body, MAX_READ_DEPTH):
            raise ValueError(f"it is nested more than {MAX_READ_DEPTH} levels deep")
        text = str(body, "utf-8")
        try:
            envelope, end = _scan(text, 0)
        except StopIteration:
            envelope, end = _DECODER.decode(text), len(text)  # white space in front, or an error that names its place
        if end != len(text) and text[end:].strip(_WHITE_SPACE):
            raise ValueError(f"more text follows the JSON value at character {end}")
        if type(envelope) is not dict:
            raise ValueError(f"it is of type {kind_of(envelope)}, not an object")
        kind = envelope["type"]
        run_id = envelope["runId"]
        data = envelope["data"]
        event_id = envelope["id"]
        created_at = envelope["createdAt"]
        if not type(kind) is type(run_id) is type(event_id) is str:
            raise ValueError("its type, runId and id must be strings")
        attempt = envelope.get("deliveryAttempt", 1)
        if type(attempt) is not int:
            attempt = _whole_number(attempt)
        extra = {}
        if len(envelope) > 6 or (len(envelope) == 6 and "deliveryAttempt" not in envelope):
            extra = {key: value for key, value in envelope.items() if key not in ENVELOPE_KEYS}
        return build_event(topic, kind, data, run_id, event_id, _moment(created_at), index, attempt, extra)
    except KeyError as error:
        problem = f"it has no key {error}"
    except RecursionError:
        problem = "it is nested too deeply for the call stack of this thread"
    except json.JSONDecodeError as error:
        problem = f"it is not JSON: {error}"
    except ValueError as error:
        problem = str(error)
    raise DecodeError(topic, -1 if index is None else index, problem)


def decode_batch(topic: str, start: int, bodies: Iterable[bytes | None]) -> tuple[list[Event], DecodeError | None]:
    """Return the events of consecutive records from index ``start`` on, and the error of the first that is not one.

    None stands for a command record, which is left out. Events behind a record that is no event are not returned: its
    reader decides whether to read on from ``error.index + 1``.
    """
    events: list[Event] = []
    append = events.append
    for index, body in enumerate(bodies, start):
        if body is None:
            continue
        try:
            append(decode(topic, index, body))
        except DecodeError as error:
            return events, error
    return events, None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}, which is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise ValueError(f"it holds the number {digits[:40]}, which is too large for a float")
    return number


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
# The scanner itself: `raw_decode` and `decode` around it cost a fifth of the time of a small event.
_scan: Callable[[str, int], tuple[Any, int]] = _DECODER.scan_once  # type: ignore[attr-defined]


def is_deeper(body: bytes, limit: int) -> bool:
    """Whether ``body`` is nested deeper than ``limit``: scanners recurse in C, and may overflow their stack."""
    if len(body) <= limit or body.count(b"{") + body.count(b"[") <= limit:
        return False
    # Without escapes, every second part between quotes is outside of strings.
    quoted = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NEITHER_QUOTES_NOR_BRACKETS)
    brackets = b"".join(quoted.split(b'"')[::2])
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > limit


def _moment(created_at: Any) -> datetime:
    """Read a date as JavaScript writes it (fast), another ISO 8601 form, or epoch milliseconds; cut to milliseconds."""
    kind = type(created_at)
    if kind is str:
        # 2026-03-01T12:00:00.123Z: `fromisoformat` alone takes forms that JavaScript does not.
        if created_at[4:20:3] == "--T::." and created_at[23:] == "Z":
            try:
                return datetime.fromisoformat(created_at)
            except ValueError:
                pass
        match = _DATE.fullmatch(created_at)
        if match:
            try:
                return _date_of(*match.groups())
            except (ValueError, OverflowError):
                pass
    elif kind is int or kind is float:
        try:
            return _EPOCH + timedelta(milliseconds=int(created_at))
        except OverflowError:
            pass
    raise ValueError("its createdAt is not a date within the years 1 to 9999 (ISO 8601, or epoch milliseconds)")


def _date_of(
    year: str,
    month: str | None,
    day: str | None,
    hour: str | None,
    minute: str | None,
    second: str | None,
    fraction: str | None,
    zone: str | None,
) -> datetime:
    milliseconds = int(f"{fraction or ''}000"[:3])
    midnight_after = hour == "24" and minute == "00" and int(second or 0) == milliseconds == 0  # as JavaScript has it
    moment = datetime(
        int(year),
        int(month or 1),
        int(day or 1),
        0 if midnight_after else int(hour or 0),
        int(minute or 0),
        int(second or 0),
        milliseconds * 1000,
        tzinfo=UTC,
    )
    if midnight_after:
        moment += timedelta(days=1)
    if zone and zone not in "Zz":
        if int(zone[1:3]) > 23 or int(zone[-2:]) > 59:
            raise ValueError(zone)
        offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:]))
        moment += -offset if zone[0] == "+" else offset
    return moment


def _whole_number(attempt: Any) -> int:
    if type(attempt) is not float:
        raise ValueError(f"its deliveryAttempt must be a number, not {kind_of(attempt)}")
    return int(attempt)
