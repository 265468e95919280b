"""A stream for asyncio servers: the same bytes as an asynchronous iterator.

Waiting for events blocks, so each stream has one thread of ours beside it: not one of the loop's own pool, which a few
dozen open streams would use up. The thread fetches a piece only when it is asked for one, so nothing piles up for a
client that reads slowly.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import AsyncIterator
from typing import Self

from s2pubsub.runtime.worker import Worker
from s2pubsub.sse.stream import EventStream

_Piece = asyncio.Future[bytes | None]


class AsyncEventStream(AsyncIterator[bytes]):
    """``stream`` for one asyncio task. Ends it when the task is cancelled, which is how a server says that its client
    has gone.
    """

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream
        self._wanted: queue.SimpleQueue[_Piece | None] = queue.SimpleQueue()
        self._worker: Worker | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._worker is None:
            worker = Worker("s2pubsub-sse", _fetch, self._stream, self._wanted)
            try:
                worker.start()
            except BaseException:
                self.close()
                raise
            self._worker = worker
        piece: _Piece = asyncio.get_running_loop().create_future()
        self._wanted.put(piece)
        try:
            block = await piece
        except BaseException:
            self.close()
            raise
        if block is None:
            self.close()
            raise StopAsyncIteration
        return block

    def close(self) -> None:
        """End the stream and its thread, without waiting for either. Idempotent, from any thread."""
        self._stream.abandon()
        self._wanted.put(None)

    async def aclose(self) -> None:
        """``close()``."""
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_worker", None) is not None:
            self._wanted.put(None)


def _fetch(stream: EventStream, wanted: queue.SimpleQueue[_Piece | None]) -> None:
    """The thread: one block for each future, until it is told to end. It holds the parts only, see ``Subscription``."""
    with stream:
        while (piece := wanted.get()) is not None:
            block: bytes | None = None
            error: Exception | None = None
            try:
                block = next(stream, None)
            except Exception as failure:  # noqa: BLE001  # it reaches the task that waits
                error = failure
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                piece.get_loop().call_soon_threadsafe(_settle, piece, block, error)
            del piece


def _settle(piece: _Piece, block: bytes | None, error: Exception | None) -> None:
    if piece.done():  # cancelled meanwhile
        return
    if error is not None:
        piece.set_exception(error)
    else:
        piece.set_result(block)
