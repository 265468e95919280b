"""How a worker thread follows a topic: one read session after the other, from the next index, until it is stopped.

The worker pulls. It asks its session for a batch, decodes it, hands it on, and asks again. Whatever ends a session
decides how the next one is opened:

- the connection broke: wait on tenacity's schedule, then reopen at the next index;
- it was not read for 0.2 s and parked: wait for room, reopen with limits until caught up;
- the stream was deleted, its events were trimmed, the server refused: the end, with that error.

Not for: queues and handles (``subscription``), connections (``store``).
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future
from typing import Protocol, TypeVar

import attrs
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
from s2pubsub.stats import Counters
from s2pubsub.store import Batch, End, Reader, Store

T = TypeVar("T")

MIB = 2**20

_LIMITED_READS = 5
"""A reader that unparked opens this many limited sessions, each twice as large, before it trusts its consumer."""

_LIMITED_WAIT = 1
"""Seconds that a limited session waits at the tail before it ends."""

_AT_A_TIME = 256
"""So many events are decoded and handed on, then the next: events that die young cost the collector less, and their
memory is used again while it is in the caches. By a thousand a replay to a callback is a fifth slower.
"""

_LONG_LIVED = 5.0
"""Seconds after which a session that breaks is a fresh interruption although nothing was read: the longest wait."""

_LOG_AGAIN = 60.0


class Sink(Protocol):
    """Where a follower's events go."""

    @property
    def next_index(self) -> int:
        """Index of the next event that will be handed out."""

    @property
    def queued(self) -> int:
        """How many events were delivered to it and wait to be handed out."""

    def expect(self, next_index: int) -> None:
        """What lies before ``next_index`` was received, and follows at once, in parts."""

    def deliver(self, events: list[Event], size: int, next_index: int) -> object:
        """Take events of ``size`` bytes, after which the topic goes on at ``next_index``."""

    def wait_for_room(self) -> bool:
        """Wait until more may be delivered; False when the sink is closed."""

    def room(self) -> tuple[int, int]:
        """How many events and bytes it would take now."""

    def offer_local(self, event: Event) -> None:
        """From any thread: take an event that was published for this process only."""

    def deliver_local(self) -> None:
        """On the follower's thread, which was woken: deliver such events, unless their readers fetch them."""

    def finish(self, error: Exception | None) -> None:
        """Nothing will follow; ``error`` is why, None after a close."""

    def close(self) -> None:
        """From any thread: discard what is held and release who waits."""


@attrs.frozen(eq=False)
class Feed:
    """What a follower needs, apart from its subscription's handle, which may be dropped while it runs.

    ``tail`` is the topic's when it was made.
    """

    topic: str
    stream: str
    start: int
    existed: bool
    store: Store
    sink: Sink
    stop: Stop
    wake: Wake
    counters: Counters
    logger: Log
    tail: int = 0


