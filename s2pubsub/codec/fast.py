"""The ordinary record, read by msgspec where the extra ``fast`` is installed: in a third of the time.

Not for deciding what an event is. msgspec refuses more than ``reading`` does: lone surrogates, numbers beyond a float,
integers of hundreds of digits, and here every envelope with unknown keys. What it refuses goes the other way, which
takes it or says what is wrong with it. What it takes, both take alike: `test_codec_fast` tries millions of texts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_LOWEST = (0, 19)
"""Older versions read some integers beyond 64 bits as floats."""

DEPTH = 50
"""Deepest nesting of a record for ``read_envelope``. It overflows a 64 KiB thread stack beyond 135 levels."""


def _reader() -> Callable[[bytes], Any] | None:
    try:
        import msgspec
    except ImportError:  # the extra is not installed
        return None
    if tuple(map(int, msgspec.__version__.split(".")[:2])) < _LOWEST:
        return None
    fields: list[Any] = [("type", str), ("runId", str), ("id", str), ("data", Any), ("createdAt", Any)]
    fields.append(("deliveryAttempt", Any, 1))
    envelope = msgspec.defstruct("Envelope", fields, forbid_unknown_fields=True, gc=False)
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(envelope)
    return decoder.decode


read_envelope = _reader()
"""Reads an envelope without unknown keys; ValueError or RecursionError where it does not. None without msgspec."""
