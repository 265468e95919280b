"""One append session after the other to one stream, in the order of an outbox, as a coroutine on the I/O loop.

Batches are formed from what has queued: at once while little is in flight, else when an acknowledgement makes room.
When a session dies of a passing failure, the next one begins with whatever is not acknowledged. What was sent before
may be stored already; then, in this order of strictness:

- plain: it is sent again (at least once, the same bytes);
- exact (``position``): the only writer of its stream. Every batch is conditioned on its sequence number, and what is
  stored is read back (``unacked``) before anything is sent again. A foreign record there is a second writer, and final;
- fenced (``token``): every batch is conditioned on the fencing token, which records of the same order may change. A
  mismatch that names a token written here means that everything up to it is stored, and that is read back.

Not for: completing anybody's future (``Outlet``), bounding what is accepted (``runtime.outbox``).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

import attrs
import s2_sdk
from tenacity import RetryCallState

from s2pubsub.errors import ClosedError, S2PubSubError, StoreError
from s2pubsub.retry import MISSING_STREAM_TRIES, Interrupted, reopening
from s2pubsub.runtime.outbox import Outbox, fresh
from s2pubsub.store.failures import ConditionError, classify, is_broken_client
from s2pubsub.store.lane import Lane, Tenancy, no_answer
from s2pubsub.store.unacked import Batch, I, Item, SecondWriterError, Unacked

MAX_RECORDS = 1000
MAX_METERED_BYTES = 2**20

MAX_IN_FLIGHT = 4
"""Unacknowledged batches of one stream."""

_FULL_ENOUGH = 64
"""Beyond two batches in flight the next one waits until it has so many records: a batch costs as much as twenty."""

_CLOSE_LIMIT = 0.5
"""Seconds for a session's orderly end; then it is cancelled."""

_CLOSE_TRIES = 5

_MISMATCHES = 5
"""Mismatches in a row which reading back does not explain; then the server's answer stands."""


T_contra = TypeVar("T_contra", bound=Item, contravariant=True)


class Outlet(Protocol[T_contra]):
    """Told on the I/O loop what has become of items; each one once, in the order of the outbox."""

    def stored(self, items: Sequence[T_contra], first: int) -> None:
        """They are stored, with sequence numbers from ``first`` on."""

    def failed(self, items: Sequence[T_contra], error: S2PubSubError) -> None:
        """They will not be sent (again); ``error.outcome`` says whether they may be stored."""

    def interrupted(self, state: RetryCallState) -> None:
        """A session was lost; the next one is opened after a wait."""

    def resumed(self) -> None:
        """The server has acknowledged something."""


@attrs.frozen(eq=False)
class Place:
    """Where an appender writes. The lane's clients must not retry by themselves: what that left would be unknown."""

    lane: Lane
    stream: str
    stream_config: s2_sdk.StreamConfig | None
    handle: Callable[[s2_sdk.S2], s2_sdk.S2Stream]


@attrs.frozen
class Appending:
    """A running appender. ``ended`` is done when it has ended; ``abort`` ends it now, without waiting."""

    ended: Future[None]
    abort: Callable[[], None]


