"""The framing of sessions (``s2s/proto``): three bytes of length, one of flags, a body.

`FrameDecoder` takes bytes as they come and gives whole message bodies; the two encoders make one frame each.
"""

from __future__ import annotations

from collections.abc import Iterator

from s2pubsub.server.compression import Codec, compress, decompress
from s2pubsub.server.failure import ApiError

MAX_FRAME = 2 * 1024 * 1024
_COMPRESSIBLE = 1024
_TERMINAL = 0x80
_FLAGS: dict[Codec, int] = {"zstd": 0x20, "gzip": 0x40}
_CODECS: dict[int, Codec] = {flag: codec for codec, flag in _FLAGS.items()}


def encode_frame(body: bytes, codec: Codec | None = None) -> bytes:
    """A regular frame; the body is compressed with ``codec`` where that is worth it."""
    flags = 0
    if codec is not None and len(body) >= _COMPRESSIBLE:
        flags = _FLAGS[codec]
        body = compress(body, codec)
    return (len(body) + 1).to_bytes(3, "big") + bytes((flags,)) + body


def encode_terminal(error: ApiError) -> bytes:
    """The terminal frame that ends a session with ``error``."""
    body = error.status.to_bytes(2, "big") + error.body
    return (len(body) + 1).to_bytes(3, "big") + bytes((_TERMINAL,)) + body


class FrameDecoder:
    """Cuts what a client sends into message bodies."""

    def __init__(self) -> None:
        self._buffer = b""

    @property
    def pending(self) -> bool:
        """Whether a frame has begun and not ended."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies that are complete now that ``data`` has come.

        Raises `ApiError` (bad_frame) at the place of a wrong frame, after the bodies before it; the decoder is then
        unusable.
        """
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        pos, end = 0, len(data)
        while end - pos >= 3:
            length = int.from_bytes(data[pos : pos + 3], "big")
            if not 1 <= length <= MAX_FRAME:
                raise ApiError("bad_frame", "the length of a frame is out of range")
            stop = pos + 3 + length
            if stop > end:
                break
            yield _open(data[pos + 3], data[pos + 4 : stop])
            pos = stop
        self._buffer = data[pos:]


def _open(flags: int, body: bytes) -> bytes:
    if flags & _TERMINAL:
        raise ApiError("bad_frame", "a terminal frame comes from the server only")
    kind = flags & 0x60
    if kind == 0:
        return body
    codec = _CODECS.get(kind)
    if codec is None:
        raise ApiError("bad_frame", "unknown compression of a frame")
    try:
        return decompress(body, codec, MAX_FRAME - 1)
    except ValueError as error:
        raise ApiError("bad_frame", str(error)) from None
