"""The listening socket: accepts connections and finds out which HTTP each speaks.

A client with HTTP/2 by prior knowledge begins with a fixed preface; anything else is taken for HTTP/1.1.
"""

from __future__ import annotations

import asyncio
import socket

from s2pubsub.secrecy import hide_secrets
from s2pubsub.server.http1 import Http1Connection
from s2pubsub.server.http2 import Handler, Http2Connection

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HELLO_TIMEOUT = 15.0
_BACKLOG = 1024


class _Connection(asyncio.Protocol):
    """A connection whose version of HTTP is told by its first bytes."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._hello = b""
        self._timer: asyncio.TimerHandle | None = None
        self.transport: asyncio.Transport | None = None
        self.http: Http1Connection | Http2Connection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        _tune(transport.get_extra_info("socket"))
        self._timer = asyncio.get_running_loop().call_later(_HELLO_TIMEOUT, transport.close)
        self._listener.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self.http is None:
            data = self._hello + data
            if len(data) < len(_PREFACE) and _PREFACE.startswith(data):
                self._hello = data
                return
            self._hello = b""
            self._stop_timer()
            assert self.transport is not None
            kind = Http2Connection if data.startswith(_PREFACE) else Http1Connection
            self.http = kind(self.transport, self._listener.handler)
        self.http.data_received(data)

    def pause_writing(self) -> None:
        if self.http is not None:
            self.http.pause_writing()

    def resume_writing(self) -> None:
        if self.http is not None:
            self.http.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_timer()
        self._listener.forget(self)
        if self.http is not None:
            self.http.connection_lost()

    def close(self) -> None:
        if self.http is not None:
            self.http.close()
        elif self.transport is not None:
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Listener:
    """The open port of a server and its connections."""

    def __init__(self, handler: Handler) -> None:
        hide_secrets()  # of those who connect
        self.handler = handler
        self.connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self._empty: asyncio.Future[None] | None = None

    async def open(self, host: str, port: int) -> int:
        """Listen; return the port, which is a free one where ``port`` is 0. `OSError` where that fails."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), host, port, backlog=_BACKLOG)
        address: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        return address[1]

    def forget(self, connection: _Connection) -> None:
        """The connection is closed."""
        self.connections.discard(connection)
        if not self.connections and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def stop_listening(self) -> None:
        """Take no more connections, and let go of those on which nothing happens."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            if connection.http is None or connection.http.idle:
                connection.close()

    async def close(self, grace: float) -> None:
        """Close all connections, politely at first; whatever is left after ``grace`` seconds is cut."""
        self.stop_listening()
        for connection in list(self.connections):
            connection.close()
        if self.connections:
            self._empty = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._empty,), timeout=grace)
        for connection in list(self.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(0)


def _tune(sock: socket.socket | None) -> None:
    """Small answers leave at once, and a peer that has vanished is noticed."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", 60),
        ("TCP_KEEPINTVL", 15),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", 60_000),
    ):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
