"""Server-sent events on the wire: writing blocks, and reading the position that a returning browser sends.

Relies on nothing. Not for what the blocks mean (``formats``).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

MAX_INDEX = 2**53 - 1
"""The largest position that is accepted: the largest one that a browser's numbers can hold."""

_LINE_END = re.compile("\r\n|\r|\n")
_BREAKS = re.compile("[\r\n\0]")
_NUMBER = re.compile(r"[0-9]{1,16}", re.ASCII)


def format_event(
    data: str | None = None,
    *,
    event: str | None = None,
    id: str | int | None = None,
    retry: int | None = None,
    comment: str | None = None,
) -> bytes:
    r"""One block of an event stream, its blank line included.

    Args:
        data: any text; several lines become several ``data`` fields, which a browser joins again. A lone surrogate is
            written as ``\udxxx``, which is its escape where the text is JSON. None: the browser dispatches nothing.
        event: the event's name, without CR, LF and NUL. Empty is the same as None: ``message``.
        id: the position that a browser sends when it returns; without CR, LF and NUL.
        retry: milliseconds after which a browser reconnects.
        comment: text that browsers ignore; may have several lines.

    Raises:
        ValueError: ``event`` or ``id`` would add a line of its own.
    """
    lines = []
    if comment is not None:
        lines += [f": {line}" for line in _LINE_END.split(comment)]
    if event:
        lines.append(f"event: {_one_line('event', event)}")
    if id is not None:
        lines.append(f"id: {_one_line('id', str(id))}")
    if retry is not None:
        lines.append(f"retry: {int(retry)}")
    if data is not None:
        lines += [f"data: {line}" for line in _LINE_END.split(data)]
    return ("\n".join(lines) + "\n\n").encode("utf-8", "backslashreplace")


def _one_line(what: str, value: str) -> str:
    if _BREAKS.search(value):
        raise ValueError(f"{what} must not hold CR, LF or NUL: {value!r}")
    return value


def clean_name(name: str) -> str:
    """``name`` with each CR, LF, NUL and lone surrogate replaced by U+FFFD, so that it cannot add a line or field."""
    return _BREAKS.sub("\ufffd", name).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def json_text(value: Any) -> str:
    """``value`` as JSON in one line of ASCII.

    ASCII, because some readers break lines at U+2028 or U+0085, and because halves of characters, which TypeScript
    writes into text pieces, must arrive as their escapes. Infinities, which foreign writers can store as ``1e999``,
    become null: ``JSON.parse`` accepts nothing else.
    """
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value


def parse_last_event_id(value: str | None) -> int | None:
    """The index to go on from after the event ``value``: one more than it; None where there is no value.

    ``-1``, which stands for "nothing seen yet", gives 0.

    Raises:
        ValueError: it is not the id of an event: anything but ``-1`` and ASCII digits up to 2**53 - 2.
    """
    if value is None or value == "":
        return None
    if value == "-1":
        return 0
    return _index(value) + 1


def read_offset(last_event_id: str | None, query: Mapping[str, str] | None = None) -> int | None:
    """The index of the first event that a request asks for; None where it does not say.

    A browser repeats its address with every reconnect, so the header wins over the query, and in the query
    ``lastEventId`` (the last event seen) over ``offset`` (the first one wanted).

    Args:
        last_event_id: the header ``Last-Event-ID``.
        query: the query's parameters.

    Raises:
        ValueError: the value that counts is malformed; answer 400.
    """
    query = query or {}
    offset = parse_last_event_id(last_event_id)
    if offset is None:
        offset = parse_last_event_id(query.get("lastEventId"))
    if offset is None and query.get("offset"):
        offset = _index(query["offset"])
    return offset


def _index(value: str) -> int:
    if not _NUMBER.fullmatch(value) or int(value) >= MAX_INDEX:
        raise ValueError(f"not a position in a stream: {value[:40]!r}")
    return int(value)
