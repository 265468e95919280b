"""A client of server-sent events as browsers have it, on plain sockets, so that a test can also leave like a crash.

``parse`` follows the rules of the HTML standard; it shares nothing with the package.
"""

from __future__ import annotations

import http.client
import json
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

from tests.waiting import LONG


@dataclass
class Message:
    """What a browser dispatches."""

    type: str
    data: str
    last_event_id: str

    @property
    def json(self) -> Any:
        return json.loads(self.data)


class Parser:
    """The standard's "interpreting an event stream", fed with pieces."""

    def __init__(self, last_event_id: str = "") -> None:
        self.last_event_id = last_event_id
        self.retry: int | None = None
        self.comments = 0
        self._id = last_event_id
        self._text = ""
        self._raw = b""
        self._type = ""
        self._data: list[str] = []
        self._first = True

    def feed(self, piece: bytes) -> list[Message]:
        self._raw += piece
        found = []
        while True:
            ends = [place for place in (self._raw.find(b"\r"), self._raw.find(b"\n")) if place >= 0]
            if not ends:
                return found
            end = min(ends)
            if self._raw[end : end + 1] == b"\r" and end + 1 == len(self._raw):
                return found  # an LF may follow
            size = 2 if self._raw[end : end + 2] == b"\r\n" else 1
            line, self._raw = self._raw[:end].decode(), self._raw[end + size :]
            message = self._line(line)
            if message is not None:
                found.append(message)

    def _line(self, line: str) -> Message | None:
        if self._first:
            line, self._first = line.removeprefix("\ufeff"), False
        if line == "":
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "":
            self.comments += 1
        elif name == "event":
            self._type = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry = int(value)
        return None

    def _dispatch(self) -> Message | None:
        self.last_event_id = self._id
        type, data = self._type, self._data
        self._type, self._data = "", []
        return Message(type or "message", "\n".join(data), self.last_event_id) if data else None


def parse(text: bytes) -> list[Message]:
    """The messages of a whole body."""
    return Parser().feed(text)


class Connection:
    """One GET of an event stream."""

    def __init__(
        self,
        port: int,
        path: str,
        headers: dict[str, str] | None = None,
        *,
        buffer: int | None = None,
        timeout: float = LONG,
        method: str = "GET",
    ) -> None:
        self.socket = socket.socket()
        if buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(timeout)
        try:
            self.socket.connect(("127.0.0.1", port))
            fields = {"Host": f"127.0.0.1:{port}", "Accept": "text/event-stream", **(headers or {})}
            lines = [f"{method} {quote(path, safe='/?&=%:')} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items())]
            self.socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
            self.parser = Parser((headers or {}).get("Last-Event-ID", ""))
            self._response: http.client.HTTPResponse | None = None
        except BaseException:
            self.socket.close()
            raise

    @property
    def response(self) -> http.client.HTTPResponse:
        if self._response is None:
            self._response = http.client.HTTPResponse(self.socket)
            self._response.begin()
        return self._response

    @property
    def status(self) -> int:
        return self.response.status

    def messages(self) -> Iterator[Message]:
        """What comes, until the server ends the body. TimeoutError when it is silent for too long."""
        while piece := self.response.read1(65536):
            yield from self.parser.feed(piece)

    def read(self) -> bytes:
        return self.response.read()

    def first_bytes(self) -> bytes:
        return self.response.read1(65536)

    def reset(self) -> None:
        """Leave as a crash does: by RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EventSource:
    """Connects again and again, as browsers do, until ``end``, a status that ends it, or the time limit."""

    def __init__(self, port: int, path: str, *, timeout: float = LONG, stop_at_end: bool = True) -> None:
        self.port = port
        self.path = path
        self.last_event_id = ""
        self.connections = 0
        self.statuses: list[int] = []
        self._timeout = timeout
        self._stop_at_end = stop_at_end

    def messages(self) -> Iterator[Message]:
        give_up = time.monotonic() + self._timeout
        while time.monotonic() < give_up:
            headers = {"Last-Event-ID": self.last_event_id} if self.last_event_id else {}
            try:
                with Connection(self.port, self.path, headers) as connection:
                    self.connections += 1
                    self.statuses.append(connection.status)
                    if connection.status == 503:
                        time.sleep(0.1)  # a browser would give up; an application tries again
                        continue
                    if connection.status != 200:
                        return
                    for message in connection.messages():
                        self.last_event_id = connection.parser.last_event_id
                        yield message
                        if message.type == "end" and self._stop_at_end:
                            return
                    self.last_event_id = connection.parser.last_event_id
            except (OSError, http.client.HTTPException):
                time.sleep(0.1)  # the server is away; as `retry`
        raise AssertionError(f"no end within {self._timeout} s")
