"""Bytes of the protocols that the proxy edits: HTTP/2 frames, S2 session frames, and the records of a read batch.

Not for: what to do with them (`http2`), nor anything that must be complete; only what faults need is parsed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

import attrs

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_FRAME = 16384

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

NO_ERROR, CANCEL = 0x0, 0x8

_HEAD = struct.Struct("!HBBBI")


@attrs.frozen
class Frame:
    """One HTTP/2 frame; ``raw`` is all of it, as it came."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes
    raw: bytes

    def content(self) -> bytes:
        """The payload of DATA or HEADERS without padding and priority."""
        start, end = 0, len(self.payload)
        if self.flags & PADDED:
            start, end = 1, end - self.payload[0]
        if self.kind == HEADERS and self.flags & HAS_PRIORITY:
            start += 5
        return self.payload[start:end]


class FrameBuffer:
    """Cuts a stream of bytes into HTTP/2 frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete with ``data``."""
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= 9:
            high, low, kind, flags, stream_id = _HEAD.unpack_from(buffer, start)
            end = start + 9 + (high << 8 | low)
            if end > len(buffer):
                break
            raw = bytes(buffer[start:end])
            start = end
            yield Frame(kind, flags, stream_id & 0x7FFFFFFF, raw[9:], raw)
        del buffer[:start]


def build(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """One HTTP/2 frame."""
    return _HEAD.pack(len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream_id) + payload


def build_data(stream_id: int, data: bytes, *, end: bool = False) -> bytes:
    """DATA frames for ``data``, none larger than every peer accepts."""
    if not data:
        return build(DATA, END_STREAM, stream_id) if end else b""
    pieces = [data[at : at + MAX_FRAME] for at in range(0, len(data), MAX_FRAME)]
    flags = [0] * (len(pieces) - 1) + [END_STREAM if end else 0]
    return b"".join(build(DATA, flag, stream_id, piece) for flag, piece in zip(flags, pieces, strict=True))


def build_headers(stream_id: int, block: bytes, *, end: bool) -> bytes:
    """HEADERS, with CONTINUATION where the block is too large for one frame."""
    pieces = [block[at : at + MAX_FRAME] for at in range(0, len(block), MAX_FRAME)] or [b""]
    frames = []
    for number, piece in enumerate(pieces):
        flags = END_HEADERS if number == len(pieces) - 1 else 0
        if number == 0 and end:
            flags |= END_STREAM
        frames.append(build(HEADERS if number == 0 else CONTINUATION, flags, stream_id, piece))
    return b"".join(frames)


def build_window_update(stream_id: int, increment: int) -> bytes:
    """WINDOW_UPDATE; ``increment`` must not be 0."""
    return build(WINDOW_UPDATE, 0, stream_id, struct.pack("!I", increment))


def build_reset(stream_id: int, code: int) -> bytes:
    """RST_STREAM."""
    return build(RST_STREAM, 0, stream_id, struct.pack("!I", code))


def build_goaway(last_stream_id: int, code: int) -> bytes:
    """GOAWAY."""
    return build(GOAWAY, 0, 0, struct.pack("!II", last_stream_id, code))


class SessionFrames:
    """Follows the length prefixes of an S2 session body."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0

    @property
    def at_boundary(self) -> bool:
        """Whether the last byte seen ended a frame."""
        return not self._head and not self._left

    def split(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Pieces of ``data``, each with whether a frame ends with it."""
        start = at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
                at += step
                if not self._left:
                    yield data[start:at], True
                    start = at
            else:
                self._head += data[at : at + 1]
                at += 1
                if len(self._head) == 3:
                    self._left = int.from_bytes(self._head, "big")
                    self._head = b""
        if start < at:
            yield data[start:at], False


def build_terminal(status: int, code: str, message: str) -> bytes:
    """An S2 session frame that ends the session with an error."""
    body = struct.pack("!H", status) + error_body(code, message)
    return (len(body) + 1).to_bytes(3, "big") + b"\x80" + body


def error_body(code: str, message: str) -> bytes:
    """The JSON body of an S2 error."""
    return json.dumps({"code": code, "message": message}).encode()


def records_of(frame: bytes) -> list[tuple[int, bytes]] | None:
    """``(sequence number, encoded record)`` of each record in a session frame; None if terminal or compressed."""
    if frame[3] & 0xE0:
        return None
    return [
        (_sequence_number(value), raw)
        for number, value, raw in _fields(frame[4:])
        if number == 1 and isinstance(value, bytes)
    ]


def build_batch(records: list[tuple[int, bytes]]) -> bytes:
    """A read session's frame with these records and no tail."""
    body = b"".join(raw for _, raw in records)
    return (len(body) + 1).to_bytes(3, "big") + b"\x00" + body


def _sequence_number(record: bytes) -> int:
    return next((value for number, value, _ in _fields(record) if number == 1 and isinstance(value, int)), 0)


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int, bytes]]:
    """Field number, value and raw bytes of each protobuf field (varint and length-delimited ones)."""
    at = 0
    while at < len(message):
        start = at
        tag, at = _varint(message, at)
        if tag & 7 == 0:
            value, at = _varint(message, at)
            yield tag >> 3, value, message[start:at]
        elif tag & 7 == 2:
            length, at = _varint(message, at)
            at += length
            yield tag >> 3, message[at - length : at], message[start:at]
        else:
            raise ValueError(f"unexpected protobuf wire type {tag & 7}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
