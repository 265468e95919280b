"""Read sessions and limited reads, as coroutines on the I/O loop.

A session that is not asked for its next batch for a while closes itself: it *parks*. The SDK gives a connection
one window of 10 MiB and acknowledges bytes only as they are consumed, so a session that is not read holds up its
neighbours (17.7 s were measured). Whoever reads it reopens it at the next index; the log is durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from typing import Literal, TypeVar

import attrs
import s2_sdk
from s2_sdk._exceptions import ConnectionRetiredError
from s2_sdk._read_session import _ReadSessionRetrying

from s2pubsub.errors import StoreError
from s2pubsub.store.failures import classify, is_broken_client
from s2pubsub.store.lane import Lane, Tenancy

T = TypeVar("T")

PARK_AFTER = 0.2
"""Seconds after which a session that nobody reads from closes itself."""

_CLOSE_AGAIN = 0.2
"""Closing an SDK session may wait for ever on Python 3.11 when a frame is already buffered (54 of 60 closes at the
tail). After this many seconds the close is cancelled and called again, until it returns."""

_CLOSE_TRIES = 25

_ONCE = s2_sdk.Retry(max_attempts=1)

End = Literal["ended", "parked"]

OnPark = Callable[[], object]


@attrs.frozen(slots=True)
class Batch:
    """Records read in one piece. ``caught_up_at``: the tail, where they reach it; then there may be no records."""

    records: list[s2_sdk.SequencedRecord]
    caught_up_at: int | None


class ReadSession:
    """An open read session. Every method runs on the I/O loop, one call at a time."""

    def __init__(
        self, lane: Lane, tenancy: Tenancy, session: s2_sdk.ReadSession, doing: str, on_park: OnPark | None
    ) -> None:
        self._lane = lane
        self._tenancy = tenancy
        self._session = session
        self._doing = doing
        self._on_park = on_park
        self._first = True
        self._pending: asyncio.Task[s2_sdk.ReadBatch] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self._parked = False

    async def next(self) -> Batch | End:
        """The next batch; ``"parked"`` when the session closed itself, ``"ended"`` when the server ended it.

        The first one may be empty with ``caught_up_at``: nothing is retained between the start and the tail.

        Raises:
            StoreError: the session failed; ``kind`` says how.
        """
        if self._idle is not None:
            self._idle.cancel()
        if self._parked:
            return "parked"
        try:
            batch = await self._next()
        except StopAsyncIteration:
            return "ended"
        except Exception as error:
            if is_broken_client(error):
                self._lane.retire(self._tenancy)
            raise classify(error, self._doing) from error
        self._tenancy.heard_at = time.monotonic()
        if isinstance(batch, int):
            return Batch([], batch)
        self._idle = asyncio.get_running_loop().call_later(PARK_AFTER, self._park)
        end = batch.records[-1].seq_num + 1
        return Batch(batch.records, end if batch.tail is not None and batch.tail.seq_num == end else None)

    async def _next(self) -> s2_sdk.ReadBatch | int:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            return await pending
        if not self._first:
            return await self._session.__anext__()
        self._first = False
        # A session that starts at the tail, or in a range that was trimmed, tells so by a heartbeat, which the SDK
        # shows through caught_up() only.
        caught_up = asyncio.ensure_future(self._session.caught_up())
        batch = asyncio.ensure_future(anext(self._session))
        await asyncio.wait({caught_up, batch}, return_when=asyncio.FIRST_COMPLETED)
        if batch.done() or caught_up.exception() is not None:
            caught_up.cancel()
            return await batch
        self._pending = batch
        return caught_up.result().seq_num

    def _park(self) -> None:
        self._parked = True
        self.close()
        if self._on_park is not None:
            self._on_park()

    def close(self) -> asyncio.Task[None]:
        """Begin to close; the task ends when it is done."""
        if self._idle is not None:
            self._idle.cancel()
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        return self._closing

    async def _close(self) -> None:
        try:
            for _ in range(_CLOSE_TRIES):
                attempt = asyncio.ensure_future(self._session.close())
                await asyncio.wait({attempt}, timeout=_CLOSE_AGAIN)
                if attempt.done():
                    with contextlib.suppress(asyncio.CancelledError, Exception):
                        attempt.result()
                    break
                attempt.cancel()
            if self._pending is not None:
                with contextlib.suppress(StopAsyncIteration, asyncio.CancelledError, Exception):
                    await self._pending
        finally:
            self._lane.leave(self._tenancy)


async def _without_reconnects(events: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """The SDK's events of a session up to the first one that says it reconnects by itself.

    However few attempts it is allowed, it reconnects at once, and again and again, while a server says that it is
    draining: 280 connections a second were counted. Whoever reads the session reopens it after a wait instead.
    """
    try:
        async for event in events:
            if isinstance(event, _ReadSessionRetrying):
                raise ConnectionRetiredError("the server asks to reconnect")
            yield event
    finally:
        await events.aclose()


async def open_session(
    lane: Lane,
    basin: str,
    stream: str,
    doing: str,
    *,
    start: int,
    limit: s2_sdk.ReadLimit | None = None,
    wait: int | None = None,
    clamp: bool = False,
    encryption_key: bytes | str | None = None,
    stream_config: s2_sdk.StreamConfig | None = None,
    on_park: OnPark | None = None,
) -> ReadSession:
    """Open a session at the sequence number ``start``. The first ``next`` reports whether the server accepted it."""
    tenancy = await lane.enter()
    try:
        handle = tenancy.s2.basin(basin).stream(stream, encryption_key=encryption_key)
        # Whoever made the client: were the SDK to retry, it would make a stream anew that has been deleted (on a basin
        # with create-on-read). It has no public way to say so for one session.
        handle._retry = _ONCE
        session = handle.read_session(
            start=s2_sdk.SeqNum(start),
            limit=limit,
            wait=wait,
            clamp_to_tail=clamp,
            # We skip them ourselves: the SDK's filter makes holes that look like a gap.
            ignore_command_records=False,
            stream_config=stream_config,
        )
        session._events = _without_reconnects(session._events)
    except Exception as error:
        lane.leave(tenancy)
        raise classify(error, doing) from error
    return ReadSession(lane, tenancy, session, doing, on_park)


def missing(error: BaseException) -> bool:
    """Whether ``error`` says that the stream does not exist or is being deleted."""
    return isinstance(error, StoreError) and error.kind == "gone"
