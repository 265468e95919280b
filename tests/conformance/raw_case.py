"""Raw requests as values, and the parts to write them down with."""

from __future__ import annotations

import json
from typing import Any

from attrs import field, frozen

from s2pubsub.server.protobuf import record_payload, varint

JSON = {"content-type": "application/json"}
PROTOBUF = {"content-type": "application/protobuf"}
SESSION = {"content-type": "s2s/proto"}
EVENTS = {"accept": "text/event-stream"}
BASIN = {"s2-basin": "basin-one"}
ONE = b'{"records":[{"body":"x"}]}'


@frozen
class Case:
    """A request, exactly as it is sent."""

    method: str
    target: str
    headers: dict[str, str] = field(factory=dict)
    body: bytes | None = None


def dump(document: Any) -> bytes:
    return json.dumps(document).encode()


def append_input(bodies: list[bytes], match_seq_num: int | None = None, fencing_token: str | None = None) -> bytes:
    """A protobuf AppendInput of records without headers."""
    out = b""
    for body in bodies:
        record = record_payload([], body).replace(b"\x22", b"\x1a", 1)
        out += b"\x0a" + varint(len(record)) + record
    if match_seq_num is not None:
        out += b"\x10" + varint(match_seq_num)
    if fencing_token is not None:
        out += b"\x1a" + varint(len(fencing_token)) + fencing_token.encode()
    return out


def frame(body: bytes, flags: int = 0) -> bytes:
    return (len(body) + 1).to_bytes(3, "big") + bytes([flags]) + body