class Appender(Generic[I]):
    """Appends an outbox's items to a stream until the outbox has ended or the server refuses.

    ``run`` is its whole life, on the I/O loop; so are ``wake`` and ``abort``.

    Args:
        position: sequence number that the first item must get: exact. With ``token``: where reading back begins.
        token: fencing token that the stream must have: fenced.
        is_own: whether another token that is in force serves as well, since the same holder wrote it.
    """

    def __init__(
        self,
        place: Place,
        outbox: Outbox[I],
        outlet: Outlet[I],
        *,
        position: int | None = None,
        token: str | None = None,
        is_own: Callable[[str], bool] = lambda token: False,
    ) -> None:
        self._place = place
        self._outbox = outbox
        self._outlet = outlet
        self._doing = f"append session on stream {place.stream!r}"
        self._unacked: Unacked[I] = Unacked(self._doing, position, token, is_own)
        self._reached = False
        self._misses = 0  # in a row: "stream not found", or mismatches that reading back does not explain
        self._woken = asyncio.Event()
        self._failure: Exception | None = None  # of the session that is open now
        self._heard = False  # from that session
        self._last_failure: S2PubSubError | None = None
        self._task: asyncio.Task[object] | None = None
        self._abort_asked = False

    # -- from the outside ----------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There is something to take, or the outbox has ended."""
        self._woken.set()

    def abort(self) -> None:
        """Stop now; what is unfinished fails."""
        self._abort_asked = True
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        """Append until the outbox has ended; what then is unfinished has failed. Raises nothing."""
        self._task = asyncio.current_task()
        error: S2PubSubError = self._aborted()
        try:
            if not self._abort_asked:
                async for attempt in reopening(self._outlet.interrupted):
                    with attempt:
                        while not self._finished():
                            await self._use_session(attempt.retry_state)
        except asyncio.CancelledError:
            error = self._aborted()
        except S2PubSubError as final:
            error = final
        except Exception as fault:  # noqa: BLE001  # whoever waits for an event must hear of it
            error = classify(fault, self._doing)
            error.__cause__ = fault
        finally:
            self._end(error)

    def _aborted(self) -> ClosedError:
        error = ClosedError(f"{self._doing}: closed before it was acknowledged")
        error.__cause__ = self._last_failure
        return error

    def _end(self, error: S2PubSubError) -> None:
        for batch in self._unacked:
            self._fail(batch.items, error, uncertain=batch.uncertain)
        self._unacked.clear()
        refusal = fresh(error)
        refusal.outcome = "not_stored"
        left = self._outbox.refuse(refusal)
        if left:
            self._fail(left, error, uncertain=False)

    def _fail(self, items: Sequence[I], error: S2PubSubError, *, uncertain: bool) -> None:
        failure = fresh(error)
        failure.outcome = "unknown" if uncertain else "not_stored"
        self._outlet.failed(items, failure)

    # -- one session ---------------------------------------------------------------------------------------------

    async def _use_session(self, schedule: RetryCallState) -> None:
        """Append through one session until the outbox has ended; raise Interrupted when the session broke."""
        if not self._unacked:
            await self._wait_for_items()
        tenancy: Tenancy | None = None
        session: s2_sdk.AppendSession | None = None
        collecting: set[asyncio.Task[None]] = set()
        self._failure = None
        self._heard = False
        judged = False
        try:
            if self._unacked.read_back_first:
                await self._unacked.read_back(self._read, self._found)
            if not self._unacked:
                return
            tenancy = await self._place.lane.enter()
            session = self._open(tenancy.s2)
            for batch in self._unacked:
                await self._submit(session, batch, schedule, collecting)
            while self._failure is None:
                while batches := self._take():
                    try:
                        for batch in batches:
                            await self._submit(session, batch, schedule, collecting)
                    except s2_sdk.S2Error:
                        if self._heard and not any(batch.sent for batch in self._unacked):
                            return  # it ended while it had nothing to do: no failure, but the next one is needed
                        raise
                if self._finished():
                    return
                await self._woken.wait()
                self._woken.clear()
                tenancy.heard_at = time.monotonic()
            raise self._failure
        except asyncio.CancelledError:
            self._unacked.doubt()
            self._end(self._aborted())  # now, since closing the session may take seconds
            raise
        except Exception as error:
            # The session is dead; what it acknowledged before it died is still on its way here.
            await asyncio.gather(*collecting, return_exceptions=True)
            judged = True
            verdict = self._verdict(error, tenancy)
            if isinstance(verdict, Interrupted) and isinstance(verdict.reason, ConditionError) and self._misses == 1:
                return  # no outage: reading back tells at once what is stored, and by whom
            raise verdict from error
        finally:
            if not judged:  # cancelled
                self._unacked.doubt()
            for batch in self._unacked:
                batch.sent = False
            for task in collecting:
                task.cancel()
            if session is not None:
                await _close(session)
            if tenancy is not None:
                self._place.lane.leave(tenancy)

    def _finished(self) -> bool:
        return not self._unacked and self._outbox.ended

    async def _wait_for_items(self) -> None:
        while not self._take() and not self._outbox.ended:
            await self._woken.wait()
            self._woken.clear()

    def _open(self, s2: s2_sdk.S2) -> s2_sdk.AppendSession:
        session: s2_sdk.AppendSession = self._place.handle(s2).append_session(
            max_unacked_bytes=(MAX_IN_FLIGHT + 1) * MAX_METERED_BYTES, stream_config=self._place.stream_config
        )
        return session

    def _take(self) -> list[Batch[I]]:
        in_flight = len(self._unacked)
        if in_flight >= MAX_IN_FLIGHT:
            return []
        at_least = 1 if in_flight < 2 else _FULL_ENOUGH
        return self._unacked.add(self._outbox.take(MAX_RECORDS, MAX_METERED_BYTES, at_least))

    async def _submit(
        self,
        session: s2_sdk.AppendSession,
        batch: Batch[I],
        schedule: RetryCallState,
        collecting: set[asyncio.Task[None]],
    ) -> None:
        ticket = await session.submit(batch.entry)
        batch.sent = True
        task = asyncio.get_running_loop().create_task(self._collect(batch, ticket, schedule))
        collecting.add(task)
        task.add_done_callback(collecting.discard)

    async def _collect(self, batch: Batch[I], ticket: Awaitable[s2_sdk.AppendAck], schedule: RetryCallState) -> None:
        try:
            ack = await ticket
            schedule.attempt_number = 1
            self._acknowledged(batch, ack.start.seq_num)
        except Exception as error:  # noqa: BLE001  # judged by the session's owner
            self._failure = self._failure or error
        self._woken.set()

    def _acknowledged(self, batch: Batch[I], first: int) -> None:
        self._unacked.acknowledged(batch, first)
        self._reached = self._heard = True
        self._misses = 0
        self._last_failure = None
        self._outlet.resumed()
        self._outlet.stored(batch.items, first)

    async def _read(self, at: int) -> Sequence[s2_sdk.SequencedRecord]:
        start, limit = s2_sdk.SeqNum(at), s2_sdk.ReadLimit(count=MAX_RECORDS)
        batch: s2_sdk.ReadBatch = await self._place.lane.run(
            f"{self._doing}: reading back from {at}",
            lambda s2: self._place.handle(s2).read(start=start, limit=limit),
        )
        return batch.records

    def _found(self, item: I, seq_num: int) -> None:
        self._misses = 0
        self._outlet.stored([item], seq_num)

    # -- what a failure means ------------------------------------------------------------------------------------

    def _verdict(self, error: Exception, tenancy: Tenancy | None) -> S2PubSubError | Interrupted:
        """What to raise for the end of a session: Interrupted if another one may do better."""
        if _is_end(error):
            failure: S2PubSubError = no_answer(self._doing)
        else:
            if tenancy is not None and is_broken_client(error):
                self._place.lane.retire(tenancy)
            failure = classify(error, self._doing)
        if failure is not error:
            failure.__cause__ = failure.__cause__ or error
        self._last_failure = failure
        if isinstance(failure, SecondWriterError):
            for batch in self._unacked:
                batch.uncertain = False
        elif failure.outcome != "not_stored":
            self._unacked.doubt()
        if isinstance(failure, StoreError) and self._passes(failure):
            return Interrupted(failure)
        return failure

    def _passes(self, failure: StoreError) -> bool:
        if failure.kind == "name":
            return self._reached  # at first, more likely a typing error
        if failure.kind == "gone":
            self._misses += failure.code == "stream_not_found"
            return self._misses < MISSING_STREAM_TRIES
        if isinstance(failure, ConditionError):
            self._misses += 1
            return self._misses < _MISMATCHES and self._unacked.explain(failure)
        return failure.kind == "outage"


def _is_end(error: Exception) -> bool:
    """Whether the server ended the session in an orderly way, which the SDK reports like a wrong argument."""
    return isinstance(error, s2_sdk.S2ClientError) and error.__cause__ is None and "closed" in str(error)


async def _close(session: s2_sdk.AppendSession) -> None:
    """End the session: in an orderly way if it takes no time, else by cancelling it, which ``close`` passes on."""
    attempt = asyncio.ensure_future(session.close())
    try:
        await asyncio.wait({attempt}, timeout=_CLOSE_LIMIT)
    finally:
        for _ in range(_CLOSE_TRIES):
            if attempt.done():
                break
            attempt.cancel()
            await asyncio.wait({attempt}, timeout=_CLOSE_LIMIT)
        if attempt.done():
            with contextlib.suppress(asyncio.CancelledError, Exception):
                attempt.result()
