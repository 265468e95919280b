"""A reader's place at the tail of a log.

What is appended while a reader follows reaches it even if a trim takes it away in the next moment: a run that ends
with "trim everything" is read to its end by those who watch it, and by nobody who comes later.
"""

from __future__ import annotations

import asyncio

from s2pubsub.server.chunk import Chunk, Limits, collect
from s2pubsub.server.record import Batch

_MAX_BATCHES = 25


class Follower:
    """The batches that came since they were last taken. A reader that leaves too many there has ``lagged``."""

    def __init__(self) -> None:
        self.lagged = False
        self._batches: list[Batch] = []
        self._waiter: asyncio.Future[None] | None = None

    def push(self, batch: Batch) -> None:
        """A batch has become durable."""
        if len(self._batches) >= _MAX_BATCHES:
            self.lagged = True
            self._batches.clear()
        if not self.lagged:
            self._batches.append(batch)
        self.wake()

    def wake(self) -> None:
        """Let the reader look, at a new batch or at the end of the log."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def waiting(self) -> bool:
        """Whether there is something to take."""
        return bool(self._batches)

    def take(self, seq_num: int, tail: int, limits: Limits, now: int) -> Chunk:
        """Records from ``seq_num`` on, at most one batch of the API; what they leave stays for the next call."""
        chunk = collect(self._batches, 0, seq_num, tail, limits, now)
        self._batches = [batch for batch in self._batches if batch.next_seq_num > chunk.next_seq_num]
        return chunk

    async def wait(self, seconds: float) -> bool:
        """Wait for `push` or `wake`, at most ``seconds``; whether a batch has come."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(seconds, self.wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None
        return self.waiting or self.lagged
