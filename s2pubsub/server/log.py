"""The log of one stream: appends with their conditions, reads, and the wake-up of those who wait at the tail.

There are two positions. *Assigned* is what the next append gets and what conditions are checked against; *durable*
is what readers see and acknowledgements report. Between them lie the batches that the store has not confirmed.

A log belongs to the event loop: no method may be called from elsewhere. It keeps recent batches in memory (all of
them when the store keeps none) and asks the store for older ones. It knows nothing of basins, names or HTTP.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence

from attrs import evolve

from s2pubsub.server.chunk import Chunk, Limits, collect, expired
from s2pubsub.server.config import INFINITE, StreamConfig
from s2pubsub.server.failure import ApiError, ConditionError
from s2pubsub.server.follower import Follower
from s2pubsub.server.record import AppendInput, Batch, Entry, make_batch
from s2pubsub.server.store import LogState, Store

Position = tuple[int, int]
"""A sequence number and a timestamp."""

Ack = tuple[Position, Position, Position]
"""Where an append starts and ends, and the tail when it was acknowledged."""


class StreamLog:
    """One stream's records, from the trim point to the tail."""

    def __init__(self, store: Store, number: int, config: StreamConfig, state: LogState, created: int) -> None:
        self.number = number
        self.config = config
        self._gone: tuple[str, str] | None = None
        self.last_append = max(created, state.last_append)
        self._store = store
        self._durable = state
        self._assigned = state
        self._generation = 0
        self._pending = 0
        self._batches: list[Batch] = []
        self._firsts: list[int] = []
        self._cached_bytes = 0
        self._cached_from = 0 if store.cache_bytes is None else state.next_seq_num
        self._followers: set[Follower] = set()
        self._rejections: deque[tuple[int, asyncio.Future[Ack], ApiError]] = deque()

    @property
    def tail(self) -> Position:
        """The durable tail: the next sequence number and the last timestamp."""
        return self._durable.next_seq_num, self._durable.last_timestamp

    @property
    def trim_point(self) -> int:
        return self._durable.trim_point

    @property
    def pending_bytes(self) -> int:
        """Metered bytes that the store has not confirmed yet."""
        return self._pending

    def close(self, code: str, message: str) -> None:
        """Let every reader and writer of this log end with that `ApiError`."""
        self._gone = (code, message)
        for follower in self._followers:
            follower.wake()

    def reopen(self) -> None:
        """Take `close` back."""
        self._gone = None

    def check(self) -> None:
        """Raise what `close` was told, if it was called."""
        if self._gone is not None:
            raise ApiError(*self._gone)

    # Appending

    def append(self, append: AppendInput, now: int) -> tuple[bool, asyncio.Future[Ack]]:
        """Take ``append`` in, or refuse it; the future ends when it is durable, or with the reason as `ApiError`.

        Positions are assigned before this returns, so that calls are stored in their order. The first value tells
        at once whether the append was taken in: a refusal is reported only when the state behind it is durable.
        """
        result: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()
        assigned = self._assigned
        try:
            self.check()
            self._check_conditions(append)
            timestamps = self._timestamps(append.entries, now)
        except ApiError as error:
            self._reject(result, error)
            return False, result
        age = self.config.age
        expires = None if age == INFINITE or age is None else now + age * 1000
        first = assigned.next_seq_num
        batch = make_batch(first, append.entries, timestamps, expires)
        self._assigned = state = self._after(batch, append.entries, now)
        self._pending += batch.metered
        generation = self._generation

        def done(error: BaseException | None) -> None:
            self._pending -= batch.metered
            if error is None:
                self._on_durable(batch, state)
                if not result.done():
                    end = (batch.next_seq_num, state.last_timestamp)
                    result.set_result(((first, timestamps[0]), end, self.tail))
            else:
                self._on_failure(generation)
                if not result.done():
                    result.set_exception(ApiError("storage", f"the append could not be stored: {error}"))

        self._store.append(self.number, generation, batch, state, done)
        return True, result

    def _check_conditions(self, append: AppendInput) -> None:
        assigned = self._assigned
        if append.fencing_token is not None and append.fencing_token != assigned.fencing_token:
            raise ConditionError({"fencing_token_mismatch": assigned.fencing_token})
        if append.match_seq_num is not None and append.match_seq_num != assigned.next_seq_num:
            raise ConditionError({"seq_num_mismatch": assigned.next_seq_num})

    def _reject(self, result: asyncio.Future[Ack], error: ApiError) -> None:
        """Report ``error`` as soon as the state that it speaks of is durable."""
        if self._durable.next_seq_num >= self._assigned.next_seq_num:
            result.set_exception(error)
        else:
            self._rejections.append((self._assigned.next_seq_num, result, error))

    def _timestamps(self, entries: Sequence[Entry], now: int) -> list[int]:
        mode, uncapped = self.config.mode, self.config.uncapped
        last = self._assigned.last_timestamp
        timestamps: list[int] = []
        for entry in entries:
            timestamp = entry.timestamp
            if timestamp is None and mode == "client-require":
                raise ApiError("invalid", "the stream requires a timestamp on every record")
            if timestamp is None or mode == "arrival" or (timestamp > now and not uncapped):
                timestamp = now
            last = max(last, timestamp)
            timestamps.append(last)
        return timestamps

    def _after(self, batch: Batch, entries: Sequence[Entry], now: int) -> LogState:
        """The state that rules from the next append on."""
        fencing_token, trim_point = self._assigned.fencing_token, self._assigned.trim_point
        for offset, entry in enumerate(entries):
            command = entry.command
            if command is None:
                continue
            if command.fence is not None:
                fencing_token = command.fence
            elif command.trim is not None:
                trim_point = max(trim_point, min(command.trim, batch.seq_num + offset + 1))
        return LogState(batch.next_seq_num, batch.last_timestamp, fencing_token, trim_point, now)

    def _on_durable(self, batch: Batch, state: LogState) -> None:
        self._batches.append(batch)
        self._firsts.append(batch.seq_num)
        self._cached_bytes += len(batch.data)
        trimmed = state.trim_point > self._durable.trim_point
        self._durable = state
        self.last_append = max(self.last_append, state.last_append)
        if trimmed:
            self._forget(lambda batch: batch.next_seq_num <= state.trim_point)
        limit = self._store.cache_bytes
        if limit is not None and self._cached_bytes > 2 * limit:
            self._shrink(limit)
        while self._rejections and self._rejections[0][0] <= state.next_seq_num:
            _, result, error = self._rejections.popleft()
            if not result.done():
                result.set_exception(error)
        for follower in self._followers:
            follower.push(batch)

    def _on_failure(self, generation: int) -> None:
        """Forget the positions of batches that will never be stored; once for all that fail together."""
        if generation != self._generation:
            return
        self._generation += 1
        self._assigned = self._durable
        for _, result, _ in self._rejections:
            if not result.done():
                result.set_exception(ApiError("storage", "an earlier append could not be stored"))
        self._rejections.clear()

    # Memory

    def _forget(self, condition: Callable[[Batch], bool]) -> None:
        kept = [batch for batch in self._batches if not condition(batch)]
        if len(kept) != len(self._batches):
            self._batches = kept
            self._firsts = [batch.seq_num for batch in kept]
            self._cached_bytes = sum(len(batch.data) for batch in kept)

    def _shrink(self, limit: int) -> None:
        drop = 0
        while self._cached_bytes > limit:
            self._cached_bytes -= len(self._batches[drop].data)
            drop += 1
        self._cached_from = self._batches[drop - 1].next_seq_num
        del self._batches[:drop]
        del self._firsts[:drop]

    def expire(self, now: int) -> None:
        """Drop what has expired from memory."""
        if self._batches and any(b.expires is not None and b.expires <= now for b in self._batches):
            self._forget(lambda batch: batch.expires is not None and batch.expires <= now)

    def release(self) -> None:
        """Let go of the memory of a log that is not in use; the store has it all."""
        if self._store.cache_bytes is not None and self._batches:
            self._batches, self._firsts, self._cached_bytes = [], [], 0
            self._cached_from = self._durable.next_seq_num

    async def is_empty(self, now: int) -> bool:
        """Whether no record is retained."""
        return await self._next_batch(self.trim_point, now) is None

    # Reading

    async def read(self, seq_num: int, limits: Limits, now: int) -> Chunk:
        """Durable records from ``seq_num`` on, at most one batch of the API."""
        tail = self._durable.next_seq_num
        while True:
            seq_num = max(seq_num, self._durable.trim_point)
            if seq_num >= self._cached_from:
                start = max(0, bisect_right(self._firsts, seq_num) - 1)
                chunk = collect(self._batches, start, seq_num, tail, limits, now)
                return chunk if chunk.count or chunk.ended else evolve(chunk, next_seq_num=max(seq_num, tail))
            batches = await self._store.fetch(self.number, seq_num)
            if not batches:
                # All that the store had here is gone: go on with what is in memory.
                seq_num = self._cached_from
                continue
            chunk = collect(batches, 0, seq_num, tail, limits, now)
            if chunk.count or chunk.ended or chunk.next_seq_num >= tail:
                return chunk
            seq_num = chunk.next_seq_num

    async def seek(self, timestamp: int, now: int) -> int:
        """The first retained sequence number whose timestamp is at least ``timestamp``; the tail if there is none."""
        tail = self._durable.next_seq_num
        seq_num: int | None = None
        if self._cached_from > self.trim_point:
            seq_num = await self._store.find(self.number, timestamp)
        if seq_num is None:
            index = bisect_left(self._batches, timestamp, key=lambda batch: batch.last_timestamp)
            if index == len(self._batches):
                return tail
            seq_num = self._firsts[index]
        seq_num = max(seq_num, self.trim_point)
        while (batch := await self._next_batch(seq_num, now)) is not None:
            for offset in range(max(0, seq_num - batch.seq_num), batch.count):
                if batch.timestamps[offset] >= timestamp:
                    return min(batch.seq_num + offset, tail)
            seq_num = batch.next_seq_num
        return tail

    async def _next_batch(self, seq_num: int, now: int) -> Batch | None:
        """The first retained batch that reaches beyond ``seq_num``."""
        while seq_num < self._cached_from:
            batches = await self._store.fetch(self.number, seq_num)
            if not batches:
                break
            for batch in batches:
                if batch.next_seq_num > seq_num and not expired(batch, now):
                    return batch
            seq_num = batches[-1].next_seq_num
        for batch in self._batches[max(0, bisect_right(self._firsts, seq_num) - 1) :]:
            if batch.next_seq_num > seq_num and not expired(batch, now):
                return batch
        return None

    # Following

    def follow(self) -> Follower:
        """Have every batch from the tail on; call it at the tail, and `unfollow` in the end."""
        follower = Follower()
        self._followers.add(follower)
        return follower

    def unfollow(self, follower: Follower) -> None:
        """Take `follow` back."""
        self._followers.discard(follower)
