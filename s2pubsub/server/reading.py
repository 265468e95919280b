"""What a read gives: where it starts, how far it goes, when it waits and when it ends.

`Reader` is one read of one log, the same for all its forms (a single answer, a session, server-sent events).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable

from attrs import field, frozen

from s2pubsub.server.failure import ApiError, UnwrittenError
from s2pubsub.server.log import Chunk, Limits, Position, StreamLog
from s2pubsub.server.names import MAX_BATCH_BYTES, MAX_BATCH_RECORDS, MAX_UNARY_WAIT

_HEARTBEAT = (5.0, 15.0)


@frozen
class ReadRequest:
    """A read as it was asked for; at most one of the three starts is set."""

    seq_num: int | None = None
    timestamp: int | None = None
    tail_offset: int | None = None
    clamp: bool = False
    limits: Limits = field(factory=Limits)
    wait: int | None = None

    @property
    def may_follow(self) -> bool:
        """Whether the read may wait at the tail."""
        unbounded = self.limits == Limits()
        return unbounded if self.wait is None else unbounded or self.wait > 0

    @property
    def empty(self) -> bool:
        """Whether the limits allow no record at all."""
        return self.limits.count == 0 or self.limits.size == 0

    def check(self) -> None:
        """Refuse a read that ends before it starts."""
        until = self.limits.until
        if self.timestamp is not None and until is not None and self.timestamp >= until:
            raise ApiError("invalid", "the start timestamp is not before 'until'")

    def unary(self) -> ReadRequest:
        """The same read with the limits of a single answer."""
        count = MAX_BATCH_RECORDS if self.limits.count is None else min(self.limits.count, MAX_BATCH_RECORDS)
        size = MAX_BATCH_BYTES if self.limits.size is None else min(self.limits.size, MAX_BATCH_BYTES)
        wait = None if self.wait is None else min(self.wait, MAX_UNARY_WAIT)
        limits = Limits(count, size, self.limits.until)
        return ReadRequest(self.seq_num, self.timestamp, self.tail_offset, self.clamp, limits, wait)


@frozen
class Output:
    """Records, or with ``chunk`` None a heartbeat. ``tail`` is set where the position after it is the tail."""

    chunk: Chunk | None
    tail: Position | None


class Reader:
    """One read of ``log``."""

    def __init__(self, log: StreamLog, request: ReadRequest, clock: Callable[[], int]) -> None:
        self._log = log
        self._request = request
        self._clock = clock
        self._limits = request.limits
        self._position = 0
        self._ended = False

    async def start(self) -> None:
        """Find the first position. `UnwrittenError` when it is at the tail or beyond and the read may not be there."""
        request, tail = self._request, self._log.tail
        seq_num = tail[0]
        if request.seq_num is not None:
            seq_num, beyond = request.seq_num, request.seq_num > tail[0]
        elif request.timestamp is not None:
            beyond = request.timestamp > tail[1]
        else:
            seq_num, beyond = max(0, tail[0] - (request.tail_offset or 0)), False
        if beyond:
            if not request.clamp:
                raise UnwrittenError(*tail)
            seq_num = tail[0]
        elif request.timestamp is not None:
            seq_num = await self._log.seek(request.timestamp, self._clock())
        if seq_num == tail[0] and not request.may_follow:
            raise UnwrittenError(*tail)
        self._position = seq_num

    def skip(self) -> None:
        """Read nothing: the limits allow no record."""
        self._ended = True

    async def outputs(self) -> AsyncGenerator[Output, None]:
        """Records and heartbeats until the read ends. `ApiError` when the stream goes away meanwhile."""
        loop = asyncio.get_running_loop()
        wait = self._request.wait
        deadline: float | None = None
        heartbeat = True
        while not self._ended:
            self._log.check()
            if self._position < self._log.tail[0]:
                output = await self._next()
                if output is not None:
                    yield output
                    deadline = None
                continue
            if not self._request.may_follow:
                return
            if wait is not None and deadline is None:
                deadline = loop.time() + wait
            if deadline is not None and loop.time() >= deadline:
                return
            if heartbeat:
                heartbeat = False
                yield Output(None, self._log.tail)
                continue
            timeout = random.uniform(*_HEARTBEAT)
            if deadline is not None:
                timeout = min(timeout, deadline - loop.time())
            if not await self._log.changed(self._position, timeout):
                heartbeat = deadline is None or loop.time() < deadline

    async def _next(self) -> Output | None:
        """The records that are there, at most one batch; None when there are none up to the tail."""
        chunk = await self._log.read(self._position, self._limits, self._clock())
        self._position = chunk.next_seq_num
        self._ended = chunk.ended
        if not chunk.count:
            return None
        self._limits = self._limits.less(chunk)
        tail = self._log.tail
        return Output(chunk, tail if tail[0] == self._position else None)

    async def once(self) -> tuple[list[Chunk], Position | None]:
        """All that is there, at most one batch; where nothing is, the next that comes within the wait."""
        chunks: list[Chunk] = []
        tail: Position | None = None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self._request.wait or 0)
        while not self._ended:
            if self._position < self._log.tail[0]:
                output = await self._next()
                if output is not None and output.chunk is not None:
                    chunks.append(output.chunk)
                    tail = output.tail
                continue
            if chunks or loop.time() >= deadline:
                break
            self._log.check()
            await self._log.changed(self._position, deadline - loop.time())
        return chunks, tail
