"""What a read gives: where it starts, how far it goes, when it waits and when it ends.

`Reader` is one read of one log, the same for all its forms (a single answer, a session, server-sent events).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from attrs import field, frozen

from s2pubsub.server.chunk import Chunk, Limits
from s2pubsub.server.failure import ApiError, UnwrittenError
from s2pubsub.server.follower import Follower
from s2pubsub.server.log import Position, StreamLog
from s2pubsub.server.names import MAX_BATCH_BYTES, MAX_BATCH_RECORDS, MAX_UNARY_WAIT

_HEARTBEAT = (5.0, 15.0)
_chance = random.Random()  # our own, so that a seed which the program sets for itself is left alone


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
        self._following = False
        self._deadline: float | None = None

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
        while not self._ended:
            self._log.check()
            if self._position < self._log.tail[0]:
                chunk = await self._log.read(self._position, self._limits, self._clock())
                output = self._advance(chunk)
                if output is not None:
                    self._deadline = None
                    yield output
            elif self._request.may_follow and not self._wait_is_over():
                follower = self._log.follow()
                try:
                    async with aclosing(self._follow(follower)) as outputs:
                        async for output in outputs:
                            yield output
                finally:
                    self._log.unfollow(follower)
            else:
                return

    async def _follow(self, follower: Follower) -> AsyncGenerator[Output, None]:
        """What comes at the tail, until the read ends or ``follower`` has lagged."""
        loop = asyncio.get_running_loop()
        yield Output(None, self._log.tail)
        while not self._ended and not follower.lagged:
            self._log.check()
            if follower.waiting:
                chunk = follower.take(self._position, self._log.tail[0], self._limits, self._clock())
                output = self._advance(chunk)
                if output is not None:
                    self._deadline = None
                    self._following = True
                    yield output
                continue
            if self._wait_is_over():
                self._ended = True
                return
            seconds = _chance.uniform(*_HEARTBEAT)
            until = loop.time() + seconds
            wait = seconds if self._deadline is None else min(seconds, self._deadline - loop.time())
            if not await follower.wait(wait) and loop.time() >= until:
                yield Output(None, self._log.tail)

    def _wait_is_over(self) -> bool:
        """Whether the read has waited at the tail for as long as it may; the first call starts the clock."""
        wait, now = self._request.wait, asyncio.get_running_loop().time()
        if wait is None:
            return False
        if self._deadline is None:
            self._deadline = now + wait
        return now >= self._deadline

    def _advance(self, chunk: Chunk) -> Output | None:
        """Go on behind ``chunk``; it as an output, None when it has no records."""
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
        async with aclosing(self.outputs()) as outputs:
            async for output in outputs:
                if output.chunk is not None:
                    chunks.append(output.chunk)
                    tail = output.tail
                    if self._following:
                        break
                elif chunks:
                    break
        return chunks, tail
