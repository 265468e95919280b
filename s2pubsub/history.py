"""Reading what is stored, from an offset up to the tail at the call, in bounded memory.

The first thousand records come from one unary read (1 ms; a session's first answer takes 44 ms), the others from a
limited read session on the read lane. A session that breaks, or that parked because its consumer was slow, is opened
again at the next index. Nothing retained although the tail is ahead is a replay gap, never an empty answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, wait
from typing import TypeVar

from tenacity import RetryCallState

from s2pubsub.codec import decode_batch
from s2pubsub.errors import ClosedError, OperationTimeoutError, ReplayGapError, StoreError, TopicGoneError
from s2pubsub.event import Event
from s2pubsub.incarnation import Incarnation
from s2pubsub.retry import Interrupted, reconnecting
from s2pubsub.runtime.deadline import Deadline
from s2pubsub.runtime.loop import Log
from s2pubsub.runtime.wake import Wake
from s2pubsub.runtime.worker import Stop
from s2pubsub.store import Batch, End, PastTailError, Reader, Store

T = TypeVar("T")

_PAGE = 1000


class HistoryReader:
    """One pass over a topic's stored events. Used by one thread.

    Args:
        stop: ends waits when the client is closed.
        timeout: limit in seconds for each batch, not for the whole; None for no limit.
    """

    def __init__(
        self, store: Store, topic: str, stream: str, offset: int, stop: Stop, timeout: float | None, logger: Log
    ) -> None:
        self._store = store
        self._topic = topic
        self._stream = stream
        self._next_index = offset
        self._stop = stop
        self._timeout = timeout
        self._logger = logger
        self._tail = 0
        self._reader: Reader | None = None
        self._wake = Wake()
        self._incarnation = Incarnation(store, topic, stream)

    def batches(self) -> Iterator[list[Event]]:
        """The events, a list at a time; lists may be empty.

        Raises:
            ReplayGapError: the events from the offset on are no longer stored. Raised before any event.
            DecodeError: a record is not an event; the events before it were yielded.
            TopicGoneError: the topic was deleted after events had been yielded.
            OperationTimeoutError, StoreError: the server did not answer, or refused.
        """
        deadline = Deadline.after(self._timeout)
        try:
            self._tail = self._store.tail(self._stream, deadline)
            found = self._first_page(deadline)
        except StoreError as error:
            if error.kind == "gone" or isinstance(error, PastTailError):
                return
            raise
        try:
            while True:
                for batch in found:
                    if self._next_index < self._tail:
                        yield from self._decoded(batch)
                if self._next_index >= self._tail:
                    return
                found = self._next()
        finally:
            self._close()

    def _first_page(self, deadline: Deadline) -> list[Batch]:
        if self._next_index >= self._tail:
            return []
        if self._tail - self._next_index > _PAGE:
            self._incarnation.note()  # there will be a session
        return self._unary_page(deadline)

    def _unary_page(self, deadline: Deadline) -> list[Batch]:
        """Up to a page by one request: also where a session has ended early, since that may be a connection closed in
        an orderly way, or that nothing is retained.
        """
        count = min(_PAGE, self._tail - self._next_index)
        found = self._store.read(self._stream, self._next_index, count, deadline)
        if not found:
            raise ReplayGapError(self._topic, self._next_index, self._tail)
        return found

    def _decoded(self, batch: Batch) -> Iterator[list[Event]]:
        if batch.start != self._next_index:
            raise ReplayGapError(self._topic, self._next_index, batch.start)
        events, error = decode_batch(self._topic, batch.start, batch.bodies[: self._tail - batch.start])
        self._next_index = batch.end
        if events:
            yield events
        if error is not None:
            raise error

    def _next(self) -> list[Batch]:
        """One batch of the session, which is opened if there is none."""
        deadline = Deadline.after(self._timeout)
        try:
            for attempt in reconnecting(self._stop, self._log_attempt, deadline):
                with attempt:
                    if self._stop.is_set():
                        raise ClosedError("the client is closed")
                    return self._try_next(deadline)
        except Interrupted as interrupted:
            raise interrupted.reason from interrupted.reason.__cause__
        raise AssertionError("the schedule ends by a return or an error")

    def _try_next(self, deadline: Deadline) -> list[Batch]:
        try:
            while True:
                if self._reader is None:
                    self._incarnation.check(lambda look_up: self._look_up(look_up, deadline))
                    self._reader = self._store.open(
                        self._stream,
                        self._next_index,
                        self._wake.set,
                        limit=(self._tail - self._next_index, None),
                        stop=self._stop,
                        deadline=deadline,
                    )
                answer = self._next_answer(self._reader, deadline)
                if isinstance(answer, str):
                    self._close()
                    if answer == "ended":
                        return self._unary_page(deadline)
                    continue  # it parked while our consumer was busy
                if answer.bodies:
                    return [answer]
        except StoreError as error:
            self._close()
            if error.kind in ("outage", "name"):
                raise Interrupted(error) from error
            if error.kind in ("gone", "past_tail"):
                raise TopicGoneError(self._topic) from error
            raise

    def _next_answer(self, reader: Reader, deadline: Deadline) -> Batch | End:
        while (answer := reader.take()) is None:
            if not self._wake.wait(deadline.remaining()):
                raise self._late()
        return answer

    def _look_up(self, answer: Future[T], deadline: Deadline) -> T:
        wait([answer], deadline.remaining())
        if answer.cancelled():
            raise ClosedError("the client is closed")
        if not answer.done():
            raise self._late()
        return answer.result()

    def _late(self) -> OperationTimeoutError:
        return OperationTimeoutError(f"history of topic {self._topic!r} did not come within {self._timeout} s")

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _log_attempt(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        self._logger.debug(
            "history of topic %r was interrupted (attempt %d): %s",
            self._topic,
            state.attempt_number,
            error.reason if isinstance(error, Interrupted) else error,
        )
