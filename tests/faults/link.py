"""One proxied TCP connection: two directions, each with its valve, and what may go wrong with bytes.

Relies on the proxy's event loop; everything here runs on its thread. Not for: knowing what the bytes mean (`http2`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from typing import Any, Literal, Protocol

import attrs

from tests.faults.rules import How

CHUNK = 65536
LINGER, NO_LINGER = struct.pack("ii", 1, 0), struct.pack("ii", 0, 0)
Way = Literal["to_client", "to_server"]


class Tap(Protocol):
    """What looks at, and changes, the bytes between reading and writing."""

    def from_client(self, data: bytes) -> None:
        """Take what the client sent; put what the server shall get."""

    def from_server(self, data: bytes) -> None:
        """Take what the server sent; put what the client shall get."""

    def closed(self) -> None:
        """Note that the connection is over."""


@attrs.define(kw_only=True)
class Setting:
    """Faults of one direction. ``cut_after`` counts from when it is set; ``rate`` is in bytes per second."""

    stalled: bool = False
    discard: bool = False
    delay: float = 0.0
    rate: float | None = None
    cut_after: int | None = None
    how: How = "fin"


class Direction:
    """Where bytes leave the proxy.

    Plain bytes are written together when the loop's turn ends: one by one they would run into Nagle's algorithm and
    delayed acknowledgements at the server, 40 ms an append. With a fault in force they wait in a queue that one task
    empties, and `drained` holds up the reader meanwhile, so that the queue stays small.
    """

    def __init__(self, link: Link, writer: asyncio.StreamWriter, setting: Setting) -> None:
        self.passed = 0
        self.discarded = 0
        self._link = link
        self._writer = writer
        self._turn = bytearray()
        self._queue = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._open = asyncio.Event()
        self._ended = False
        self.setting = setting
        self.apply(setting)

    def apply(self, setting: Setting) -> None:
        """Put other faults in force."""
        self.setting = setting
        if setting.stalled:
            self._open.clear()
        else:
            self._open.set()

    def put(self, data: bytes) -> None:
        """Write ``data``, or queue it where a fault says so."""
        setting = self.setting
        if setting.discard or self._ended:
            self.discarded += len(data)
        elif not data or self._link.over:
            return
        elif self._queue or setting.stalled or setting.delay or setting.rate:
            self._queue += data
            if self._task is None or self._task.done():
                self._task = asyncio.get_running_loop().create_task(self._empty())
        else:
            if not self._turn:
                asyncio.get_running_loop().call_soon(self.flush)
            self._turn += data

    def flush(self) -> None:
        """Write what this turn has put."""
        if self._turn:
            data = bytes(self._turn)
            self._turn.clear()
            self._write(data)

    def _write(self, data: bytes) -> None:
        setting = self.setting
        if setting.cut_after is not None:
            data = data[: setting.cut_after]
            setting.cut_after -= len(data)
        self.passed += len(data)
        self._writer.write(data)
        if setting.cut_after == 0:
            self._link.cut(setting.how)

    async def _empty(self) -> None:
        with contextlib.suppress(ConnectionError):
            while self._queue and not self._link.over:
                await self._open.wait()
                size = 1 if self.setting.rate else len(self._queue)
                await asyncio.sleep(1 / self.setting.rate if self.setting.rate else self.setting.delay)
                await self._open.wait()
                data = bytes(self._queue[:size])
                del self._queue[:size]
                self._write(data)
                await self._writer.drain()

    async def opened(self) -> None:
        """Wait while the direction is stalled."""
        await self._open.wait()

    async def drained(self) -> None:
        """Wait until the other side takes more."""
        self.flush()
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
        if not self.setting.discard:
            await self._writer.drain()

    async def finish(self) -> None:
        """Pass on the end of the stream."""
        await self.drained()
        self.shut()

    def shut(self) -> None:
        """Send FIN in this direction only; what would follow is dropped."""
        self.flush()
        self._ended = True
        with contextlib.suppress(OSError):
            if not self._writer.is_closing():
                self._writer.write_eof()

    def stop(self) -> None:
        """Drop what was not written, and end the queue's task."""
        self._turn.clear()
        if self._task is not None:
            self._task.cancel()


