"""Read sessions, as tasks on the I/O loop, and their readers, each of which is a thread.

A session reads a little ahead of its readers and gives each of them every batch, so that no request has to cross
threads for an event to arrive. Readers of one stream that have caught up with it share one session: a batch that is
received once goes to all of them. Each takes and decodes at its own pace; one that falls far behind the others is put
off and opens a session of its own.

A session whose readers all have enough reads no further, and after a while closes itself: its readers *park*. The SDK
gives a connection one window of 10 MiB and acknowledges bytes only as they are consumed, so a session that is not read
holds up its neighbours (17.7 s were measured). Whoever reads it reopens it at the next index; the log is durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Literal

import attrs
import s2_sdk

from s2pubsub.errors import ClosedError, S2PubSubError
from s2pubsub.runtime.channel import fresh
from s2pubsub.runtime.loop import IOLoop
from s2pubsub.store.failures import PastTailError, classify, is_broken_client
from s2pubsub.store.lane import Lane, Tenancy

PARK_AFTER = 0.2
"""Seconds after which a session that nobody reads from closes itself."""

_AHEAD = 512 * 1024
"""Bytes of bodies that a reader may have received and not taken; then it has enough."""

_BEHIND = 2 * 2**20
"""Bytes that a reader may have received and not taken because others read on; then it is put off."""

_CLOSE_AGAIN = 0.2
"""Closing an SDK session may wait for ever on Python 3.11 when a frame is already buffered (54 of 60 closes at the
tail). After this many seconds the close is cancelled and called again, until it returns."""

_CLOSE_TRIES = 25

End = Literal["ended", "parked"]


@attrs.frozen(slots=True)
class Batch:
    """Bodies of consecutive records, read in one piece.

    Only these are kept: the SDK's records are two more objects for the garbage collector each.

    Attributes:
        start: sequence number of the first.
        bodies: None in place of a command record.
        size: of the bodies, in bytes.
        caught_up_at: the tail, where they reach it; then there may be none.
    """

    start: int
    bodies: list[bytes | None]
    size: int
    caught_up_at: int | None = None

    @property
    def end(self) -> int:
        """Sequence number behind the last."""
        return self.start + len(self.bodies)

    def behind(self, position: int) -> Batch:
        """What lies at ``position`` and behind it."""
        bodies = self.bodies[position - self.start :]
        return Batch(position, bodies, _size(bodies), self.caught_up_at)

    def parts(self, length: int) -> Iterator[Batch]:
        """The same bodies, at most ``length`` at a time."""
        if len(self.bodies) <= length:
            yield self
            return
        for at in range(0, len(self.bodies), length):
            bodies = self.bodies[at : at + length]
            yield Batch(self.start + at, bodies, _size(bodies))


def batches(read: s2_sdk.ReadBatch) -> list[Batch]:
    """What the SDK has read: one batch, or several where records are missing between them."""
    records: Any = read.records
    if not records:
        return []
    first, end = records[0].seq_num, records[-1].seq_num + 1
    if end - first != len(records):
        starts = [i for i in range(1, len(records)) if records[i].seq_num != records[i - 1].seq_num + 1]
        spans = pairwise([0, *starts, len(records)])
        return [batch for i, j in spans for batch in batches(s2_sdk.ReadBatch(records[i:j], read.tail))]
    if isinstance(records, list):
        bodies = [None if record.headers and record.is_command_record() else record.body for record in records]
    else:  # as they were parsed, so none has headers
        bodies = [record.body for record in records]
    caught_up = read.tail is not None and read.tail.seq_num == end
    return [Batch(first, bodies, _size(bodies), end if caught_up else None)]


def _size(bodies: list[bytes | None]) -> int:
    return sum(len(body) for body in bodies if body is not None)


class Reader:
    """One reader's end of a session. ``take`` and ``close`` are its thread's, the rest runs on the I/O loop.

    Args:
        position: sequence number of the first record to take; what a session has before it is left out.
        notify: called on the I/O loop when there is something to take.
        on_park: called on the I/O loop when the session was closed, or left, because this reader was slow.
    """

    def __init__(
        self,
        loop: IOLoop,
        position: int,
        notify: Callable[[], object],
        on_park: Callable[[], object] | None = None,
    ) -> None:
        self._loop = loop
        self.position = position
        self._notify = notify
        self._on_park = on_park
        self.session: Session | None = None
        self.left = False
        self._answers: deque[Batch | End | S2PubSubError] = deque()
        # Two counters with one writer each, since several threads cannot add to one.
        self._given = 0
        self._taken = 0

    def take(self) -> Batch | End | None:
        """The next batch; ``"parked"`` or ``"ended"`` when the session was closed by us or by the server; None when
        there is nothing yet: ``notify`` is called once there is.

        The first batch may be empty with ``caught_up_at``: nothing is retained between the start and the tail.

        Raises:
            StoreError: the session failed; ``kind`` says how.
            ClosedError: the client is closed.
        """
        try:
            answer = self._answers.popleft()
        except IndexError:
            return None
        if isinstance(answer, S2PubSubError):
            raise answer
        if isinstance(answer, Batch):
            self._taken += answer.size
            session = self.session
            if session is not None and session.waits_for_room and self.has_room:
                self._soon(session.resume)
        return answer

    def close(self) -> None:
        """Leave the session, which closes with its last reader; does not wait."""
        self._soon(self._leave)

    def _soon(self, action: Callable[[], object]) -> None:
        with contextlib.suppress(ClosedError):  # the loop has ended, and the connection with it
            self._loop.soon(action)

    # -- on the I/O loop -----------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether it has not enough yet."""
        return self._given - self._taken < _AHEAD

    @property
    def is_behind(self) -> bool:
        """Whether it holds up more than it may while others read on."""
        return self._given - self._taken > _BEHIND

    def give(self, batch: Batch) -> None:
        """Hand over a batch, without what lies before the position."""
        if batch.bodies:
            end = batch.end
            if batch.start < self.position:
                batch = batch.behind(min(self.position, end))
            self.position = max(self.position, end)
        self._given += batch.size
        self._answers.append(batch)
        self._notify()

    def end(self, answer: End | S2PubSubError) -> None:
        """Nothing follows ``answer``. One that parks loses what it has not taken: it will read that again."""
        self.session = None
        if answer == "parked":
            self._answers.clear()
            if self._on_park is not None:
                self._on_park()
        self._answers.append(answer)
        self._notify()

    def _leave(self) -> None:
        self.left = True
        session, self.session = self.session, None
        if session is not None:
            session.remove(self)


