"""A blocking HTTP/2 client for tests: one connection, frames in the order in which the test wants them."""

from __future__ import annotations

import json
import socket
import time
from types import TracebackType
from typing import Any, Self

import h2.config
import h2.connection
import h2.events
from attrs import define, field

from tests.conformance.answers import frames
from tests.waiting import LONG


@define
class Received:
    """What has come for one stream."""

    status: int | None = None
    headers: dict[str, str] = field(factory=dict)
    body: bytes = b""
    ended: bool = False
    reset: int | None = None

    def frames(self) -> list[tuple[int, bytes]]:
        """The whole session frames in the body."""
        data = self.body
        end = 0
        while len(data) >= end + 3 and len(data) >= end + 3 + int.from_bytes(data[end : end + 3], "big"):
            end += 3 + int.from_bytes(data[end : end + 3], "big")
        return frames(data[:end])

    def terminal(self) -> tuple[int, Any] | None:
        """Status and JSON of the terminal frame, if it has come."""
        for flags, body in self.frames():
            if flags & 0x80:
                return int.from_bytes(body[:2], "big"), json.loads(body[2:])
        return None


class H2Client:
    """One connection to ``port``. With ``credit`` False it never gives flow-control credit back."""

    def __init__(self, port: int, *, credit: bool = True) -> None:
        self.credit = credit
        self.goaway = False
        self.closed = False
        self.streams: dict[int, Received] = {}
        self._port = port
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=LONG)
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._h2.initiate_connection()
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def flush(self) -> None:
        self._socket.sendall(self._h2.data_to_send())

    def open(self, method: str, path: str, headers: dict[str, str] | None = None, *, end: bool = True) -> int:
        """Begin a request; its stream."""
        stream = self._h2.get_next_available_stream_id()
        fields = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "test")]
        self._h2.send_headers(stream, [*fields, *(headers or {}).items()], end_stream=end)
        self.streams[stream] = Received()
        self.flush()
        return stream

    def send(self, stream: int, data: bytes, *, end: bool = False) -> None:
        """Send a part of a body, waiting for credit."""
        while data:
            room = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size, len(data))
            if room == 0:
                self.receive(time.monotonic() + LONG)
                continue
            self._h2.send_data(stream, data[:room], end_stream=end and room == len(data))
            data = data[room:]
            self.flush()

    def end(self, stream: int) -> None:
        self._h2.end_stream(stream)
        self.flush()

    def reset(self, stream: int) -> None:
        self._h2.reset_stream(stream)
        self.flush()

    def receive(self, deadline: float) -> None:
        """Take in what comes next; AssertionError when nothing comes in time."""
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            data = self._socket.recv(65536)
        except TimeoutError:
            raise AssertionError("the server sent nothing more") from None
        if not data:
            self.closed = True
            return
        for event in self._h2.receive_data(data):
            self._take(event)
        self.flush()

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ConnectionTerminated):
            self.goaway = True
            return
        stream = self.streams.get(getattr(event, "stream_id", None) or 0)
        if stream is None:
            return
        if isinstance(event, h2.events.ResponseReceived):
            stream.headers = dict(event.headers or ())
            stream.status = int(stream.headers[":status"])
        elif isinstance(event, h2.events.DataReceived):
            stream.body += event.data or b""
            if self.credit:
                self._h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id or 0)
        elif isinstance(event, h2.events.StreamEnded):
            stream.ended = True
        elif isinstance(event, h2.events.StreamReset):
            stream.reset = int(event.error_code or 0)

    def wait(self, stream: int, condition: Any, timeout: float = LONG) -> Received:
        """Receive until ``condition(received)`` holds for the stream."""
        deadline = time.monotonic() + timeout
        while not condition(self.streams[stream]):
            assert not self.closed, f"the server closed the connection: {self.streams[stream]}"
            self.receive(deadline)
        return self.streams[stream]

    def wait_closed(self, timeout: float = LONG) -> None:
        """Receive until the server closes the connection."""
        deadline = time.monotonic() + timeout
        while not self.closed:
            self.receive(deadline)

    def request(self, method: str, path: str, headers: dict[str, str] | None = None, body: Any = None) -> Received:
        """A whole request and its answer."""
        data = b"" if body is None else json.dumps(body).encode()
        fields = {**(headers or {}), **({"content-type": "application/json"} if data else {})}
        stream = self.open(method, path, fields, end=not data)
        if data:
            self.send(stream, data, end=True)
        return self.wait(stream, lambda received: received.ended)
