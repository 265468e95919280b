"""One append session after the other to one stream, in the order of an outbox, as a coroutine on the I/O loop.

Batches are formed from what has queued: at once while little is in flight, else when an acknowledgement makes room.
When a session dies of a passing failure, the next one begins with whatever is not acknowledged. What was sent before
may be stored already; then, in this order of strictness:

- plain: it is sent again (at least once, the same bytes);
- exact (``position``): the only writer of its stream. Every batch is conditioned on its sequence number, and what is
  stored is read back before anything is sent again. A foreign record there is a second writer, and final;
- fenced (``token``): every batch is conditioned on the fencing token, which records of the same order may change. A
  mismatch that names a token written here means that everything up to it is stored, and that is read back.

Not for: completing anybody's future (``Outlet``), bounding what is accepted (``runtime.outbox``).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

import attrs
import s2_sdk
from tenacity import RetryCallState

from s2pubsub.errors import ClosedError, S2PubSubError, StoreError
from s2pubsub.retry import MISSING_STREAM_TRIES, Interrupted, reopening
from s2pubsub.runtime.outbox import Outbox, fresh
from s2pubsub.store.failures import ConditionError, PastTailError, classify, is_broken_client
from s2pubsub.store.lane import Lane, Tenancy, no_answer

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


class Item(Protocol):
    """A record to append: an event's body, or, with ``fence``, the command that sets the fencing token to it."""

    @property
    def body(self) -> bytes: ...

    @property
    def fence(self) -> str | None: ...


I = TypeVar("I", bound=Item)  # noqa: E741  # the one type variable of this module
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


