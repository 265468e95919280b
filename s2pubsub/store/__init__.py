"""The S2 server as blocking calls on streams: the only part of the core that knows the S2 SDK.

Everything is in terms of streams, sequence numbers and bytes; topics and events are the callers' business.
SDK errors come out as the library's own, with the SDK's as their cause (``failures.classify``). Thread-safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import s2_sdk

from s2pubsub.errors import ClosedError, OperationTimeoutError, S2PubSubError, StoreError
from s2pubsub.retry import is_near, republishing
from s2pubsub.runtime.deadline import NEVER, Deadline
from s2pubsub.runtime.fork import reset_in_child
from s2pubsub.runtime.loop import IOLoop
from s2pubsub.runtime.outbox import Outbox
from s2pubsub.runtime.worker import Stop
from s2pubsub.store.appending import Appender, Appending, Outlet, Place
from s2pubsub.store.commit import GroupCommits, not_acknowledged
from s2pubsub.store.failures import Attempts, ConditionError, PastTailError
from s2pubsub.store.lane import Lane
from s2pubsub.store.reading import Batch, End, Reader, batches
from s2pubsub.store.sessions import Bounds, Sessions
from s2pubsub.store.unacked import I
from s2pubsub.store.values import BasinFlags, StreamInfo

__all__ = ["Appending", "Batch", "ConditionError", "End", "PastTailError", "Reader", "Store", "StreamInfo"]

T = TypeVar("T")

MakeClient = Callable[[], s2_sdk.S2]


class Store:
    """One basin, through a write lane, a read lane, and one for append sessions.

    Args:
        loop: runs the SDK.
        basin: name of the basin.
        make_writer, make_reader: make the SDK clients of single calls and of sessions. Sessions must not be retried
            by the SDK: on a basin with create-on-read its retry after a deletion makes the stream anew, and after a
            lost acknowledgement of an append it leaves unknown what is stored.
        shared: all lanes use the one client that ``make_writer`` returns, and it cannot be replaced.
        stream_config: sent with appends and reads that may create a stream.
        encryption_key: for basins with a cipher.
    """

    def __init__(
        self,
        loop: IOLoop,
        basin: str,
        make_writer: MakeClient,
        make_reader: MakeClient,
        *,
        shared: bool = False,
        stream_config: s2_sdk.StreamConfig | None = None,
        encryption_key: bytes | str | None = None,
    ) -> None:
        self.basin = basin
        self._loop = loop
        self._write = Lane(make_writer, replaceable=not shared)
        self._read = self._write if shared else Lane(make_reader)
        self._sessions = self._write if shared else Lane(make_reader)
        self._readers = Sessions(self._read, self._stream, stream_config)
        self._stream_config = stream_config
        self._encryption_key = encryption_key
        self._reset_in_child()
        loop.at_end = self._at_end
        reset_in_child(self)

    def _reset_in_child(self) -> None:
        # What a parent has in flight is the parent's to store.
        self._commits = GroupCommits(self._append_bodies, self._write.ready, self._loop.ring)

    # -- appends -------------------------------------------------------------------------------------------------

    def commit(self, stream: str, body: bytes, deadline: Deadline) -> int:
        """Append one record together with what others append to ``stream`` now; return its sequence number."""
        began = time.monotonic()
        try:
            self._loop.start()
            return self._commits.commit(stream, body, deadline)
        except S2PubSubError as error:
            if isinstance(error, OperationTimeoutError):
                # The append itself goes on for the other callers of its batch.
                self._soon(lambda: self._write.doubt(began))
            with self._outcomes():
                raise

    async def _append_bodies(self, stream: str, bodies: list[bytes]) -> int:
        ack = await self.append_once(stream, [s2_sdk.Record(body=body) for body in bodies])
        return ack.start.seq_num

    def append(self, stream: str, bodies: list[bytes], deadline: Deadline, *, match_seq_num: int | None = None) -> int:
        """Append ``bodies`` atomically; return the first one's sequence number.

        Raises:
            ConditionError: ``match_seq_num`` is not the stream's next sequence number.
        """
        records = [s2_sdk.Record(body=body) for body in bodies]
        with self._outcomes():
            return self._loop.call(self._append_retrying(stream, records, deadline, match_seq_num), deadline)

    @contextlib.contextmanager
    def _outcomes(self) -> Iterator[None]:
        """Every failed append says what is known of its records; what the closing of the loop has ended says so."""
        try:
            yield
        except S2PubSubError as error:
            outcome = error.outcome = error.outcome or "unknown"
            if self._loop.closed and isinstance(error, OperationTimeoutError):
                closed = ClosedError("the client was closed during the call")
                closed.outcome = outcome
                raise closed from error
            raise

    async def _append_retrying(
        self, stream: str, records: list[s2_sdk.Record], deadline: Deadline, match_seq_num: int | None
    ) -> int:
        last: StoreError | None = None
        sent = False
        try:
            async for attempt in republishing(lambda: is_near(deadline)):
                with attempt:
                    try:
                        await self._write.ready()
                        sent = True
                        ack = await self.append_once(stream, records, match_seq_num=match_seq_num)
                    except StoreError as error:
                        last, sent = error, error.outcome != "not_stored"
                        raise
                    return ack.start.seq_num
        except asyncio.CancelledError:
            if last is not None and not sent:
                raise last from last.__cause__  # between two attempts: what stopped it is known
            raise not_acknowledged(last, sent=sent) from last
        raise AssertionError("the schedule ends by a return or an error")

    async def append_once(
        self,
        stream: str,
        records: list[s2_sdk.Record],
        *,
        match_seq_num: int | None = None,
        fencing_token: str | None = None,
        lookup: bool = False,
    ) -> s2_sdk.AppendAck:
        """One append, tried again only by the SDK's own policy, and not while it is sure that nothing was stored.

        ``lookup`` takes the read lane. An append that is expected to fail belongs there: an error answer takes 42 ms
        and would delay the others.
        """
        entry = s2_sdk.AppendInput(
            records, match_seq_num=match_seq_num, fencing_token=fencing_token, stream_config=self._stream_config
        )
        lane = self._read if lookup else self._write
        attempts = Attempts()
        try:
            return await lane.run(
                f"append to stream {stream!r}", lambda s2: attempts.watch(self._stream(s2, stream)).append(entry)
            )
        except S2PubSubError as error:
            if attempts.may_be_stored:
                error.outcome = "unknown"
            raise

    def fence(self, stream: str, token: str, expected: str, deadline: Deadline, *, lookup: bool = False) -> None:
        """Set the fencing token to ``token`` if it is ``expected`` now.

        Raises:
            ConditionError: it is another one, which its ``token`` names.
        """
        self._loop.call(self._fence(stream, token, expected, lookup), deadline)

    async def _fence(self, stream: str, token: str, expected: str, lookup: bool) -> None:
        record = s2_sdk.CommandRecord.fence(token)
        await self.append_once(stream, [record], fencing_token=expected, lookup=lookup)

    def start_appender(
        self,
        stream: str,
        outbox: Outbox[I],
        outlet: Outlet[I],
        *,
        position: int | None = None,
        token: str | None = None,
        is_own: Callable[[str], bool] = lambda token: False,
    ) -> Appending:
        """Append what ``outbox`` takes to ``stream``, through sessions, until it has ended; see ``Appender``."""
        place = Place(self._sessions, stream, self._stream_config, lambda s2: self._stream(s2, stream))
        appender = Appender(place, outbox, outlet, position=position, token=token, is_own=is_own)
        outbox.wake = partial(self._loop.ring, appender.wake)
        return Appending(self._loop.submit(appender.run()), lambda: self._soon(appender.abort))

    def _soon(self, action: Callable[[], object]) -> None:
        with contextlib.suppress(ClosedError):  # the loop has ended, and what ran on it
            self._loop.soon(action)

    # -- reads ---------------------------------------------------------------------------------------------------

    def tail(self, stream: str, deadline: Deadline) -> int:
        """The next sequence number. Creates the stream on a basin with create-on-read."""
        return self._loop.call(self._tail(stream), deadline)

    async def _tail(self, stream: str) -> int:
        doing = f"tail of stream {stream!r}"
        if self._stream_config is not None and await self.find_async(stream) is None:
            # Asking for the tail may make the stream, without this configuration; a read takes it along.
            with contextlib.suppress(PastTailError):
                await self._read_once(stream, 0, 1)
        position: s2_sdk.StreamPosition = await self._write.run(doing, lambda s2: self._stream(s2, stream).check_tail())
        return position.seq_num

    def read(self, stream: str, start: int, count: int, deadline: Deadline) -> list[Batch]:
        """Up to ``count`` records from ``start``, at most 1000 and 1 MiB. Empty when nothing is retained there.

        Raises:
            PastTailError: ``start`` is the tail or beyond.
        """
        return self._loop.call(self._read_once(stream, start, count), deadline)

    async def _read_once(self, stream: str, start: int, count: int) -> list[Batch]:
        read: s2_sdk.ReadBatch = await self._write.run(
            f"read of stream {stream!r} from {start}",
            lambda s2: self._stream(s2, stream).read(
                start=s2_sdk.SeqNum(start), limit=s2_sdk.ReadLimit(count=count), stream_config=self._stream_config
            ),
        )
        return batches(read)

    def open(
        self,
        stream: str,
        start: int,
        notify: Callable[[], object],
        *,
        limit: tuple[int, int | None] | None = None,
        wait: int | None = None,
        clamp: bool = False,
        tail: int | None = None,
        stop: Stop | None = None,
        deadline: Deadline = NEVER,
        on_park: Callable[[], object] | None = None,
    ) -> Reader:
        """Read at ``start`` and on; ``limit`` is in records and metered bytes, ``wait`` in whole seconds, ``clamp`` and
        ``tail`` are those of ``Bounds``.

        ``notify`` is called on the I/O loop when there is something to take; ``on_park``, there too, when the session
        was closed because it was not read.
        """
        reader = Reader(self._loop, start, notify, on_park)
        count, size = limit or (None, None)
        bounds = Bounds(count, size, wait, clamp, tail)
        try:
            self._loop.call(self._readers.open(stream, reader, bounds), deadline, stop)
        except BaseException:
            reader.close()  # it may have been opened nevertheless
            raise
        return reader

    # -- streams and the basin -----------------------------------------------------------------------------------

    def find(self, stream: str, deadline: Deadline, stop: Stop | None = None) -> StreamInfo | None:
        """The stream as it is listed, or None. Creates nothing."""
        return self._loop.call(self.find_async(stream), deadline, stop)

    def find_for_reader(self, stream: str) -> Future[StreamInfo | None]:
        """``find`` on the read lane, without waiting for its answer: as soon as the reader's own session would open."""
        return self._loop.submit(self.find_async(stream, self._read))

    async def find_async(self, stream: str, lane: Lane | None = None) -> StreamInfo | None:
        """``find`` on the I/O loop, by default on the write lane."""
        doing = f"look-up of stream {stream!r}"
        page = await (lane or self._write).run(
            doing, lambda s2: s2.basin(self.basin).list_streams(prefix=stream, limit=1)
        )
        found = page.items[0] if page.items else None
        return _info(found) if found is not None and found.name == stream else None

    def list(self, prefix: str, deadline: Deadline) -> Iterator[StreamInfo]:
        """Streams whose name begins with ``prefix``, in byte order, a page of 1000 at a time."""
        start_after = ""
        while True:
            page = self._loop.call(self._list_page(prefix, start_after), deadline)
            yield from map(_info, page.items)
            if not page.has_more or not page.items:
                return
            start_after = page.items[-1].name

    async def _list_page(self, prefix: str, start_after: str) -> s2_sdk.Page[s2_sdk.StreamInfo]:
        return await self._write.run(
            f"list of streams {prefix!r}…",
            lambda s2: s2.basin(self.basin).list_streams(prefix=prefix, start_after=start_after),
        )

    def delete(self, stream: str, deadline: Deadline) -> bool:
        """Delete the stream; False when it was absent."""
        was_there = self._loop.call(self._delete(stream), deadline)
        self._commits.forget(stream)
        return was_there

    async def _delete(self, stream: str) -> bool:
        try:
            await self._write.run(
                f"deletion of stream {stream!r}", lambda s2: s2.basin(self.basin).delete_stream(stream)
            )
        except StoreError as error:
            if error.kind != "gone":
                raise
            await self.find_async(stream)  # a deletion does not tell that the basin is missing; this does
            return False
        return True

    def flags(self, deadline: Deadline) -> BasinFlags:
        """The basin's settings that matter here."""
        return self._loop.call(self._flags(), deadline)

    async def _flags(self) -> BasinFlags:
        config = await self._write.run(f"settings of basin {self.basin!r}", lambda s2: s2.get_basin_config(self.basin))
        return BasinFlags(bool(config.create_stream_on_append), bool(config.create_stream_on_read))

    def ensure_basin(self, deadline: Deadline, *, retention: int | None, delete_on_empty: int | None) -> bool:
        """Create the basin, or patch what is given where it exists. True: created.

        The SDK's own ``ensure_basin`` is not used: it clears every setting that is not given.
        """
        return self._loop.call(self._ensure_basin(retention, delete_on_empty), deadline)

    async def _ensure_basin(self, retention: int | None, delete_on_empty: int | None) -> bool:
        streams = None
        if retention is not None or delete_on_empty is not None:
            streams = s2_sdk.StreamConfig(retention_policy=retention, delete_on_empty_min_age=delete_on_empty)
        config = s2_sdk.BasinConfig(
            default_stream_config=streams, create_stream_on_append=True, create_stream_on_read=True
        )
        doing = f"creation of basin {self.basin!r}"
        try:
            await self._write.run(doing, lambda s2: s2.create_basin(self.basin, config=config))
        except StoreError as error:
            if error.code != "resource_already_exists":
                raise
        else:
            return True
        doing = f"change of basin {self.basin!r}"
        await self._write.run(doing, lambda s2: s2.reconfigure_basin(self.basin, config=config))
        return False

    # -- life cycle ----------------------------------------------------------------------------------------------

    @property
    def replaced_clients(self) -> int:
        """How many SDK clients were given up because their connection went silent."""
        return sum(lane.replaced for lane in {self._write, self._read, self._sessions})

    async def _at_end(self) -> None:
        """When the loop ends: release who waits, close the connections."""
        self._commits.close()
        await asyncio.gather(*(lane.close() for lane in {self._write, self._read, self._sessions}))

    def _stream(self, s2: s2_sdk.S2, stream: str) -> s2_sdk.S2Stream:
        handle: s2_sdk.S2Stream = s2.basin(self.basin).stream(stream, encryption_key=self._encryption_key)
        return handle


def _info(info: s2_sdk.StreamInfo) -> StreamInfo:
    return StreamInfo(info.name, info.created_at, info.deleted_at is not None)
