"""Errors of the S2 API as the server raises them: a status, a code and a message, or a body of its own.

A handler raises `ApiError`; the application turns it into an HTTP answer, a session into its terminal frame or
its last event. Not for errors of the library: those are in `s2pubsub.errors`.
"""

from __future__ import annotations

import json
from typing import Any

STATUS = {
    "bad_json": 400,
    "bad_proto": 400,
    "bad_query": 400,
    "bad_path": 400,
    "bad_header": 400,
    "bad_frame": 400,
    "decryption_failed": 400,
    "authn": 401,
    "basin_not_found": 404,
    "stream_not_found": 404,
    "request_timeout": 408,
    "resource_already_exists": 409,
    "basin_deletion_pending": 409,
    "stream_deletion_pending": 409,
    "invalid": 422,
    "other": 500,
    "storage": 500,
    "not_implemented": 501,
    "unavailable": 503,
}


class ApiError(Exception):
    """A request failed: `status` and the JSON `body` say how."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.status = STATUS[code]
        self.document: dict[str, Any] = {"code": code, "message": message}

    @property
    def body(self) -> bytes:
        return json.dumps(self.document, separators=(",", ":"), ensure_ascii=False).encode()


class ConditionError(ApiError):
    """An append's condition does not hold; the body says what would."""

    def __init__(self, document: dict[str, Any]) -> None:
        Exception.__init__(self, "the condition of the append does not hold")
        self.status = 412
        self.document = document


class UnwrittenError(ApiError):
    """A read starts at or beyond the tail and may not wait there; the body tells the tail."""

    def __init__(self, seq_num: int, timestamp: int) -> None:
        Exception.__init__(self, "the read starts at or beyond the tail")
        self.status = 416
        self.document = {"tail": {"seq_num": seq_num, "timestamp": timestamp}}


class BareError(ApiError):
    """An answer without a body: no such route (404), no such method on it (405), an unknown encoding (415)."""

    def __init__(self, status: int, allow: str = "") -> None:
        Exception.__init__(self, f"status {status}")
        self.status = status
        self.document = {}
        self.allow = allow

    @property
    def body(self) -> bytes:
        return b""


class DisconnectedError(Exception):
    """The client has gone, or has reset its request."""