@attrs.define(eq=False, slots=True)
class _Batch(Generic[I]):
    items: Sequence[I]
    entry: s2_sdk.AppendInput
    sent: bool = False  # in the session that is open now
    uncertain: bool = False  # it was in flight when a session ended without an answer about it


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
        self._is_own = is_own
        self._outbox = outbox
        self._outlet = outlet
        self._exact = position is not None and token is None
        self._position = position or 0  # exact: of the next new batch; fenced: behind what is known to be stored
        self._token = token
        self._doing = f"append session on stream {place.stream!r}"
        self._unacked: deque[_Batch[I]] = deque()
        self._read_back_first = False
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
        error: S2PubSubError = ClosedError(f"{self._doing}: closed before it was acknowledged")
        try:
            if not self._abort_asked:
                async for attempt in reopening(self._outlet.interrupted):
                    with attempt:
                        while not self._finished():
                            await self._use_session(attempt.retry_state)
        except asyncio.CancelledError:
            error.__cause__ = self._last_failure
        except S2PubSubError as final:
            error = final
        except Exception as fault:  # noqa: BLE001  # whoever waits for an event must hear of it
            error = classify(fault, self._doing)
            error.__cause__ = fault
        finally:
            self._end(error)

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
            if self._read_back_first:
                await self._read_back()
            if not self._unacked:
                return
            tenancy = await self._place.lane.enter()
            session = self._open(tenancy.s2)
            for batch in self._unacked:
                await self._submit(session, batch, schedule, collecting)
            while self._failure is None:
                while self._has_room() and (batches := self._take()):
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
        except Exception as error:
            # The session is dead; what it acknowledged before it died is still on its way here.
            await asyncio.gather(*collecting)
            judged = True
            raise self._verdict(error, tenancy) from error
        finally:
            if not judged:  # cancelled
                self._doubt()
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

    def _has_room(self) -> bool:
        in_flight = len(self._unacked)
        return in_flight < 2 or (in_flight < MAX_IN_FLIGHT and self._outbox.queued >= _FULL_ENOUGH)

    def _take(self) -> list[_Batch[I]]:
        """Make a batch, or several around a fence, of what has queued."""
        items = self._outbox.take(MAX_RECORDS, MAX_METERED_BYTES)
        if self._token is None:
            return [self._add(items)] if items else []
        batches = []
        start = 0
        for end, item in enumerate(items, 1):
            if item.fence is not None or end == len(items) or items[end].fence is not None:
                batches.append(self._add(items[start:end]))
                start = end
        return batches

    def _add(self, items: Sequence[I]) -> _Batch[I]:
        records = [s2_sdk.Record(item.body) if item.fence is None else _fence(item.fence) for item in items]
        entry = s2_sdk.AppendInput(records, fencing_token=self._token)
        if self._exact:
            entry.match_seq_num = self._position
            self._position += len(items)
        elif items[0].fence is not None:
            self._token = items[0].fence
        batch = _Batch(items, entry)
        self._unacked.append(batch)
        return batch

    async def _submit(
        self,
        session: s2_sdk.AppendSession,
        batch: _Batch[I],
        schedule: RetryCallState,
        collecting: set[asyncio.Task[None]],
    ) -> None:
        ticket = await session.submit(batch.entry)
        batch.sent = True
        task = asyncio.get_running_loop().create_task(self._collect(batch, ticket, schedule))
        collecting.add(task)
        task.add_done_callback(collecting.discard)

    async def _collect(self, batch: _Batch[I], ticket: Awaitable[s2_sdk.AppendAck], schedule: RetryCallState) -> None:
        try:
            ack = await ticket
            schedule.attempt_number = 1
            self._acknowledged(batch, ack.start.seq_num)
        except Exception as error:  # noqa: BLE001  # judged by the session's owner
            self._failure = self._failure or error
        self._woken.set()

    def _acknowledged(self, batch: _Batch[I], first: int) -> None:
        assert self._unacked[0] is batch
        self._unacked.popleft()
        self._reached = self._heard = True
        self._misses = 0
        if not self._exact:
            self._position = first + len(batch.items)
        self._outlet.resumed()
        self._outlet.stored(batch.items, first)

    # -- what a failure means ------------------------------------------------------------------------------------

    def _verdict(self, error: Exception, tenancy: Tenancy | None) -> S2PubSubError | Interrupted:
        if _is_end(error):
            failure: S2PubSubError = no_answer(self._doing)
        else:
            if tenancy is not None and is_broken_client(error):
                self._place.lane.retire(tenancy)
            failure = classify(error, self._doing)
        failure.__cause__ = failure.__cause__ or (error if error is not failure else None)
        self._last_failure = failure
        if failure.outcome != "not_stored":
            self._doubt()
        if isinstance(failure, _SecondWriter):
            failure.outcome = "not_stored"
            for batch in self._unacked:
                batch.uncertain = False  # its place is taken
        if not isinstance(failure, StoreError):
            return failure
        passing = failure.kind == "outage"
        if failure.kind == "name":
            passing = self._reached  # at first, more likely a typing error
        elif failure.kind == "gone":
            self._misses += failure.code == "stream_not_found"
            passing = self._misses < MISSING_STREAM_TRIES
        elif isinstance(failure, ConditionError) and not isinstance(error, _SecondWriter):
            self._misses += 1
            passing = self._misses < _MISMATCHES and (self._exact or self._adopt(failure.token))
            self._read_back_first = self._read_back_first or passing
        return Interrupted(failure) if passing else failure

    def _doubt(self) -> None:
        for batch in self._unacked:
            batch.uncertain = batch.uncertain or batch.sent
        if self._exact and any(batch.uncertain for batch in self._unacked):
            self._read_back_first = True

    def _adopt(self, token: str | None) -> bool:
        """Whether we can go on although ``token`` is in force; condition what is unacknowledged on it if needed."""
        if token is None:
            return False
        if any(item.fence == token for batch in self._unacked for item in batch.items):
            return True  # it and all before it are stored; reading back finds them
        if not self._is_own(token):
            return False
        for batch in self._unacked:
            batch.entry.fencing_token = token
            if batch.items[0].fence is not None:
                return True  # from there on, the tokens are those that are written here
        self._token = token
        return True

    # -- reading back --------------------------------------------------------------------------------------------

    async def _read_back(self) -> None:
        """Acknowledge what is stored of the unacknowledged items; condition the rest on what follows."""
        waiting = deque(item for batch in self._unacked for item in batch.items)
        token = self._unacked[0].entry.fencing_token
        at = (self._unacked[0].entry.match_seq_num or 0) if self._exact else self._position
        try:
            while waiting and (records := await self._stored_from(at)):
                for record in records:
                    if not waiting:
                        break
                    if self._exact and record.seq_num != at:
                        raise _trimmed(self._doing, at)
                    if _is_record_of(record, waiting[0]):
                        item = waiting.popleft()
                        token = item.fence or token
                        self._misses = 0
                        self._outlet.stored([item], record.seq_num)
                    elif self._exact and not record.is_command_record():
                        raise _SecondWriter(
                            f"{self._doing}: record {at} is from a second writer, and this one was opened as the only "
                            f"one (exactly_once)",
                            code="second_writer",
                            status=412,
                        )
                    at = record.seq_num + 1
        finally:  # whatever came between: what was acknowledged here must not be sent or looked for again
            self._rebatch(waiting, token, at)
        self._read_back_first = False

    def _rebatch(self, waiting: deque[I], token: str | None, at: int) -> None:
        """Form batches anew from what is not stored, as they were, from the sequence number ``at`` on."""
        left = {id(item) for item in waiting}
        before = tuple(self._unacked)
        self._unacked.clear()
        self._position = at
        self._token = token
        for batch in before:
            items = [item for item in batch.items if id(item) in left]
            if items:
                self._add(items).uncertain = batch.uncertain

    async def _stored_from(self, at: int) -> list[s2_sdk.SequencedRecord] | None:
        """Records from ``at``; None at the tail."""
        start, limit = s2_sdk.SeqNum(at), s2_sdk.ReadLimit(count=MAX_RECORDS)
        try:
            batch: s2_sdk.ReadBatch = await self._place.lane.run(
                f"{self._doing}: reading back from {at}",
                lambda s2: self._place.handle(s2).read(start=start, limit=limit),
            )
        except PastTailError as past:
            if past.tail < at:
                raise _lost(f"{self._doing}: the stream ends at {past.tail} although {at} was stored") from past
            return None
        except StoreError as error:
            if error.kind == "gone" and at == 0:
                return None
            if error.kind == "gone":
                raise _lost(f"{self._doing}: the stream was deleted") from error
            raise
        if not batch.records:
            raise _trimmed(self._doing, at)
        return batch.records


class _SecondWriter(ConditionError):
    """Somebody else has written to a stream that was to have one writer."""


def _trimmed(doing: str, at: int) -> StoreError:
    return _lost(f"{doing}: the records from {at} were trimmed before they could be read back")


def _lost(message: str) -> StoreError:
    error = StoreError(message, code="unverifiable", status=None, kind="refused")
    error.outcome = "unknown"
    return error


def _fence(token: str) -> s2_sdk.Record:
    record: s2_sdk.Record = s2_sdk.CommandRecord.fence(token)
    return record


def _is_record_of(record: s2_sdk.SequencedRecord, item: Item) -> bool:
    """An event's body holds its id, so equal bytes are the same event."""
    if item.fence is None:
        return record.body == item.body and not record.is_command_record()
    return record.is_command_record() and record.body == item.fence.encode()


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
