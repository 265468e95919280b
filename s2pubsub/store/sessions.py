"""The read sessions of one basin: opens them, and lets readers share them. Lives on the I/O loop.

A reader without a limit that has caught up with its stream moves into the session that stands at that tail, if there
is one; else its own becomes the one that others move into. See ``reading`` for how they share it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from types import FunctionType
from typing import Any, TypeVar

import attrs
import s2_sdk
import s2_sdk._generated.s2.v1.s2_pb2 as pb
from s2_sdk._exceptions import ConnectionRetiredError
from s2_sdk._mappers import read_batch_from_proto
from s2_sdk._read_session import _ReadSessionRetrying
from s2_sdk._s2s._read_session import run_read_session

from s2pubsub.runtime.fork import reset_in_child
from s2pubsub.store.failures import classify
from s2pubsub.store.lane import Lane
from s2pubsub.store.reading import Reader, Session

T = TypeVar("T")

_ONCE = s2_sdk.Retry(max_attempts=1)


@attrs.frozen
class Bounds:
    """How a session begins and ends.

    Attributes:
        count, size: it ends after so many records or metered bytes.
        wait: such a session ends after so many seconds at the tail, in whole seconds.
        clamp: a start beyond the tail begins at the tail.
        tail: the tail as it was known before. At a start there others may join before the server has answered; and a
            session that reaches the tail before it reads another stream of that name.
    """

    count: int | None = None
    size: int | None = None
    wait: int | None = None
    clamp: bool = False
    tail: int | None = None

    @property
    def limited(self) -> bool:
        """Whether the session ends by itself, so that nobody else can use it."""
        return self.count is not None


class Sessions:
    """Opens sessions on ``lane``.

    Args:
        lane: the connections.
        stream_of: the SDK's handle of a stream of this name.
        stream_config: sent where reading may create the stream.
    """

    def __init__(
        self,
        lane: Lane,
        stream_of: Callable[[s2_sdk.S2, str], s2_sdk.S2Stream],
        stream_config: s2_sdk.StreamConfig | None,
    ) -> None:
        self._lane = lane
        self._stream_of = stream_of
        self._stream_config = stream_config
        self._reset_in_child()
        reset_in_child(self)

    def _reset_in_child(self) -> None:
        self._shared: dict[str, Session] = {}

    async def open(self, stream: str, reader: Reader, bounds: Bounds) -> None:
        """Have ``reader`` read ``stream`` from its position on. What it takes first tells whether that was accepted."""
        tenancy = await self._lane.enter()
        if reader.left:
            self._lane.leave(tenancy)
            return
        shared = self._shared.get(stream)
        if shared is not None and not bounds.limited and shared.admits(reader.position):
            self._lane.leave(tenancy)
            shared.add(reader)
            return
        doing = f"read session on stream {stream!r} from {reader.position}"
        try:
            session = self._read(self._stream_of(tenancy.s2, stream), reader.position, bounds)
        except Exception as error:
            self._lane.leave(tenancy)
            raise classify(error, doing) from error
        opened = Session(self._lane, tenancy, session, doing, reader.position, bounds.tail)
        opened.start(
            reader,
            on_batch=(lambda _: None) if bounds.limited else lambda session: self._share(stream, session),
            on_end=lambda session: self._forget(stream, session),
        )
        if not bounds.limited:
            self._share(stream, opened)

    def _read(self, handle: s2_sdk.S2Stream, start: int, bounds: Bounds) -> s2_sdk.ReadSession:
        """What ``handle.read_session`` does, without the SDK's retries and its objects for records.

        Whoever made the client: were the SDK to retry, it would make a stream anew that has been deleted (on a basin
        with create-on-read). It has no public way to say so for one session. Command records stay in: the SDK's filter
        makes holes that look like gaps.
        """
        events = _read_events(
            handle._client,
            handle.name,
            s2_sdk.SeqNum(start),
            s2_sdk.ReadLimit(count=bounds.count, bytes=bounds.size) if bounds.limited else None,
            None,
            bounds.clamp,
            bounds.wait,
            retry=_ONCE,
            encryption_key=handle._encryption_key,
            stream_config=self._stream_config,
        )
        return s2_sdk.ReadSession(_without_reconnects(events))

    def _share(self, stream: str, session: Session) -> None:
        """At the tail ``session`` is shared, or its readers move into the one that is."""
        if not session.live:
            return
        shared = self._shared.get(stream)
        if shared is None or shared is session or not shared.admits(session.position):
            self._shared[stream] = session
        else:
            session.move_readers(shared)

    def _forget(self, stream: str, session: Session) -> None:
        if self._shared.get(stream) is session:
            del self._shared[stream]


def _as_parsed(read: pb.ReadBatch) -> s2_sdk.ReadBatch:
    """A message with records as it is, unless there are headers among them.

    The SDK makes an object and a list of each record. That takes a quarter of the time of a replay, which wants bodies.
    """
    if any(record.headers for record in read.records):
        return read_batch_from_proto(read)
    tail = s2_sdk.StreamPosition(read.tail.seq_num, read.tail.timestamp) if read.HasField("tail") else None
    return s2_sdk.ReadBatch(read.records, tail)


_read_events: Any = FunctionType(
    run_read_session.__code__, {**run_read_session.__globals__, read_batch_from_proto.__name__: _as_parsed}
)
"""The SDK's own reading, for which the name of that one function means ours."""


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
