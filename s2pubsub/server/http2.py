"""HTTP/2 on one connection: frames in, exchanges out, flow control in both directions.

The whole connection keeps being read whatever a single stream does. Each stream has a window of its own, and credit
for it goes back only as its handler takes the bytes; credit for the connection goes back at once, so that a slow
stream holds up nobody else. What a stream may have waiting is therefore bounded by its window.

A client that resets its requests as fast as it makes them would have the server begin work without end; beyond a rate
that no honest client reaches its connection is closed.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine
from itertools import chain
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from s2pubsub.server.exchange import Exchange, Fields
from s2pubsub.server.failure import DisconnectedError

Handler = Callable[[Exchange], Coroutine[Any, Any, None]]
"""Answers an exchange; raises nothing but a cancellation."""

_STREAM_WINDOW = 1024 * 1024
_CONNECTION_WINDOW = 16 * 1024 * 1024
_CREDIT_STEP = 128 * 1024
_WRITE_HIGH = 256 * 1024
_WRITE_STEP = 64 * 1024
_WRITE_LIMIT = 4 * 1024 * 1024
_MAX_STREAMS = 200
_RESETS_AT_ONCE = 1000
_RESETS_PER_SECOND = 500.0
"""Ending all its sessions at once, a client resets 200 streams; opening and ending them in a loop, fewer than this."""

_BREAKS = re.compile(rb"[\0\r\n]")

_log = logging.getLogger("s2pubsub.server")


class _Stream:
    """The `Carrier` of one exchange."""

    def __init__(self, connection: Http2Connection, stream_id: int) -> None:
        self._connection = connection
        self._id = stream_id
        self._credit = 0
        self.exchange: Exchange | None = None
        self.task: asyncio.Task[None] | None = None
        self.request_ended = False
        self.answered = False

    def start(self, status: int, fields: Fields, *, end: bool) -> None:
        self._connection.send_head(self._id, [(":status", str(status)), *fields], end)
        if end:
            self._finish()

    async def send(self, data: bytes, *, end: bool) -> None:
        await self._connection.send_body(self._id, data, end)
        if end:
            self._finish()

    def _finish(self) -> None:
        self.answered = True
        if not self.request_ended:
            # The rest of the request is of no interest: the client may stop sending it.
            self._connection.reset(self._id, h2.errors.ErrorCodes.NO_ERROR)

    def consumed(self, size: int) -> None:
        self._credit += size
        if self._credit >= _CREDIT_STEP and not self.request_ended:
            self._connection.give_credit(self._id, self._credit)
            self._credit = 0

    def abort(self) -> None:
        self.answered = True
        self._connection.reset(self._id, h2.errors.ErrorCodes.INTERNAL_ERROR)


class Http2Connection:
    """The state of one HTTP/2 connection over ``transport``."""

    def __init__(self, transport: asyncio.Transport, handler: Handler) -> None:
        self._transport = transport
        self._handler = handler
        self._streams: dict[int, _Stream] = {}
        self._blocked: dict[int, asyncio.Future[None]] = {}
        self._paused = False
        self._closed = False
        self._flushing = False
        self._unreturned = 0
        self._resets = 0.0
        self._reset_at = 0.0
        self._abused = False
        config = h2.config.H2Configuration(
            client_side=False,
            header_encoding=None,
            validate_inbound_headers=False,
            normalize_inbound_headers=False,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self._h2 = h2.connection.H2Connection(config)
        self._h2.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: _MAX_STREAMS,
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: _STREAM_WINDOW,
                h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: 16384,
                h2.settings.SettingCodes.ENABLE_CONNECT_PROTOCOL: 0,
            },
        )
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_CONNECTION_WINDOW - 65535)
        transport.set_write_buffer_limits(high=_WRITE_HIGH)
        self._flush()

    # What the transport tells

    def data_received(self, data: bytes) -> None:
        try:
            events = self._h2.receive_data(data)
        except h2.exceptions.ProtocolError:
            self._flush()
            self._transport.close()
            return
        for event in events:
            self._handle(event)
            if self._abused:
                self._transport.close()
                return
        if self._unreturned >= _CREDIT_STEP * 4:
            self._h2.increment_flow_control_window(self._unreturned)
            self._unreturned = 0
        self._flush()
        if self._transport.get_write_buffer_size() > _WRITE_LIMIT:
            # Handlers stop at the high-water mark: this much is answers to a flood of control frames.
            self._transport.abort()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._unblock()

    def connection_lost(self) -> None:
        self._closed = True
        for stream in self._streams.values():
            if stream.exchange is not None:
                stream.exchange.feed_disconnect()
            if stream.task is not None:
                stream.task.cancel()
        self._unblock()
        self._streams.clear()

    @property
    def idle(self) -> bool:
        """Whether no exchange is under way."""
        return not self._streams

    def close(self) -> None:
        """Say goodbye and close; what is still being answered is cut off."""
        if not self._closed:
            try:
                self._h2.close_connection()
            except h2.exceptions.ProtocolError:
                pass
            self._flush()
            self._transport.close()

    def _handle(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.DataReceived):
            size = event.flow_controlled_length or 0
            self._unreturned += size
            stream = self._streams.get(event.stream_id or 0)
            if stream is not None and stream.exchange is not None and not stream.answered:
                stream.exchange.feed(event.data or b"", size)
        elif isinstance(event, h2.events.RequestReceived):
            self._open(event)
        elif isinstance(event, h2.events.StreamEnded):
            stream = self._streams.get(event.stream_id or 0)
            if stream is not None and stream.exchange is not None:
                stream.request_ended = True
                stream.exchange.feed_end()
        elif isinstance(event, h2.events.StreamReset):
            self._count_reset()
            stream = self._streams.pop(event.stream_id or 0, None)
            if stream is not None and stream.exchange is not None:
                stream.answered = True
                stream.exchange.feed_disconnect()
                self._unblock(event.stream_id)
                if stream.task is not None:
                    stream.task.cancel()
        elif isinstance(event, h2.events.WindowUpdated):
            self._unblock(event.stream_id or None)
        elif isinstance(event, h2.events.RemoteSettingsChanged):
            self._unblock()
        elif isinstance(event, h2.events.ConnectionTerminated) and self.idle:
            self._flush()
            self._transport.close()

    def _open(self, event: h2.events.RequestReceived) -> None:
        stream_id = event.stream_id or 0
        if _BREAKS.search(b"".join(map(bytes, chain.from_iterable(event.headers or ())))):
            # No header holds these. What we repeat of one, such as its origin, could add a line behind a proxy.
            self.reset(stream_id, h2.errors.ErrorCodes.PROTOCOL_ERROR)
            self._count_reset()
            return
        headers: dict[str, str] = {}
        for name, value in event.headers or ():
            headers.setdefault(bytes(name).decode("latin-1"), bytes(value).decode("latin-1"))
        method, target = headers.pop(":method", ""), headers.pop(":path", "")
        stream = self._streams[stream_id] = _Stream(self, stream_id)
        stream.exchange = Exchange(stream, method, target, headers)
        stream.task = asyncio.get_running_loop().create_task(self._run(stream_id, stream.exchange))

    def _count_reset(self) -> None:
        """Close the connection of a client that resets streams, or makes us reset them, at an unreasonable rate."""
        now = asyncio.get_running_loop().time()
        self._resets = max(0.0, self._resets - (now - self._reset_at) * _RESETS_PER_SECOND) + 1
        self._reset_at = now
        if self._resets > _RESETS_AT_ONCE and not self._abused:
            self._abused = True
            _log.warning("a client resets its requests too often; its connection is closed")
            self._h2.close_connection(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
            self._flush()

    async def _run(self, stream_id: int, exchange: Exchange) -> None:
        # Not a done-callback of the task: that would cost another turn of the loop per request.
        try:
            await self._handler(exchange)
        finally:
            self._streams.pop(stream_id, None)

    # What streams ask for

    def send_head(self, stream_id: int, fields: Fields, end: bool) -> None:
        try:
            self._h2.send_headers(stream_id, fields, end_stream=end)
        except h2.exceptions.ProtocolError:
            raise DisconnectedError from None
        # A body usually follows at once, and one packet is cheaper than two.
        self._flush_soon()

    async def send_body(self, stream_id: int, data: bytes, end: bool) -> None:
        view = memoryview(data)
        unflushed = 0
        try:
            while len(view):
                room = self._h2.local_flow_control_window(stream_id)
                if room <= 0 or self._paused:
                    self._flush()
                    await self._wait(stream_id)
                    continue
                size = min(room, self._h2.max_outbound_frame_size, len(view))
                self._h2.send_data(stream_id, view[:size], end_stream=end and size == len(view))
                view = view[size:]
                unflushed += size
                if unflushed >= _WRITE_STEP or not len(view):
                    self._flush()
                    unflushed = 0
            if end and not data:
                self._h2.end_stream(stream_id)
                self._flush()
        except h2.exceptions.ProtocolError:
            raise DisconnectedError from None

    async def _wait(self, stream_id: int) -> None:
        if self._closed:
            raise DisconnectedError
        waiter = self._blocked[stream_id] = asyncio.get_running_loop().create_future()
        try:
            await waiter
        finally:
            self._blocked.pop(stream_id, None)
        if self._closed:
            raise DisconnectedError

    def _unblock(self, stream_id: int | None = None) -> None:
        """Let the sender of one stream, or of all, look again."""
        waiters = list(self._blocked.values()) if stream_id is None else [self._blocked.get(stream_id)]
        for waiter in waiters:
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def give_credit(self, stream_id: int, size: int) -> None:
        try:
            self._h2.increment_flow_control_window(size, stream_id)
        except h2.exceptions.ProtocolError:
            return  # the stream has ended meanwhile
        self._flush()

    def reset(self, stream_id: int, code: h2.errors.ErrorCodes) -> None:
        try:
            self._h2.reset_stream(stream_id, code)
        except h2.exceptions.ProtocolError:
            return  # it has ended already
        self._flush()

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        data = self._h2.data_to_send()
        # A transport that is lost says so before ``connection_lost`` is called, and asyncio warns who writes to it.
        if data and not self._closed and not self._transport.is_closing():
            self._transport.write(data)