class Follower:
    """Delivers the events of one topic from ``feed.start`` on. ``run`` is the whole life of its thread."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._next_index = feed.start
        self._reached = False  # the start: before that, an offset beyond the tail waits at the tail
        self._incarnation = Incarnation(feed.store, feed.topic, feed.stream)
        self._opened = False
        self._limited_reads: int | None = None  # None: unlimited sessions
        self._outage = Outage(f"subscription to topic {feed.topic!r}", feed.logger)

    def run(self) -> None:
        """Follow until stopped (returns) or until the topic or the server ends it (raises)."""
        stop = self._feed.stop
        if self._feed.existed:
            self._incarnation.note()
        for attempt in reconnecting(stop, self._outage.wait_announced):
            with attempt:
                while not stop.is_set():
                    self._read_session(attempt.retry_state)
                return

    # -- one session ---------------------------------------------------------------------------------------------

    def _read_session(self, schedule: RetryCallState) -> None:
        """Read one session to its orderly end; raise Interrupted when it broke."""
        feed = self._feed
        limited = self._limited_reads is not None
        opened_at = time.monotonic()
        try:
            if self._opened and self._next_index > 0:
                self._incarnation.check(self._look_up)
            self._opened = True
            reader = self._open()
            try:
                end = self._read(reader, schedule)
            finally:
                reader.close()
        except StoreError as error:
            if time.monotonic() - opened_at > _LONG_LIVED:
                schedule.attempt_number = 1
            verdict = self._verdict(error)
            feed.counters.reconnects += isinstance(verdict, Interrupted)
            raise verdict from (error.__cause__ if verdict is error else error)
        if end == "parked":
            self._limited_reads = 0
            feed.sink.wait_for_room()
        elif end == "caught_up":
            self._limited_reads = None
        elif end == "ended" and limited:
            reads = (self._limited_reads or 0) + 1
            self._limited_reads = reads if reads < _LIMITED_READS else None
        elif end == "ended":
            feed.counters.reconnects += 1
            raise Interrupted(
                StoreError("the server ended the read session", code="connection", status=None, kind="outage")
            )

    def _open(self) -> Reader:
        limit, wait = None, None
        if self._limited_reads is not None:
            items, size = self._feed.sink.room()
            # A record that does not fit a byte limit is never sent, so the limit is at least one record's maximum.
            limit = (max(1, items) << self._limited_reads, max(MIB, size) << self._limited_reads)
            wait = _LIMITED_WAIT
        return self._feed.store.open(
            self._feed.stream,
            self._next_index,
            self._feed.wake.set,
            limit=limit,
            wait=wait,
            clamp=not self._reached,
            tail=self._feed.tail,
            stop=self._feed.stop,
            on_park=self._feed.counters.count_parked,
        )

    def _read(self, reader: Reader, schedule: RetryCallState) -> str:
        feed = self._feed
        while True:
            answer = self._next_answer(reader)
            if isinstance(answer, str):
                return answer
            self._outage.over()
            self._incarnation.note()
            if answer.bodies:
                schedule.attempt_number = 1
                self._hand_on(answer)
            caught_up_at = answer.caught_up_at
            del answer  # its bodies need not stay in memory while the sink is full
            if not feed.sink.wait_for_room():
                return "stopped"
            if caught_up_at is not None:
                self._check_nothing_skipped(caught_up_at)
                if self._limited_reads is not None:
                    return "caught_up"

    def _next_answer(self, reader: Reader) -> Batch | End:
        while (answer := reader.take()) is None:
            self._wait()
        return answer

    def _look_up(self, answer: Future[T]) -> T:
        answer.add_done_callback(lambda _: self._feed.wake.set())
        while not answer.done():
            self._wait()
        if answer.cancelled():
            raise ClosedError("the client is closed")
        return answer.result()

    def _wait(self) -> None:
        """Wait until something has happened; deliver local events meanwhile.

        Raises:
            ClosedError: told to stop.
        """
        feed = self._feed
        feed.wake.wait()
        feed.sink.deliver_local()
        self._check_goes_on()  # even if an answer is there by now: this was the wake-up for the stop

    def _check_goes_on(self) -> None:
        if self._feed.stop.is_set():
            raise ClosedError(f"the subscription to topic {self._feed.topic!r} is closed")

    def _hand_on(self, batch: Batch) -> None:
        if batch.start > self._next_index:
            raise ReplayGapError(self._feed.topic, self._next_index, batch.start)
        self._reached = True
        self._feed.sink.expect(batch.end)
        for part in batch.parts(_AT_A_TIME):
            self._check_goes_on()
            self._deliver(part)

    def _deliver(self, batch: Batch) -> None:
        events, error = decode_batch(self._feed.topic, batch.start, batch.bodies)
        self._next_index = error.index if error is not None else batch.end
        self._feed.counters.delivered += len(events)
        self._feed.sink.deliver(events, batch.size, self._next_index)
        if error is not None:
            self._check_goes_on()
            raise error

    # -- what ends it --------------------------------------------------------------------------------------------

    def _check_nothing_skipped(self, tail: int) -> None:
        if tail > self._next_index:
            raise ReplayGapError(self._feed.topic, self._next_index, tail)
        if tail == self._next_index:
            self._reached = True

    def _verdict(self, error: StoreError) -> Exception:
        if error.kind in ("outage", "name"):
            return Interrupted(error)
        if error.kind == "gone":
            if self._incarnation.noted:
                return TopicGoneError(self._feed.topic)
            return Interrupted(error)  # it never existed: wait for it
        if error.kind == "past_tail":
            return TopicGoneError(self._feed.topic)  # what was delivered is not there any more
        return error


class Outage:
    """Says once that an outage has begun, at most once a minute that it lasts, and that it is over."""

    def __init__(self, what: str, logger: Log) -> None:
        self._what = what
        self._logger = logger
        self._began_at: float | None = None
        self._logged_at = 0.0

    def wait_announced(self, state: RetryCallState) -> None:
        """Log the attempt that has failed and the wait before the next one."""
        error = state.outcome.exception() if state.outcome is not None else None
        wait = state.next_action.sleep if state.next_action is not None else 0.0
        now = time.monotonic()
        level = logging.DEBUG
        if self._began_at is None:
            self._began_at, self._logged_at, level = now, now, logging.WARNING
        elif now - self._logged_at >= _LOG_AGAIN:
            self._logged_at, level = now, logging.WARNING
        self._logger.log(
            level,
            "the %s was interrupted (attempt %d, next in %.2f s): %s",
            self._what,
            state.attempt_number,
            wait,
            error.reason if isinstance(error, Interrupted) else error,
        )

    def over(self) -> None:
        """The server has answered."""
        if self._began_at is not None:
            seconds = time.monotonic() - self._began_at
            self._began_at = None
            self._logger.info("the %s goes on after %.1f s", self._what, seconds)


def find_tail(store: Store, topic: str, stream: str, deadline: Deadline, stop: Stop) -> tuple[int, bool]:
    """The tail of a topic and whether its stream exists. Tries again through an outage until ``deadline``.

    Raises:
        StoreError: the server refused, its name did not resolve, or the outage lasted.
        OperationTimeoutError: no answer at all came in time.
        ClosedError: ``stop`` was set.
    """
    last: StoreError | None = None
    try:
        for attempt in reconnecting(stop, lambda _: None, deadline):
            with attempt:
                if stop.is_set():
                    raise ClosedError("the client is closed")
                try:
                    return store.tail(stream, deadline), True
                except StoreError as error:
                    if error.kind == "gone":
                        return 0, False
                    if error.kind == "outage":
                        last = error
                        raise Interrupted(error) from error
                    raise
    except Interrupted as interrupted:
        raise interrupted.reason from interrupted.reason.__cause__
    except OperationTimeoutError:
        if last is not None:
            raise last from last.__cause__
        raise OperationTimeoutError(f"subscribe to topic {topic!r}: the server did not answer in time") from None
    raise AssertionError("the schedule ends by a return or an error")


def stopped(error: BaseException, stop: Stop) -> bool:
    """Whether ``error`` is only what a worker sees that was told to stop."""
    return stop.is_set() and isinstance(error, (ClosedError, Interrupted))
