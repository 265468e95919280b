"""The handle of a subscription: an iterator over its queue, or the life of its callback.

Its worker thread knows only the parts (``following.Feed``), never the handle. So a handle that nobody refers to any
more is collected, says so with a ResourceWarning, and its thread ends.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Self

from s2pubsub import tracing
from s2pubsub.batches import in_batches
from s2pubsub.errors import ClosedError, OperationTimeoutError
from s2pubsub.event import Event
from s2pubsub.following import Feed, Follower, stopped
from s2pubsub.runtime.channel import Channel, ChannelEnd, fresh
from s2pubsub.runtime.closing import Closing
from s2pubsub.runtime.deadline import NEVER, Deadline, check_timeout
from s2pubsub.runtime.fork import inherited, reset_in_child
from s2pubsub.runtime.loop import Log
from s2pubsub.runtime.wake import Flag
from s2pubsub.runtime.worker import Stop, Worker

Callback = Callable[[Event], object]
ErrorHook = Callable[[BaseException], object]


class Subscription(Closing, Iterator[Event]):
    """A subscription to one topic. Made by ``S2PubSub.subscribe``; thread-safe.

    Without a callback it is an iterator: ``for event in subscription`` blocks until the next event and ends after
    ``close()``; several threads may share it, each event goes to one of them. When the subscription fails, what is
    buffered comes first, then the error, every time.
    """

    def __init__(self, feed: Feed, life: Life, client: object) -> None:
        self._feed = feed
        self._life = life
        self._client = client  # which would be closed if nobody held it
        reset_in_child(self)
        self._channel = feed.sink.channel if isinstance(feed.sink, Queue) else None
        if self._channel is not None:
            self._take = self._channel.take

    # -- events --------------------------------------------------------------------------------------------------

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        try:
            return self._take()
        except IndexError:
            pass
        except AttributeError:
            self._refuse_iteration()
        try:
            return self._wait(NEVER)
        except ChannelEnd as end:
            if end.error is not None:
                raise end.error from end.error.__cause__
            raise StopIteration from None

    def get(self, timeout: float | None = None) -> Event:
        """The next event, waiting up to ``timeout`` seconds (None: for ever, 0: not at all).

        Raises:
            OperationTimeoutError: a ``TimeoutError``; no event came in time.
            ClosedError: the subscription is closed.
            S2PubSubError: it has failed.
        """
        deadline = Deadline.after(timeout)
        if self._channel is None:
            self._refuse_iteration()
        try:
            return self._wait(deadline)
        except ChannelEnd as end:
            if end.error is not None:
                raise end.error from end.error.__cause__
            raise ClosedError(f"the subscription to topic {self.topic!r} is closed") from None
        except TimeoutError:
            raise OperationTimeoutError(f"no event on topic {self.topic!r} within {timeout} s") from None

    def batches(self, max_size: int = 100, max_wait: float = 0.1) -> Iterator[list[Event]]:
        """Iterate over lists of at most ``max_size`` events, each sent ``max_wait`` seconds after its first event at
        the latest. Events come in order; the last list may be short. Never empty lists.
        """
        if self._channel is None:
            self._refuse_iteration()
        return in_batches(self, self._wait, ChannelEnd, max_size, max_wait)

    def _wait(self, deadline: Deadline) -> Event:
        assert self._channel is not None
        return self._channel.get(deadline)

    def _refuse_iteration(self) -> None:
        raise TypeError("this subscription delivers to its callback and cannot be iterated")

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._feed.topic

    @property
    def next_index(self) -> int:
        """Index of the next event that will be handed out: where another process would resume."""
        return self._feed.sink.next_index

    @property
    def replaying(self) -> bool:
        """Whether events that were stored before the subscription began are still to come."""
        return self.next_index < self._feed.tail

    @property
    def closed(self) -> bool:
        """Whether the subscription was closed or has ended by itself."""
        return self._feed.stop.is_set() or self.ended

    @property
    def ended(self) -> bool:
        """Whether its thread has done its work: no callback runs any more."""
        return self._life.ended.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the subscription ends, by ``close()`` or by itself; raise the failure that ended it.

        Raises:
            OperationTimeoutError: it had not ended after ``timeout`` seconds.
        """
        if not self._life.ended.wait(check_timeout(timeout)):
            raise OperationTimeoutError(f"the subscription to topic {self.topic!r} goes on after {timeout} s")
        error = fresh(self._life.error)
        if error is not None:
            raise error from error.__cause__

    def close(self, timeout: float | None = 5.0) -> None:
        """End the subscription; iteration just ends, what is queued is discarded. Idempotent, from any thread.

        Waits up to ``timeout`` seconds for a running callback; called from a callback it does not wait. Signal handlers
        may call it too.
        """
        deadline = Deadline.after(timeout)
        self.stop()
        if self._channel is None or not self._channel.interrupted:
            self._life.finish(deadline)

    def stop(self) -> None:
        """``close()`` without waiting."""
        self._feed.stop.set()

    def offer_local(self, event: Event) -> None:
        """Take an event that was published for this process only."""
        self._feed.sink.offer_local(event)
        self._feed.wake.set()

    @property
    def queued(self) -> int:
        """How many events were received and wait to be handed out."""
        return self._feed.sink.queued

    def _reset_in_child(self) -> None:
        self._life.end_in_child()

    def __del__(self) -> None:
        feed = getattr(self, "_feed", None)
        if feed is not None and not feed.stop.is_set():
            open_still = not self.ended
            feed.stop.set()  # before the warning, which may be an error
            if open_still:
                warnings.warn(f"unclosed subscription to {self.topic!r}", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Subscription to {self.topic!r}, {state}, next index {self.next_index}>"


class Queue:
    """The sink of an iterated subscription."""

    def __init__(self, start: int, max_events: int, max_bytes: int) -> None:
        self.channel: Channel[Event] = Channel(max_events, max_bytes, start, lambda event: event.index)
        self.wait_for_room = self.channel.wait_for_room
        self.room = self.channel.room
        self.deliver = self.channel.put

    @property
    def next_index(self) -> int:
        return self.channel.position

    @property
    def queued(self) -> int:
        return len(self.channel)

    def expect(self, next_index: int) -> None:
        """Nothing: it takes all parts at once."""

    def offer_local(self, event: Event) -> None:
        self.channel.put([event], 0, None)

    def deliver_local(self) -> None:
        """Nothing: the consumer takes local events from the queue."""

    def finish(self, error: Exception | None) -> None:
        self.channel.finish(error)

    def close(self) -> None:
        self.channel.close()


class Calls:
    """The sink of a callback: called on the worker thread, one event after the other."""

    def __init__(
        self,
        topic: str,
        start: int,
        callback: Callback,
        on_error: ErrorHook | None,
        stop: Stop,
        room: tuple[int, int],
        logger: Log,
    ) -> None:
        self.next_index = start
        self._topic = topic
        self._callback = callback
        self._on_error = on_error
        self._stop = stop
        self._room = room
        self._logger = logger
        self._local: deque[Event] = deque()
        self._received_to = start

    @property
    def queued(self) -> int:
        """As many as there are indices between the event that is being handled and the last one received."""
        return len(self._local) + max(0, self._received_to - self.next_index)

    def expect(self, next_index: int) -> None:
        self._received_to = next_index

    def deliver(self, events: list[Event], size: int, next_index: int) -> None:
        for event in events:
            self.deliver_local()
            if self._stop.is_set():
                return
            self._call(event)
            self.next_index = event.index + 1  # type: ignore[operator]  # durable events have one
        self.next_index = next_index

    def deliver_local(self) -> None:
        while self._local and not self._stop.is_set():
            self._call(self._local.popleft())

    def offer_local(self, event: Event) -> None:
        self._local.append(event)

    def _call(self, event: Event) -> None:
        try:
            tracer = tracing.tracer  # which somebody may take away meanwhile
            if tracer is None:
                self._callback(event)
            else:
                with tracer.processing(event):
                    self._callback(event)
        except BaseException as error:  # noqa: BLE001  # SystemExit too: a callback cannot end our thread
            error.add_note(f"in the callback for event {event.index} of topic {self._topic!r}")
            self.report(error, f"the callback for event {event.index} of topic %r raised")

    def report(self, error: BaseException, message: str) -> None:
        """Give ``error`` to the hook; to the log where there is none, or where the hook itself fails."""
        if self._on_error is not None:
            try:
                self._on_error(error)
                return
            except BaseException as hook_error:  # logged with the first one
                hook_error.add_note("in the on_error hook")
                self._logger.error("the on_error hook of topic %r raised", self._topic, exc_info=hook_error)
        self._logger.error(message, self._topic, exc_info=error)

    def wait_for_room(self) -> bool:
        return not self._stop.is_set()

    def room(self) -> tuple[int, int]:
        return self._room

    def finish(self, error: Exception | None) -> None:
        if error is not None:
            self.report(error, "the subscription to topic %r has ended: " + str(error).replace("%", "%%"))

    def close(self) -> None:
        """Nothing is held back: ``stop`` is looked at before each call."""


class Life:
    """How a subscription's thread starts and ends.

    Args:
        on_end: called on the thread at its end.
        keep_alive: what lives as long as the thread.
    """

    def __init__(self, feed: Feed, on_end: Callable[[], None], keep_alive: object) -> None:
        self.error: Exception | None = None
        self.ended = Flag()
        self._worker = Worker(f"s2pubsub-sub-{feed.topic}", _follow, feed, self, on_end, keep_alive)

    def start(self) -> None:
        self._worker.start()

    def finish(self, deadline: Deadline) -> None:
        self._worker.finish(deadline)

    def end_in_child(self) -> None:
        """In a forked child, where its thread is not."""
        if not self.ended.is_set():
            self.error = inherited()
            self.ended = Flag()
            self.ended.set()


def _follow(feed: Feed, life: Life, on_end: Callable[[], None], keep_alive: object) -> None:
    """The worker's whole life. ``keep_alive`` is what must live as long as the thread."""
    try:
        Follower(feed).run()
    except Exception as error:  # noqa: BLE001  # it reaches the reader
        if not stopped(error, feed.stop):
            life.error = error
    try:
        feed.sink.finish(life.error)
    finally:
        life.ended.set()
        on_end()


def begin(feed: Feed, *, on_end: Callable[[], None], client: object) -> Subscription:
    """Start the worker of ``feed`` and return its handle. ``client`` is kept as long as somebody may need it."""
    feed.stop.add(feed.wake.set)
    feed.stop.add(feed.sink.close)
    # A callback is called although nobody may hold the handle.
    life = Life(feed, on_end, keep_alive=None if isinstance(feed.sink, Queue) else client)
    subscription = Subscription(feed, life, client)
    try:
        life.start()
    except BaseException:
        feed.stop.set()
        raise
    return subscription
