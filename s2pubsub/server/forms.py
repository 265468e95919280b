"""The JSON forms of appends, reads and positions, and server-sent events.

Text goes as it is (``raw``, with invalid UTF-8 replaced) or as base64, as the client chose.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from typing import Any

from s2pubsub.server.config import unsigned
from s2pubsub.server.failure import ApiError
from s2pubsub.server.log import Ack, Position
from s2pubsub.server.names import MAX_TOKEN_BYTES
from s2pubsub.server.protobuf import RawRecord, decode_records
from s2pubsub.server.record import AppendInput, make_input
from s2pubsub.server.request import Format


def dump(document: Any) -> bytes:
    """``document`` as compact JSON."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def position(place: Position) -> dict[str, int]:
    """The JSON form of a position."""
    return {"seq_num": place[0], "timestamp": place[1]}


def append_input(document: dict[str, Any], form: Format) -> AppendInput:
    """The append that a JSON body asks for."""
    try:
        records = document["records"]
        if not isinstance(records, list):
            raise ValueError("records is a list")
        decode = _DECODERS[form]
        raw = [_record(record, decode) for record in records]
        match_seq_num = document.get("match_seq_num")
        if match_seq_num is not None:
            unsigned(match_seq_num, "match_seq_num")
        fencing_token = document.get("fencing_token")
        if fencing_token is not None:
            if not isinstance(fencing_token, str):
                raise ValueError("fencing_token is a string")
            if len(fencing_token.encode()) > MAX_TOKEN_BYTES:
                raise ValueError(f"a fencing token has at most {MAX_TOKEN_BYTES} bytes")
    except KeyError:
        raise ApiError("bad_json", "records is missing") from None
    except UnicodeEncodeError:
        raise ApiError("bad_json", "a string is not valid Unicode") from None
    except ValueError as error:
        raise ApiError("bad_json", str(error)) from None
    return make_input(raw, match_seq_num, fencing_token)


def _record(record: Any, decode: Callable[[str], bytes]) -> RawRecord:
    if not isinstance(record, dict):
        raise ValueError("a record is an object")
    timestamp = record.get("timestamp")
    if timestamp is not None:
        unsigned(timestamp, "timestamp")
    headers = record.get("headers", [])
    body = record.get("body", "")
    if not isinstance(headers, list) or not isinstance(body, str):
        raise ValueError("the headers of a record are a list, its body is a string")
    pairs: list[tuple[bytes, bytes]] = []
    for header in headers:
        if not isinstance(header, list) or len(header) != 2 or not all(isinstance(part, str) for part in header):
            raise ValueError("a header is a pair of strings")
        pairs.append((decode(header[0]), decode(header[1])))
    return timestamp, pairs, decode(body)


def _decode_base64(text: str) -> bytes:
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise ApiError("invalid", "not valid base64") from None
    if base64.b64encode(data).decode() != text:
        raise ApiError("invalid", "not canonical base64")
    return data


_DECODERS: dict[Format, Callable[[str], bytes]] = {"raw": str.encode, "base64": _decode_base64}
_ENCODERS: dict[Format, Callable[[bytes], str]] = {
    "raw": lambda data: data.decode(errors="replace"),
    "base64": lambda data: base64.b64encode(data).decode(),
}


def ack(positions: Ack) -> bytes:
    """The JSON form of an acknowledgement."""
    start, end, tail = positions
    return dump({"start": position(start), "end": position(end), "tail": position(tail)})


def read_batch(data: bytes, tail: Position | None, form: Format) -> bytes:
    """The JSON form of encoded records."""
    encode = _ENCODERS[form]
    records: list[dict[str, Any]] = []
    for seq_num, timestamp, headers, body in decode_records(data):
        record: dict[str, Any] = {"seq_num": seq_num, "timestamp": timestamp}
        if headers:
            record["headers"] = [[encode(name), encode(value)] for name, value in headers]
        if body:
            record["body"] = encode(body)
        records.append(record)
    document: dict[str, Any] = {"records": records}
    if tail is not None:
        document["tail"] = position(tail)
    return dump(document)


def event(name: str, data: bytes, event_id: str = "") -> bytes:
    """One server-sent event."""
    parts = [b"event: " + name.encode() + b"\n"] if name else []
    if event_id:
        parts.append(b"id: " + event_id.encode() + b"\n")
    parts.append(b"data: " + data + b"\n\n")
    return b"".join(parts)
