"""The seven protobuf messages of S2, encoded and decoded by hand.

The SDK registers generated classes of the same package, and a second registration in one process fails; besides,
an append need not be decoded further than to the place of its fields. A record is kept in the encoded form of
`ReadBatch.records`, so that a read is a concatenation.

Nothing here checks the rules of S2 (sizes, commands): that is `record.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

Headers = list[tuple[bytes, bytes]]
RawRecord = tuple[int | None, Headers, bytes]
"""Timestamp, headers and body of a record in an append."""

_MAX_VARINT_BYTES = 10
_MAX_DEPTH = 100


class ProtobufError(ValueError):
    """The bytes are not a message of the expected kind."""


def varint(value: int) -> bytes:
    """``value``, an unsigned 64-bit integer, as a protobuf varint."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_append_input(data: bytes) -> tuple[list[RawRecord], int | None, str | None]:
    """An `AppendInput`: its records, match_seq_num and fencing token; the last two None where absent."""
    records: list[RawRecord] = []
    match_seq_num: int | None = None
    fencing_token: str | None = None
    pos, end = 0, len(data)
    try:
        while pos < end:
            tag = data[pos]
            pos += 1
            if tag >= 0x80:
                tag, pos = _rest_of_varint(data, pos, tag)
            if tag == 0x0A:
                size = data[pos]
                pos += 1
                if size >= 0x80:
                    size, pos = _rest_of_varint(data, pos, size)
                stop = pos + size
                if stop > end:
                    raise ProtobufError("a record is cut short")
                records.append(_append_record(data, pos, stop))
                pos = stop
            elif tag == 0x10:
                match_seq_num, pos = _read_varint(data, pos, end)
            elif tag == 0x1A:
                value, pos = _read_bytes(data, pos, end)
                fencing_token = value.decode()
            else:
                pos = _skip(data, pos, end, tag, 3)
    except IndexError:
        raise ProtobufError("the message is cut short") from None
    except UnicodeDecodeError:
        raise ProtobufError("the fencing token is not UTF-8") from None
    return records, match_seq_num, fencing_token


def _append_record(data: bytes, pos: int, stop: int) -> RawRecord:
    timestamp: int | None = None
    headers: Headers = []
    body = b""
    while pos < stop:
        tag = data[pos]
        pos += 1
        if tag >= 0x80:
            tag, pos = _rest_of_varint(data, pos, tag)
        if tag == 0x1A:
            size = data[pos]
            pos += 1
            if size >= 0x80:
                size, pos = _rest_of_varint(data, pos, size)
            body = data[pos : pos + size]
            pos += size
        elif tag == 0x12:
            value, pos = _read_bytes(data, pos, stop)
            headers.append(_header(value))
        elif tag == 0x08:
            timestamp, pos = _read_varint(data, pos, stop)
        else:
            pos = _skip(data, pos, stop, tag, 3)
    if pos != stop:
        raise ProtobufError("a field is longer than its message")
    return timestamp, headers, body


def _header(data: bytes) -> tuple[bytes, bytes]:
    name = value = b""
    pos, end = 0, len(data)
    while pos < end:
        tag, pos = _read_varint(data, pos, end)
        if tag == 0x0A:
            name, pos = _read_bytes(data, pos, end)
        elif tag == 0x12:
            value, pos = _read_bytes(data, pos, end)
        else:
            pos = _skip(data, pos, end, tag, 2)
    return name, value


def record_payload(headers: Headers, body: bytes) -> bytes:
    """The fields of a `SequencedRecord` that the client decides: headers and body."""
    if not headers:
        return b"\x22" + varint(len(body)) + body if body else b""
    parts: list[bytes] = []
    for name, value in headers:
        inner = b""
        if name:
            inner = b"\x0a" + varint(len(name)) + name
        if value:
            inner += b"\x12" + varint(len(value)) + value
        parts += (b"\x1a", varint(len(inner)), inner)
    if body:
        parts += (b"\x22", varint(len(body)), body)
    return b"".join(parts)


