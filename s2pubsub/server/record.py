"""Records on their way into a stream: validation, command records, batches as they are stored.

A `Batch` is what one append stored. It holds its records in the encoded form of `ReadBatch.records`, one after the
other, with the place where each ends, so that reading copies bytes and decodes nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from attrs import frozen

from s2pubsub.server.failure import ApiError
from s2pubsub.server.names import MAX_BATCH_BYTES, MAX_BATCH_RECORDS, MAX_TOKEN_BYTES
from s2pubsub.server.protobuf import RawRecord, record_payload, varint


@frozen
class Command:
    """A fence with its token, or a trim with its sequence number."""

    fence: str | None = None
    trim: int | None = None


class Entry:
    """One valid record of an append. ``payload`` is its encoded headers and body."""

    __slots__ = ("command", "metered", "payload", "timestamp")

    def __init__(self, timestamp: int | None, payload: bytes, metered: int, command: Command | None) -> None:
        self.timestamp = timestamp
        self.payload = payload
        self.metered = metered
        self.command = command


@frozen
class AppendInput:
    """A valid append."""

    entries: list[Entry]
    metered: int
    match_seq_num: int | None
    fencing_token: str | None


def make_input(records: Sequence[RawRecord], match_seq_num: int | None, fencing_token: str | None) -> AppendInput:
    """The append of ``records``; `ApiError` (invalid) where they break a rule."""
    if not 1 <= len(records) <= MAX_BATCH_RECORDS:
        raise ApiError("invalid", f"a batch has 1 to {MAX_BATCH_RECORDS} records")
    if fencing_token is not None and len(fencing_token.encode()) > MAX_TOKEN_BYTES:
        raise ApiError("invalid", f"a fencing token has at most {MAX_TOKEN_BYTES} bytes")
    entries: list[Entry] = []
    total = 0
    for timestamp, headers, body in records:
        metered = 8 + len(body)
        command = None
        if headers:
            for name, value in headers:
                metered += 2 + len(name) + len(value)
                if not name:
                    if len(headers) != 1:
                        raise ApiError("invalid", "an empty header name is for command records only")
                    command = _command(value, body)
        if metered > MAX_BATCH_BYTES:
            raise ApiError("invalid", f"a record has at most {MAX_BATCH_BYTES} metered bytes")
        total += metered
        entries.append(Entry(timestamp, record_payload(headers, body), metered, command))
    if total > MAX_BATCH_BYTES:
        raise ApiError("invalid", f"a batch has at most {MAX_BATCH_BYTES} metered bytes")
    return AppendInput(entries, total, match_seq_num, fencing_token)


def _command(name: bytes, body: bytes) -> Command:
    if name == b"fence":
        if len(body) > MAX_TOKEN_BYTES:
            raise ApiError("invalid", f"a fencing token has at most {MAX_TOKEN_BYTES} bytes")
        try:
            return Command(fence=body.decode())
        except UnicodeDecodeError:
            raise ApiError("invalid", "a fencing token is UTF-8") from None
    if name == b"trim":
        if len(body) != 8:
            raise ApiError("invalid", "the body of a trim command is eight bytes")
        return Command(trim=int.from_bytes(body, "big"))
    raise ApiError("invalid", "unknown command")


class Batch:
    """The records of one append as they are stored: ``count`` of them from ``seq_num`` on.

    ``ends``, ``sizes`` and ``timestamps`` give for each record where it ends in ``data``, its metered size and its
    timestamp. ``expires`` is when all of them expire, in milliseconds since the epoch, None for never.
    """

    __slots__ = ("count", "data", "ends", "expires", "metered", "seq_num", "sizes", "timestamps")

    def __init__(
        self,
        seq_num: int,
        data: bytes,
        ends: Sequence[int],
        sizes: Sequence[int],
        timestamps: Sequence[int],
        expires: int | None,
    ) -> None:
        self.seq_num = seq_num
        self.count = len(ends)
        self.data = data
        self.ends = ends
        self.sizes = sizes
        self.timestamps = timestamps
        self.metered = sizes[0] if len(sizes) == 1 else sum(sizes)
        self.expires = expires

    @property
    def next_seq_num(self) -> int:
        return self.seq_num + self.count

    @property
    def last_timestamp(self) -> int:
        return self.timestamps[-1]

    def index(self) -> bytes:
        """Ends, sizes and timestamps as bytes, for the store."""
        n = self.count
        return struct.pack(f"<{n}I{n}I{n}Q", *self.ends, *self.sizes, *self.timestamps)


def batch_from_index(seq_num: int, index: bytes, data: bytes, expires: int | None) -> Batch:
    """The batch whose `Batch.index` the store kept."""
    n = len(index) // 16
    numbers = struct.unpack(f"<{n}I{n}I{n}Q", index)
    return Batch(seq_num, data, numbers[:n], numbers[n : 2 * n], numbers[2 * n :], expires)


def make_batch(seq_num: int, entries: Iterable[Entry], timestamps: Sequence[int], expires: int | None) -> Batch:
    """The batch of ``entries`` with consecutive sequence numbers from ``seq_num``."""
    parts: list[bytes] = []
    ends: list[int] = []
    sizes: list[int] = []
    end = 0
    last_timestamp = last_length = -1
    stamp = prefix = b""
    for number, (entry, timestamp) in enumerate(zip(entries, timestamps, strict=True), seq_num):
        if timestamp != last_timestamp:
            stamp = b"\x10" + varint(timestamp)
            last_timestamp = timestamp
        position = b"\x08" + varint(number) + stamp
        length = len(position) + len(entry.payload)
        if length != last_length:
            prefix = b"\x0a" + varint(length)
            last_length = length
        parts += (prefix, position, entry.payload)
        end += len(prefix) + length
        ends.append(end)
        sizes.append(entry.metered)
    return Batch(seq_num, b"".join(parts), tuple(ends), tuple(sizes), tuple(timestamps), expires)
