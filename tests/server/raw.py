"""Raw requests over HTTP/1.1, exactly as given, and their answers reduced to what two servers must agree on."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Mapping
from typing import Any

from attrs import frozen

COMPARED_HEADERS = ("content-type", "s2-provision-result", "allow", "cache-control", "x-accel-buffering")
VARYING = {"created_at", "deleted_at", "timestamp", "message", "state", "location"}
"""What differs from server to server, or from run to run, and means nothing."""


@frozen
class Answer:
    """A status, the headers in lower case, and the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def document(self) -> Any:
        return json.loads(self.body)

    def comparable(self) -> tuple[int, dict[str, str], Any]:
        """The answer without what varies."""
        headers = {name: self.headers[name] for name in COMPARED_HEADERS if name in self.headers}
        if "allow" in headers:
            headers["allow"] = ",".join(sorted(headers["allow"].split(",")))
        body: Any = base64.b64encode(self.body).decode()
        if headers.get("content-type") == "application/json" and self.body:
            body = without_varying(self.document())
        return self.status, headers, body


def without_varying(document: Any) -> Any:
    """``document`` with the values of varying keys replaced by their type."""
    if isinstance(document, dict):
        return {
            key: type(value).__name__ if key in VARYING else without_varying(value)
            for key, value in document.items()
            if key != "tail"
            or "records" not in document  # the API promises a read's tail, the real server leaves it out
        }
    if isinstance(document, list):
        return [without_varying(item) for item in document]
    return document


def send(
    port: int, method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> Answer:
    """One request, on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.putrequest(method, target, skip_accept_encoding=True)
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("content-length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()