def position_fields(seq_num: int, timestamp: int) -> bytes:
    """The content of a `StreamPosition`."""
    return b"\x08" + varint(seq_num) + b"\x10" + varint(timestamp)


def encode_ack(start: tuple[int, int], end: tuple[int, int], tail: tuple[int, int]) -> bytes:
    """An `AppendAck` of three positions (sequence number, timestamp)."""
    first, last, next_ = position_fields(*start), position_fields(*end), position_fields(*tail)
    return b"".join(
        (b"\x0a", varint(len(first)), first, b"\x12", varint(len(last)), last, b"\x1a", varint(len(next_)), next_)
    )


def encode_tail(seq_num: int, timestamp: int) -> bytes:
    """The `tail` field of a `ReadBatch`."""
    inner = position_fields(seq_num, timestamp)
    return b"\x12" + varint(len(inner)) + inner


def decode_records(data: bytes) -> Iterator[tuple[int, int, Headers, bytes]]:
    """The records (sequence number, timestamp, headers, body) of bytes that this module has encoded."""
    pos, end = 0, len(data)
    while pos < end:
        entry, pos = _read_bytes(data, pos + 1, end)
        seq_num = timestamp = at = 0
        headers: Headers = []
        body = b""
        while at < len(entry):
            tag = entry[at]
            at += 1
            if tag == 0x08:
                seq_num, at = _read_varint(entry, at, len(entry))
            elif tag == 0x10:
                timestamp, at = _read_varint(entry, at, len(entry))
            elif tag == 0x1A:
                value, at = _read_bytes(entry, at, len(entry))
                headers.append(_header(value))
            else:
                body, at = _read_bytes(entry, at, len(entry))
        yield seq_num, timestamp, headers, body


def _rest_of_varint(data: bytes, pos: int, first: int) -> tuple[int, int]:
    byte = data[pos]
    if byte < 0x80:  # most sizes have two bytes
        return first & 0x7F | byte << 7, pos + 1
    value = first & 0x7F
    shift = 7
    for _ in range(_MAX_VARINT_BYTES - 1):
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                raise ProtobufError("a varint has more than 64 bits")
            return value, pos
        shift += 7
    raise ProtobufError("a varint has more than ten bytes")


def _read_varint(data: bytes, pos: int, end: int) -> tuple[int, int]:
    value = data[pos]
    pos += 1
    if value >= 0x80:
        value, pos = _rest_of_varint(data, pos, value)
    if pos > end:
        raise ProtobufError("a varint is cut short")
    return value, pos


def _read_bytes(data: bytes, pos: int, end: int) -> tuple[bytes, int]:
    size, pos = _read_varint(data, pos, end)
    stop = pos + size
    if stop > end:
        raise ProtobufError("a field is cut short")
    return data[pos:stop], stop


def _skip(data: bytes, pos: int, end: int, tag: int, known: int, depth: int = 0) -> int:
    """The place after the unknown field with ``tag``, whose content begins at ``pos``.

    Fields up to number ``known`` are no unknown fields: such a one has the wrong wire type.
    """
    field, kind = tag >> 3, tag & 7
    if not known < field < 2**29:
        raise ProtobufError(f"field {field} has the wrong type or is out of range")
    if kind == 0:
        _, pos = _read_varint(data, pos, end)
    elif kind == 1:
        pos += 8
    elif kind == 2:
        _, pos = _read_bytes(data, pos, end)
    elif kind == 3 and depth < _MAX_DEPTH:
        pos = _skip_group(data, pos, end, field, depth + 1)
    elif kind == 5:
        pos += 4
    else:
        raise ProtobufError(f"wire type {kind} is not supported here")
    if pos > end:
        raise ProtobufError("a field is cut short")
    return pos


def _skip_group(data: bytes, pos: int, end: int, group: int, depth: int) -> int:
    while True:
        tag, pos = _read_varint(data, pos, end)
        if tag & 7 == 4:
            if tag >> 3 != group:
                raise ProtobufError("a group ends that did not begin")
            return pos
        pos = _skip(data, pos, end, tag, 0, depth)
