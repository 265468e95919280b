"""Keeps access tokens and keys out of the debug logs of the library that compresses HTTP headers.

``hpack`` logs every header block that it writes or reads, at DEBUG. ``hide_secrets`` lets its records pass with what is
secret replaced. Relies on ``logging`` alone. Not for our own records, which never hold a secret.
"""

from __future__ import annotations

import logging
from typing import Any

_LOGGERS = ("hpack.hpack", "hpack.table")
_SECRET = (b"authorization", b"proxy-authorization", b"cookie", b"s2-encryption-key")


class _Discreet(logging.Filter):
    """Replaces the values of secret headers, and whole header blocks, whose compression anybody can undo."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = _cleaned(record.args)
        return True


def _cleaned(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    if not arguments:
        return arguments
    first, *rest = arguments
    if not rest and isinstance(first, bytes | bytearray | memoryview):
        return (f"{len(first)} bytes",)
    if isinstance(first, tuple) and first and _is_secret(first[0]):
        return ((first[0], "***"), *rest)
    if rest and _is_secret(first):
        return (first, "***", *rest[1:])
    return arguments


def _is_secret(name: object) -> bool:
    return isinstance(name, bytes | bytearray | memoryview) and bytes(name).lower() in _SECRET


_DISCREET = _Discreet()


def hide_secrets() -> None:
    """Install the filter, once however often it is called."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_DISCREET)
