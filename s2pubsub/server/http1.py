"""HTTP/1.1 on one connection: one exchange after the other, with keep-alive.

The TypeScript SDK uses it for all calls but sessions, and browsers for everything. While a body waits to be taken
the connection is not read, which is all the flow control that HTTP/1.1 has.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import h11

from s2pubsub.server.exchange import Exchange, Fields
from s2pubsub.server.failure import DisconnectedError
from s2pubsub.server.http2 import Handler

_MAX_HEAD = 16 * 1024
_READ_HIGH = 1024 * 1024
_WRITE_HIGH = 256 * 1024
_HEAD_TIMEOUT = 15.0
_IDLE_TIMEOUT = 120.0
_LINGER_TIMEOUT = 2.0
_LINGER_BYTES = 16 * 1024 * 1024


class Http1Connection:
    """The state of one HTTP/1.1 connection over ``transport``; the `Carrier` of its current exchange."""

    def __init__(self, transport: asyncio.Transport, handler: Handler) -> None:
        self._transport = transport
        self._handler = handler
        self._h11 = h11.Connection(h11.SERVER)
        self._exchange: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._head = b""
        self._lingering = 0
        self._waiting = 0
        self._reading_paused = False
        self._writable: asyncio.Future[None] | None = None
        self._paused = False
        self._closed = False
        self._head_begun = False
        self._timer: asyncio.TimerHandle | None = None
        transport.set_write_buffer_limits(high=_WRITE_HIGH)
        self._arm(_HEAD_TIMEOUT)

    # What the transport tells

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            self._lingering -= min(len(data), self._lingering)
            if not self._lingering:
                self._transport.abort()
            return
        self._h11.receive_data(data)
        if self._exchange is None and not self._head_begun:
            # Counted from the first byte, so that a client cannot stretch it by sending one byte at a time.
            self._head_begun = True
            self._arm(_HEAD_TIMEOUT)
        self._advance()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._unblock()

    def connection_lost(self) -> None:
        self._closed = True
        self._disarm()
        if self._exchange is not None:
            self._exchange.feed_disconnect()
        if self._task is not None:
            self._task.cancel()
        self._unblock()

    @property
    def idle(self) -> bool:
        """Whether no exchange is under way."""
        return self._exchange is None

    def close(self) -> None:
        """Close the connection; what is still being answered is cut off."""
        self._transport.close()

    def _advance(self) -> None:
        """Take what h11 has understood so far."""
        try:
            while not self._closed:
                event = self._h11.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    return
                if isinstance(event, h11.Request):
                    # h11 limits a head only while it is incomplete, and this one may have come in one piece.
                    if sum(len(name) + len(value) for name, value in event.headers) + len(event.target) > _MAX_HEAD:
                        self._refuse(431)
                        return
                    self._open(event)
                elif isinstance(event, h11.Data) and self._exchange is not None:
                    data = bytes(event.data)
                    self._waiting += len(data)
                    if self._waiting > _READ_HIGH and not self._reading_paused:
                        self._reading_paused = True
                        self._transport.pause_reading()
                    self._exchange.feed(data, len(data))
                elif isinstance(event, h11.EndOfMessage) and self._exchange is not None:
                    self._exchange.feed_end()
                elif isinstance(event, h11.ConnectionClosed):
                    self._transport.close()
                    return
        except h11.RemoteProtocolError as error:
            self._refuse(error.error_status_hint)

    def _open(self, request: h11.Request) -> None:
        self._disarm()
        self._head_begun = False
        headers: dict[str, str] = {}
        for name, value in request.headers:
            headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
        target = request.target.decode("latin-1")
        if "://" in target.partition("?")[0]:
            target = "/" + target.split("://", 1)[1].partition("/")[2]
        exchange = self._exchange = Exchange(self, request.method.decode("latin-1").upper(), target, headers)
        if self._h11.they_are_waiting_for_100_continue:
            self._write(self._h11.send(h11.InformationalResponse(status_code=100, headers=[])))
        self._task = asyncio.get_running_loop().create_task(self._run(exchange))

    async def _run(self, exchange: Exchange) -> None:
        try:
            await self._handler(exchange)
        finally:
            self._done()

    def _done(self) -> None:
        """The handler has ended: go on with the next request, or close."""
        self._exchange = self._task = None
        if self._closed:
            return
        self._waiting = 0
        if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()
            self._resume_reading()
            self._arm(_IDLE_TIMEOUT)
            self._advance()
        elif self._h11.our_state is h11.DONE or self._h11.our_state is h11.MUST_CLOSE:
            self._linger()
        else:
            self._transport.close()

    def _linger(self) -> None:
        """Close so that the client can still read the answer, although it has not sent all of its request.

        Closing at once would answer the rest with a reset, which can overtake the answer.
        """
        if self._h11.their_state is not h11.SEND_BODY or not self._transport.can_write_eof():
            self._transport.close()
            return
        try:
            self._transport.write_eof()
        except OSError:  # the client has gone, and the event loop has yet to notice
            self._transport.abort()
            return
        self._lingering = _LINGER_BYTES
        self._resume_reading()
        self._arm(_LINGER_TIMEOUT)

    def _refuse(self, status: int) -> None:
        """The client does not speak HTTP: say so where that is still possible, and close."""
        if self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            head = h11.Response(status_code=status, headers=[("content-length", "0"), ("connection", "close")])
            self._write(self._h11.send(head))
            self._write(self._h11.send(h11.EndOfMessage()))
        self._transport.close()

    # The carrier of the exchange

    def start(self, status: int, fields: Fields, *, end: bool) -> None:
        reason = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else ""
        try:
            head = self._h11.send(h11.Response(status_code=status, headers=fields, reason=reason.encode()))
            if end:
                head = (head or b"") + (self._h11.send(h11.EndOfMessage()) or b"")
            self._head = head or b""
            if end:
                self._write(b"")
            else:
                # A body usually follows at once, and one packet is cheaper than two.
                asyncio.get_running_loop().call_soon(self._write, b"")
        except h11.LocalProtocolError:
            raise DisconnectedError from None

    async def send(self, data: bytes, *, end: bool) -> None:
        while self._paused and not self._closed:
            self._writable = asyncio.get_running_loop().create_future()
            await self._writable
        if self._closed:
            raise DisconnectedError
        try:
            out = b""
            if data:
                out = self._h11.send(h11.Data(data=data)) or b""
            if end:
                out += self._h11.send(h11.EndOfMessage()) or b""
            self._write(out)
        except h11.LocalProtocolError:
            raise DisconnectedError from None

    def consumed(self, size: int) -> None:
        self._waiting -= size
        if self._waiting <= _READ_HIGH // 2:
            self._resume_reading()

    def abort(self) -> None:
        self._transport.abort()

    def _resume_reading(self) -> None:
        if self._reading_paused and not self._closed:
            self._reading_paused = False
            self._transport.resume_reading()

    def _unblock(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def _write(self, data: bytes | None) -> None:
        data = self._head + (data or b"")
        self._head = b""
        # A transport that is lost says so before ``connection_lost`` is called, and asyncio warns who writes to it.
        if data and not self._closed and not self._transport.is_closing():
            self._transport.write(data)

    # Clients that say nothing

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._transport.close)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
