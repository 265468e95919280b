"""One request and its answer, whatever version of HTTP carries them.

The transports (`http1.py`, `http2.py`) make `Exchange` objects and feed them; the application reads the body from
them and answers through them. Flow control works both ways: `receive` gives credit back as it hands bytes over,
`send` waits while the client takes nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import unquote_to_bytes

from s2pubsub.server.compression import SUPPORTED, Codec, TooLargeError, choose, compress, decompress
from s2pubsub.server.failure import ApiError, BareError, DisconnectedError
from s2pubsub.server.names import MAX_BODY_BYTES

Fields = list[tuple[str, str]]

_COMPRESSIBLE = 1024
_BODY_TIMEOUT = 30.0


class Carrier(Protocol):
    """What an exchange needs of its connection."""

    def start(self, status: int, fields: Fields, *, end: bool) -> None:
        """Send the head of the answer; with ``end`` the answer has no body."""

    async def send(self, data: bytes, *, end: bool) -> None:
        """Send a part of the body, waiting while the client takes none."""

    def consumed(self, size: int) -> None:
        """``size`` bytes of the request's body have been taken; the client may send as many more."""

    def abort(self) -> None:
        """The answer cannot be completed: cut it off so that the client notices."""


class Exchange:
    """A request. ``path`` is the list of decoded segments, None where one cannot be decoded."""

    def __init__(self, carrier: Carrier, method: str, target: str, headers: Mapping[str, str]) -> None:
        self.method = method
        self.headers = headers
        self.started = False
        self.finished = False
        raw_path, _, self.query = target.partition("?")
        self.raw_path = raw_path
        self._carrier = carrier
        self._inbox: deque[tuple[bytes, int]] = deque()
        self._ended = False
        self._gone = False
        self._waiter: asyncio.Future[None] | None = None

    # The transport's side

    def feed(self, data: bytes, size: int) -> None:
        """``data`` of the body has come; ``size`` is what it took of the flow-control window."""
        self._inbox.append((data, size))
        self._wake()

    def feed_end(self) -> None:
        """The body is complete."""
        self._ended = True
        self._wake()

    def feed_disconnect(self) -> None:
        """Nothing more will come and nothing can be sent."""
        self._gone = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # The application's side

    async def receive(self) -> bytes:
        """The bytes of the body that have come, waiting for some; empty at the end; `DisconnectedError` if cut."""
        while not self._inbox:
            if self._gone:
                raise DisconnectedError
            if self._ended:
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if len(self._inbox) == 1:
            data, size = self._inbox.popleft()
        else:
            data = b"".join(part for part, _ in self._inbox)
            size = sum(size for _, size in self._inbox)
            self._inbox.clear()
        self._carrier.consumed(size)
        return data or await self.receive()

    @property
    def more_is_here(self) -> bool:
        """Whether `receive` would return bytes at once."""
        return bool(self._inbox)

    async def body(self, code: str) -> bytes:
        """The whole body, decompressed. A body that is too large or broken is an `ApiError` with ``code``."""
        if self._ended:
            body = await self._rest(code)  # it is here: no need of a timer
        else:
            try:
                async with asyncio.timeout(_BODY_TIMEOUT):
                    body = await self._rest(code)
            except TimeoutError:
                raise ApiError("request_timeout", "the body of the request did not come in time") from None
        encoding = self.headers.get("content-encoding", "identity").strip().lower()
        if encoding == "identity":
            return body
        if encoding not in SUPPORTED:
            raise BareError(415)
        try:
            return decompress(body, encoding, MAX_BODY_BYTES)
        except TooLargeError:
            raise ApiError(code, "the decompressed body of the request is too large") from None
        except ValueError as error:
            raise ApiError(code, str(error)) from None

    async def _rest(self, code: str) -> bytes:
        parts: list[bytes] = []
        size = 0
        while data := await self.receive():
            size += len(data)
            if size > MAX_BODY_BYTES:
                raise ApiError(code, "the body of the request is too large")
            parts.append(data)
        return b"".join(parts)

    async def respond(
        self, status: int, body: bytes = b"", content_type: str = "", fields: Fields | None = None
    ) -> None:
        """The whole answer at once; a large body is compressed where the client accepts that."""
        fields = list(fields or ())
        if content_type:
            fields.append(("content-type", content_type))
        if len(body) > _COMPRESSIBLE and content_type:
            codec: Codec | None = choose(self.headers.get("accept-encoding"))
            if codec is not None:
                body = compress(body, codec)
                fields += [("content-encoding", codec), ("vary", "accept-encoding")]
        fields.append(("content-length", str(len(body))))
        if self.method == "HEAD":
            body = b""
        self.start(status, fields, end=not body)
        if body:
            await self.send(body, end=True)

    def start(self, status: int, fields: Fields, *, end: bool = False) -> None:
        """Send the head of the answer."""
        self.started = True
        self.finished = end
        self._carrier.start(status, fields + self._cross_origin(), end=end)

    async def send(self, data: bytes, *, end: bool = False) -> None:
        """Send a part of the answer's body."""
        self.finished = end
        await self._carrier.send(data, end=end)

    def abort(self) -> None:
        """Cut the answer off."""
        self._carrier.abort()

    def _cross_origin(self) -> Fields:
        """What a browser wants to see before it shows the answer to a page of another origin."""
        origin = self.headers.get("origin")
        if origin is None:
            return []
        fields = [
            ("access-control-allow-origin", origin),
            ("access-control-allow-credentials", "true"),
            ("vary", "origin"),
        ]
        if self.method == "OPTIONS":
            for wanted, granted in (
                ("access-control-request-method", "access-control-allow-methods"),
                ("access-control-request-headers", "access-control-allow-headers"),
            ):
                if wanted in self.headers:
                    fields.append((granted, self.headers[wanted]))
        else:
            fields.append(("access-control-expose-headers", "*"))
        return fields


def decode(segment: str) -> str:
    """A percent-encoded part of a URL; `ValueError` when it is not UTF-8."""
    return unquote_to_bytes(segment.encode("latin-1")).decode()
