"""Compression of bodies and frames: gzip from the standard library, zstd where the SDK's ``zstandard`` is present.

What comes in is bounded while it is decoded, so that a small frame cannot fill the memory.
"""

from __future__ import annotations

import gzip
import zlib
from typing import Literal

try:
    import zstandard
except ImportError:  # the server works without it, and then offers gzip only
    zstandard = None  # type: ignore[assignment]

Codec = Literal["zstd", "gzip"]
SUPPORTED = ("gzip", "zstd") if hasattr(zstandard, "ZstdCompressor") else ("gzip",)


class TooLargeError(ValueError):
    """The decompressed bytes exceed the limit."""


def choose(accept_encoding: str | None) -> Codec | None:
    """The codec for answers to a client that sent this ``accept-encoding``: zstd, else gzip, else none."""
    if not accept_encoding:
        return None
    offered: set[str] = set()
    for item in accept_encoding.split(","):
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        if not any(_is_zero_quality(parameter) for parameter in parameters):
            offered.add(name)
    if "zstd" in offered and zstandard is not None:
        return "zstd"
    return "gzip" if "gzip" in offered else None


def _is_zero_quality(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    try:
        return name.strip() == "q" and float(value) == 0
    except ValueError:
        return False


def compress(data: bytes, codec: Codec) -> bytes:
    """``data`` in the encoding ``codec``."""
    if codec == "gzip":
        return gzip.compress(data, compresslevel=1)
    return zstandard.ZstdCompressor(level=1).compress(data)


def decompress(data: bytes, codec: str, limit: int) -> bytes:
    """``data`` decoded, at most ``limit`` bytes; `TooLargeError` beyond, `ValueError` when it is not such data."""
    if codec == "gzip":
        return _gunzip(data, limit)
    if codec == "zstd" and zstandard is not None:
        return _unzstd(data, limit)
    raise ValueError(f"the encoding {codec!r} is not supported")


def _gunzip(data: bytes, limit: int) -> bytes:
    decoder = zlib.decompressobj(wbits=31)
    try:
        out = decoder.decompress(data, limit + 1)
    except zlib.error as error:
        raise ValueError(f"not gzip: {error}") from None
    if len(out) > limit:
        raise TooLargeError("the decompressed data is too large")
    if not decoder.eof:
        raise ValueError("the gzip data is cut short")
    return out


def _unzstd(data: bytes, limit: int) -> bytes:
    decoder = zstandard.ZstdDecompressor(max_window_size=2**23).decompressobj()
    out: list[bytes] = []
    size = 0
    try:
        # Small pieces of input bound what one call can produce before the size is looked at again.
        for start in range(0, len(data), 1024):
            if decoder.eof:
                raise ValueError("there is data after the zstd frame")
            piece = decoder.decompress(data[start : start + 1024])
            size += len(piece)
            if size > limit:
                raise TooLargeError("the decompressed data is too large")
            out.append(piece)
    except zstandard.ZstdError as error:
        raise ValueError(f"not zstd: {error}") from None
    if not decoder.eof:
        raise ValueError("the zstd data is cut short")
    return b"".join(out)