class Link:
    """One client connection and the server connection behind it.

    Attributes:
        number: from 1, in the order of acceptance.
        ended_by: ``"client"``, ``"server"`` or ``"proxy"``: who closed first; None while open.
        reset: whether the end was a reset (RST) and not an orderly end.
        said_goaway: whether the client sent GOAWAY.
    """

    def __init__(self, number: int, sock: socket.socket, settings: dict[Way, Setting], *, silent: bool) -> None:
        self.number = number
        self.opened_at = time.monotonic()
        self.ended_by: str | None = None
        self.reset = False
        self.said_goaway = False
        self.over = False
        self.stranded = False
        self.silent = silent
        self.tap: Tap | None = None
        self.task: asyncio.Task[None] | None = None
        self.to_client: Direction | None = None
        self.to_server: Direction | None = None
        self._settings = settings
        self._sock = sock
        self._connecting = False
        self._writers: list[asyncio.StreamWriter] = []

    def __repr__(self) -> str:
        return f"<Link {self.number} {'open' if not self.over else f'ended by {self.ended_by}'}>"

    def direction(self, way: Way) -> Direction | None:
        """The direction of this name; None as long as its side is not connected."""
        return self.to_client if way == "to_client" else self.to_server

    def apply(self, way: Way, **faults: Any) -> None:
        """Change the faults of one direction."""
        setting = self._settings[way] = attrs.evolve(self._settings[way], **faults)
        direction = self.direction(way)
        if direction is not None:
            direction.apply(setting)

    async def _connect(self) -> asyncio.StreamReader:
        self._connecting = True
        reader = asyncio.StreamReader(limit=CHUNK)
        protocol = asyncio.StreamReaderProtocol(reader)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, self._sock)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        self._writers.append(writer)
        self.to_client = Direction(self, writer, self._settings["to_client"])
        return reader

    async def run(self, host: str, port: int, tap: Tap | None) -> None:
        """Forward until both sides have ended."""
        pumps: list[asyncio.Task[None]] = []
        try:
            if self.silent:
                await asyncio.get_running_loop().create_future()
            client = await self._connect()
            assert self.to_client is not None
            try:
                reader, writer = await asyncio.open_connection(host, port, limit=CHUNK)
            except OSError:
                self.end("server", reset=True)
                return
            self._writers.append(writer)
            self.to_server = Direction(self, writer, self._settings["to_server"])
            self.tap = tap
            create = asyncio.get_running_loop().create_task
            pumps = [
                create(self._pump("client", client, self.to_server)),
                create(self._pump("server", reader, self.to_client)),
            ]
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_EXCEPTION)
            for pump in done:
                pump.result()
            self.end(self.ended_by or "proxy", reset=False)
        finally:
            for pump in pumps:
                pump.cancel()
            if pumps:
                await asyncio.wait(pumps)
            self.end("proxy", reset=True)

    async def _pump(self, side: str, reader: asyncio.StreamReader, ahead: Direction) -> None:
        try:
            while True:
                await ahead.opened()
                data = await reader.read(CHUNK)
                await ahead.opened()
                if not data:
                    break
                if self.tap is None:
                    ahead.put(data)
                elif side == "client":
                    self.tap.from_client(data)
                else:
                    self.tap.from_server(data)
                await ahead.drained()
            if side == "client" and self.stranded:
                return
            self.ended_by = self.ended_by or side
            await ahead.finish()
        except ConnectionError:
            if side != "client" or not self.stranded:
                self.end(side, reset=True)

    def cut(self, how: How) -> None:
        """Close both sides now: a reset, or an orderly end behind what has been written."""
        self.end("proxy", reset=how == "rst")

    def strand(self, catch: float, hold: float, linger: float) -> None:
        """Keep what the client sends; reset its side alone after ``catch`` seconds, and ``hold`` seconds later let the
        server have it, as a network does that delivers late, while the client has connected anew. The server's side is
        closed ``linger`` seconds after that.
        """
        if self.over or self.stranded or self.to_server is None:
            return
        self.stranded = True
        self.apply("to_server", stalled=True)
        later = asyncio.get_running_loop().call_later
        later(catch, self._let_client_go)
        later(catch + hold, lambda: self.apply("to_server", stalled=False))
        later(catch + hold + linger, lambda: self.end("proxy", reset=True))

    def _let_client_go(self) -> None:
        if not self.over:
            self.ended_by = "proxy"
            self.apply("to_client", discard=True)
            _close(self._writers[0], reset=True)

    def end(self, who: str, *, reset: bool) -> None:
        """Close both sides; a second call does nothing."""
        if self.over:
            return
        self.over = True
        self.ended_by = self.ended_by or who
        self.reset = reset
        for direction in (self.to_client, self.to_server):
            if direction is not None:
                if not reset:
                    direction.flush()
                direction.stop()
        if self.tap is not None:
            self.tap.closed()
        for writer in self._writers:
            _close(writer, reset=reset)
        if not self._writers:
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER if reset else NO_LINGER)
            if not self._connecting:  # else the cancelled transport closes it
                self._sock.close()
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()


def _close(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    transport = writer.transport
    if reset:
        sock = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
        transport.abort()
    else:
        transport.close()
        # A peer that does not read would keep the transport for ever.
        asyncio.get_running_loop().call_later(1.0, transport.abort)