class Session:
    """An open read session with its readers. Lives on the I/O loop.

    Attributes:
        position: sequence number of the next record to be received.
        live: whether it stands at the tail, as far as is known.
        waits_for_room: whether it reads no further until a reader has taken something.
    """

    def __init__(
        self, lane: Lane, tenancy: Tenancy, session: s2_sdk.ReadSession, doing: str, start: int, tail: int | None
    ) -> None:
        self._lane = lane
        self._tenancy = tenancy
        self._session = session
        self._doing = doing
        self.position = start
        self.live = start == tail
        self._tail = tail or 0
        self._answered = False
        self.waits_for_room = False
        self._readers: set[Reader] = set()
        self._room = asyncio.Event()
        self._pending: asyncio.Task[s2_sdk.ReadBatch] | None = None
        self._ended = False

    def start(self, reader: Reader, on_batch: Callable[[Session], object], on_end: Callable[[Session], object]) -> None:
        """Begin to read for ``reader``. ``on_batch`` is called after each batch was given, ``on_end`` at the end."""
        self._on_batch = on_batch
        self._on_end = on_end
        self.add(reader)
        task = self._task = asyncio.get_running_loop().create_task(self._run())
        # Also of a task that was cancelled, even before its first step: the loop ends.
        task.add_done_callback(lambda _: self._finish(ClosedError("the client is closed")))

    def admits(self, position: int) -> bool:
        """Whether a reader at ``position`` may join: it stands at the tail, on a connection that is not given up."""
        return self.live and self.position <= position and not self._tenancy.retired

    def add(self, reader: Reader) -> None:
        """Give ``reader`` what comes from now on."""
        self._readers.add(reader)
        reader.session = self
        self._room.set()
        if self.live and self._answered:
            reader.give(_caught_up(self.position))

    def move_readers(self, other: Session) -> None:
        """Hand the readers over to ``other``, which stands at the tail too, and close."""
        for reader in self._readers:
            other.add(reader)
        self._readers.clear()
        self.close()

    def remove(self, reader: Reader) -> None:
        """``reader`` leaves; the last one closes the session."""
        self._readers.discard(reader)
        if not self._readers:
            self.close()

    def resume(self) -> None:
        """A reader has taken something."""
        self._room.set()

    # -- the task ------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while self._readers and await self._has_room():
                found = await self._next()
                if not self._readers:
                    return  # they have left meanwhile, which has closed it
                self._tenancy.heard_at = time.monotonic()
                for batch in found:
                    self._check(batch)
                    self._give(batch)
            self._finish("parked")
        except StopAsyncIteration:
            self._finish("ended")
        except Exception as error:  # noqa: BLE001  # the readers get it
            if is_broken_client(error):
                self._lane.retire(self._tenancy)
            failed = classify(error, self._doing)
            if failed is not error:
                failed.__cause__ = error
            self._finish(failed)

    async def _has_room(self) -> bool:
        """Wait until a reader wants more; False when none did for too long."""
        if any(reader.has_room for reader in self._readers):
            return True
        self._room.clear()
        self.waits_for_room = True
        try:
            # Looked at once more: one may have taken something before it could see that it is waited for.
            if not any(reader.has_room for reader in self._readers):
                async with asyncio.timeout(PARK_AFTER):
                    await self._room.wait()
        except TimeoutError:
            return False
        finally:
            self.waits_for_room = False
        return bool(self._readers)

    def _check(self, batch: Batch) -> None:
        # Of this session's own answers only: one that a reader joins may lag behind the tail which that one has found.
        if batch.caught_up_at is not None and batch.caught_up_at < self._tail:
            message = f"{self._doing}: the stream ends at {batch.caught_up_at} although {self._tail} was its tail"
            raise PastTailError(message, code="past_tail", status=None)

    def _give(self, batch: Batch) -> None:
        self._answered = True
        self.live = batch.caught_up_at is not None
        self.position = batch.end if batch.caught_up_at is None else batch.caught_up_at
        for reader in tuple(self._readers):
            reader.give(batch)
            if reader.is_behind and len(self._readers) > 1:
                self._readers.discard(reader)
                reader.end("parked")
        self._on_batch(self)

    async def _next(self) -> list[Batch]:
        live = self.live and self._answered
        if live and self._pending is None:
            return batches(await anext(self._session))
        # That it has reached the tail, or stands in a range that was trimmed, may come as a heartbeat without records,
        # which the SDK shows through caught_up() only.
        batch, self._pending = self._pending or asyncio.ensure_future(anext(self._session)), None
        if not live:
            caught_up = asyncio.ensure_future(self._session.caught_up())
            await asyncio.wait({caught_up, batch}, return_when=asyncio.FIRST_COMPLETED)
            if not batch.done() and caught_up.exception() is None:
                self._pending = batch
                return [_caught_up(caught_up.result().seq_num)]
            caught_up.cancel()
        return batches(await batch)

    # -- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Begin to close."""
        self._finish(ClosedError("the session is closed"))

    def _finish(self, answer: End | S2PubSubError) -> None:
        """Tell the readers that nothing follows ``answer``, and begin to close. The first call counts."""
        if self._ended:
            return
        self._ended = True
        self.live = False
        self._on_end(self)
        for reader in self._readers:
            reader.end(answer if isinstance(answer, str) else fresh(answer))
        self._readers.clear()
        self._room.set()
        # The task is not cancelled: the SDK would then close the session in its own way, which may take for ever.
        self._closing = asyncio.get_running_loop().create_task(self._close())

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


def _caught_up(tail: int) -> Batch:
    return Batch(tail, [], 0, tail)
