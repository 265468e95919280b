"""Answers of a server in a form that can be compared: frames, protobuf and events taken apart, chance removed."""

from __future__ import annotations

import json
from typing import Any

from s2pubsub.server.protobuf import decode_records
from tests.conformance.raw_case import Case
from tests.server.raw import Answer, without_varying


def comparable(case: Case, answer: Answer) -> tuple[int, dict[str, str], Any]:
    """What two servers must agree on in ``answer``."""
    status, headers, body = answer.comparable()
    kind = headers.get("content-type", "")
    reading = case.method == "GET"
    if kind == "s2s/proto":
        body = [_frame(flags, part, reading=reading) for flags, part in frames(answer.body)]
    elif kind == "application/protobuf":
        body = message(answer.body, reading=reading)
    elif kind.startswith("text/event-stream"):
        body = [_event(text) for text in answer.body.decode().split("\n\n") if text]
    return status, headers, body


def frames(data: bytes) -> list[tuple[int, bytes]]:
    """The frames of a session: flags and body."""
    found: list[tuple[int, bytes]] = []
    while data:
        end = 3 + int.from_bytes(data[:3], "big")
        found.append((data[3], data[4:end]))
        data = data[end:]
    return found


def message(data: bytes, *, reading: bool) -> Any:
    """A ReadBatch as its records without timestamps, or an AppendAck as its three sequence numbers."""
    if not reading:
        return [number for number, _ in positions(data)]
    entries = b"".join(part for tag, part in fields(data) if tag == 0x0A)
    return [(seq_num, headers, body) for seq_num, _, headers, body in decode_records(entries)]


def fields(data: bytes) -> list[tuple[int, bytes]]:
    """The length-delimited fields of a message; those with tag 0x0a whole, since `decode_records` wants them so."""
    found: list[tuple[int, bytes]] = []
    pos = 0
    while pos < len(data):
        start, tag = pos, data[pos]
        size = shift = 0
        while True:
            pos += 1
            size |= (data[pos] & 0x7F) << shift
            shift += 7
            if data[pos] < 0x80:
                break
        pos += 1
        found.append((tag, data[start : pos + size] if tag == 0x0A else data[pos : pos + size]))
        pos += size
    return found


def positions(data: bytes) -> list[tuple[int, int]]:
    """The positions in an AppendAck: sequence number and timestamp."""
    found: list[tuple[int, int]] = []
    for tag, part in fields(data):
        values = {0x08: 0, 0x10: 0}
        pos = 2 if tag == 0x0A else 0
        while pos < len(part):
            key, value, shift = part[pos], 0, 0
            while True:
                pos += 1
                value |= (part[pos] & 0x7F) << shift
                shift += 7
                if part[pos] < 0x80:
                    break
            pos += 1
            values[key] = value
        found.append((values[0x08], values[0x10]))
    return found


def _frame(flags: int, body: bytes, *, reading: bool) -> Any:
    if not flags & 0x80:
        return flags, message(body, reading=reading)
    return flags, int.from_bytes(body[:2], "big"), without_varying(json.loads(body[2:]))


def _event(text: str) -> dict[str, Any]:
    event: dict[str, Any] = {}
    for line in text.split("\n"):
        name, _, value = line.partition(":")
        event[name] = value.lstrip(" ")
    if event.get("data", "").startswith("{"):
        event["data"] = without_varying(json.loads(event["data"]))
    return event
