"""The ordinary record, read by msgspec where the extra ``fast`` is installed: in a third of the time.

Not for deciding what an event is. msgspec refuses more than ``reading`` does: lone surrogates, and here every envelope
with unknown keys. What it refuses goes the other way, which takes it or says what is wrong with it. What it takes, both
take alike: `test_codec_fast` compares them on random texts, sound and damaged.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_LOWEST = (0, 21)
"""Of older versions the errors are no ValueError, and those before 0.19 read some large integers as floats."""

DEPTH = 50
"""Deepest nesting of a record for ``read_envelope``. It overflows a 64 KiB thread stack beyond 135 levels."""


def _reader() -> Callable[[bytes], Any] | None:
    try:
        import msgspec
    except ImportError:  # the extra is not installed
        return None
    version = re.match(r"(\d+)\.(\d+)", getattr(msgspec, "__version__", ""))
    if version is None or (int(version[1]), int(version[2])) < _LOWEST:
        return None
    fields: list[Any] = [("type", str), ("runId", str), ("id", str), ("data", Any), ("createdAt", Any)]
    fields.append(("deliveryAttempt", Any, 1))
    envelope = msgspec.defstruct("Envelope", fields, forbid_unknown_fields=True, gc=False)
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(envelope)
    return decoder.decode


read_envelope = _reader()
"""Reads an envelope without unknown keys; ValueError or RecursionError where it does not. None without msgspec."""
