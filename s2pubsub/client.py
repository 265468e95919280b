"""``S2PubSub``: wires the parts together and owns their lifetime.

Durable topics are streams in S2 (``store``), read by one worker thread per subscription (``following``). Topics
outside the prefix, and events published with ``local_only``, stay in this process (``inner``).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, Self

import s2_sdk

from s2pubsub.codec import RECORD_OVERHEAD, encode, encode_many, event_inputs
from s2pubsub.errors import (
    ClosedError,
    GroupNotSupportedError,
    S2PubSubError,
    StoreError,
)
from s2pubsub.event import Event, build_event
from s2pubsub.fencing import Fencing, check_fenced
from s2pubsub.following import Feed, Sink, find_tail
from s2pubsub.held_lease import HeldLease, HeldLeases
from s2pubsub.history import HistoryReader
from s2pubsub.lease_clock import SYSTEM_CLOCK, Clock
from s2pubsub.leases import S2LeaseProvider
from s2pubsub.local import LocalPubSub
from s2pubsub.local.options import check_start
from s2pubsub.publisher import Pipe, Publisher, check_bounds
from s2pubsub.registry import Closable, Registry, close_at_exit
from s2pubsub.runtime.completer import Completer
from s2pubsub.runtime.deadline import Deadline, check_timeout
from s2pubsub.runtime.fork import reset_in_child
from s2pubsub.runtime.loop import IOLoop
from s2pubsub.runtime.wake import Wake
from s2pubsub.runtime.worker import Stop
from s2pubsub.settings import DEFAULT_QUEUE_BYTES, DEFAULT_QUEUE_SIZE, Settings
from s2pubsub.stats import Counters, Stats
from s2pubsub.store import Store
from s2pubsub.subscription import Callback, Calls, ErrorHook, Queue, Subscription, begin
from s2pubsub.topic import check_topic, is_durable, stream_name
from s2pubsub.transport import Transport, TransportSubscription

Start = str | int
"""``"latest"``, ``"earliest"``, or the index of the first event."""

_OPEN_LIMIT = 30.0
"""Seconds to reach the server for publishers that begin at the tail."""

_MAX_BATCH = 1000
_MAX_BATCH_BYTES = 2**20


class S2PubSub:
    """Durable publish/subscribe on one S2 basin. Thread-safe. No I/O and no thread before the first use.

    Args: see ``Settings``, whose attributes are the arguments.

    Raises:
        ValueError: a setting is missing or wrong; the message names it and its environment variable.
        TypeError: a setting has the wrong type.
    """

    def __init__(
        self,
        *,
        basin: str | None = None,
        access_token: str | None = None,
        endpoints: s2_sdk.Endpoints | str | None = None,
        client: Callable[[], s2_sdk.S2] | s2_sdk.S2 | None = None,
        inner: Transport | None = None,
        stream_prefix: str = "mastra/durable/",
        topic_prefix: str = "agent.",
        logger: logging.Logger | logging.LoggerAdapter[Any] | None = None,
        queue_size: int = DEFAULT_QUEUE_SIZE,
        queue_bytes: int = DEFAULT_QUEUE_BYTES,
        run_config: s2_sdk.StreamConfig | None = None,
        encryption_key: bytes | str | None = None,
        default: Callable[[Any], Any] | None = None,
    ) -> None:
        settings = Settings(
            basin=basin,
            access_token=access_token,
            endpoints=endpoints,
            client=client,
            inner=inner,
            stream_prefix=stream_prefix,
            topic_prefix=topic_prefix,
            logger=logger,
            queue_size=queue_size,
            queue_bytes=queue_bytes,
            run_config=run_config,
            encryption_key=encryption_key,
            default=default,
        ).completed()
        self._settings = settings
        self._logger: Any = settings.logger or logging.getLogger("s2pubsub")
        self._loop = IOLoop(self._logger)
        self._done = Completer(self._logger)
        self._store = Store(
            self._loop,
            settings.basin or "",
            settings.make_client,
            lambda: settings.make_client(s2_sdk.Retry(max_attempts=1)),
            shared=isinstance(client, s2_sdk.S2),
            stream_config=run_config,
            encryption_key=encryption_key,
        )
        self._counters = Counters()
        self._held = HeldLeases()
        self._reset()
        reset_in_child(self)
        close_at_exit(self)

    def _reset(self) -> None:
        self._lock = threading.RLock()  # reentrant, since a signal handler may close in the middle of subscribe
        self._closed = False
        self._stop = Stop()
        self._open = Registry()
        self._inner = self._settings.inner
        self._parts: weakref.WeakSet[Closable] = weakref.WeakSet()

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], where: str = "settings") -> Self:
        """A client from a configuration file's mapping; its keys are the constructor's arguments.

        Raises:
            ValueError, TypeError: a key is misspelt or its value has the wrong type; nothing is coerced.
        """
        settings = Settings.from_mapping(mapping, where)
        return cls(**{name: getattr(settings, name) for name in mapping})

    # -- publishing ----------------------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        *,
        type: str,
        data: Any,
        run_id: str = "",
        local_only: bool = False,
        timeout: float | None = 30.0,
    ) -> Event:
        """Publish one event; return it, with its ``index``, when S2 has stored it.

        What is published from several threads at once leaves in shared appends, in the order of each thread's calls.

        Args:
            topic: durable if it begins with ``topic_prefix``, else local to this process.
            type: free text.
            data: any strict JSON value.
            run_id: the run it belongs to.
            local_only: deliver to this process's subscribers only; nothing is stored, ``index`` is None.
            timeout: seconds for everything; None for no limit.

        Raises:
            EncodeError: ``data`` is not strict JSON or too large; nothing was sent.
            OperationTimeoutError: not acknowledged in time; ``outcome`` says whether it may be stored.
            StoreError: the server refused it or could not be reached; see ``outcome``.
            ClosedError: the client is closed.
        """
        deadline = Deadline.after(timeout)
        self._check_open()
        stream = self._stream(topic)
        if stream is None:
            return self._local().publish(topic, type=type, data=data, run_id=run_id, timeout=timeout)
        event, body = encode(topic, type=type, data=data, run_id=run_id, default=self._settings.default)
        if local_only:
            self._open.offer_local(topic, body)
            return event
        index = self._store.commit(stream, body, deadline)
        self._counters.published += 1
        return _stored(event, index)

    def publish_many(
        self, topic: str, events: Iterable[Mapping[str, Any] | Event], *, timeout: float | None = 30.0
    ) -> list[Event]:
        """Publish several events in order; return them with their indices when all are stored.

        Up to 1000 events and 1 MiB go into one atomic append; more go into several, one after the other.

        Args:
            topic: a durable topic.
            events: mappings with ``type``, ``data`` and optionally ``run_id`` and ``extra``; or events to publish anew.
            timeout: seconds for everything; None for no limit.

        Raises:
            EncodeError, TypeError: an event is not valid; nothing was sent.
            S2PubSubError: as for ``publish``; ``stored`` lists the events that were acknowledged before.
        """
        deadline = Deadline.after(timeout)
        self._check_open()
        stream = self._stream(topic)
        inputs = event_inputs(events)
        if stream is None:
            return [
                self._local().publish(topic, type=e.type, data=e.data, run_id=e.run_id, timeout=deadline.remaining())
                for e in inputs
            ]
        encoded = encode_many(topic, inputs, default=self._settings.default)
        stored: list[Event] = []
        for batch in _batches(encoded):
            try:
                first = self._store.append(stream, [body for _, body in batch], deadline)
            except S2PubSubError as error:
                error.stored = tuple(stored)
                if error.outcome is None:
                    error.outcome = "unknown"
                raise
            stored += [_stored(event, index) for index, (event, _) in enumerate(batch, first)]
            self._counters.published += len(batch)
        return stored

    def publisher(
        self,
        topic: str,
        *,
        max_in_flight: int = 1024,
        max_bytes: int = 4 * 2**20,
        exactly_once: bool = False,
        lease: HeldLease | None = None,
        first_index: int | None = None,
    ) -> Publisher:
        """Open a publisher: pipelined, in the order of its calls, with futures instead of waiting.

        Args:
            topic: a durable topic.
            max_in_flight: so many events may be in flight; then ``publish`` of the publisher waits.
            max_bytes: the same for the sum of their records; one larger event goes alone.
            exactly_once: it is the only writer of the topic. Then no event is stored twice, whatever is lost on the
                way, and a second writer is noticed: ``StoreError`` with the code ``second_writer``.
            lease: what ``leases.hold`` returned. Then events are stored only while that owner's token is in force;
                after that they fail with ``LeaseLostError``. On the lease's own topic, ``leases.thread_topic(key)``, or
                another one that is not a run's; with one publisher per lease, and not with ``exactly_once``.
            first_index: index that its first event must get with ``exactly_once``, where that is not the tail as it is
                now: 0 claims a new topic, the tail known from a reading excludes that somebody has written since.

        Raises:
            ValueError: the topic is local, which has nothing to wait for: use ``publish``. Or a bound is below 1, or
                the lease does not fit.
            StoreError, OperationTimeoutError: ``exactly_once`` or ``lease``, and the server was not reached in 30 s.
            LeaseLostError: ``lease`` is not held any more.
            ClosedError: the client is closed.
        """
        check_bounds(max_in_flight, max_bytes)
        self._check_open()
        stream = self._stream(topic)
        if stream is None:
            raise ValueError(f"topic {topic!r} is local, so it has no publisher(): use publish(), which does not wait")
        if lease is not None:
            check_fenced(topic, lease, exactly_once)
        if first_index is not None and not exactly_once:
            raise ValueError("first_index goes with exactly_once=True")
        deadline = Deadline.after(_OPEN_LIMIT)
        if (exactly_once and first_index is None) or lease is not None:
            first_index, _ = find_tail(self._store, topic, stream, deadline, self._stop)
        pipe = Pipe(topic, max_in_flight, max_bytes, self._done, self._counters, self._logger)
        start = partial(self._store.start_appender, stream, pipe.outbox, pipe, position=first_index)
        if lease is not None:
            fencing = Fencing(pipe, lease)
            start = partial(
                start, token=fencing.begin(self._store, stream, deadline, self._stop), is_own=fencing.is_own
            )
        try:
            with self._lock:
                self._check_open()
                self._done.start()
                self._open.add_pipe(pipe)
                pipe.run(start)
        except BaseException:
            pipe.end()
            raise
        return Publisher(pipe, self, self._settings.default)

    # -- subscribing ---------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str,
        callback: Callback | None = None,
        *,
        start: Start = "latest",
        group: str | None = None,
        batch: Any = None,
        on_error: ErrorHook | None = None,
        timeout: float | None = 30.0,
    ) -> Subscription | TransportSubscription:
        """Subscribe to ``topic``; everything published after this call returns is seen.

        On a basin with create-on-read it creates the topic's stream where that is absent; see ``exists``.

        Args:
            topic: durable or local.
            callback: called with each event on the subscription's thread, one at a time, in order. One that raises
                is reported to ``on_error``, else logged, and the next event follows. Without it, iterate over the
                result. The same callback on the same topic is one subscription.
            start: ``"latest"``: the exact tail at the call; ``"earliest"``: the first event; or an index. An index
                beyond the tail waits for it.
            group: consumer group; local topics only.
            batch: batching options; local topics only.
            on_error: called with what the callback raised, and with the failure that ends the subscription.
            timeout: seconds to reach the server; None for no limit. Once returned, the subscription never gives up.

        Raises:
            StoreError, OperationTimeoutError: the server refused, or was not reached in time.
            GroupNotSupportedError: ``group`` on a durable topic.
            ClosedError: the client is closed.
        """
        deadline = Deadline.after(timeout)
        check_start(start)
        self._check_open()
        stream = self._stream(topic)
        if stream is None:
            return self._local().subscribe(
                topic, callback, start=start, group=group, batch=batch, on_error=on_error, timeout=timeout
            )
        if group is not None:
            raise GroupNotSupportedError(
                f"topic {topic!r} is durable: every subscriber sees the whole log. Consumer groups exist on local "
                f"topics; to share durable work, hold a lease and keep the index"
            )
        if batch is not None:
            raise ValueError("batch= exists on local topics only; use Subscription.batches() on durable ones")
        if callback is not None and not callable(callback):
            raise TypeError(f"callback must be callable, not {callback!r}")
        tail, existed = find_tail(self._store, topic, stream, deadline, self._stop)
        first = tail if start == "latest" else 0 if start == "earliest" else max(0, int(start))
        if callback is None:
            return self._begin(topic, stream, first, existed, tail, None, None)
        return self._open.callback_subscription(
            (topic, callback), lambda: self._begin(topic, stream, first, existed, tail, callback, on_error)
        )

    def subscribe_from_offset(
        self,
        topic: str,
        offset: int,
        callback: Callback | None = None,
        *,
        group: str | None = None,
        batch: Any = None,
        on_error: ErrorHook | None = None,
        timeout: float | None = 30.0,
    ) -> Subscription | TransportSubscription:
        """``subscribe`` with ``start=offset``: stored events from that index, then live ones, without a gap between."""
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise TypeError(f"offset must be an int, not {offset!r}")
        return self.subscribe(
            topic, callback, start=offset, group=group, batch=batch, on_error=on_error, timeout=timeout
        )

    def subscribe_with_replay(
        self,
        topic: str,
        callback: Callback | None = None,
        *,
        group: str | None = None,
        batch: Any = None,
        on_error: ErrorHook | None = None,
        timeout: float | None = 30.0,
    ) -> Subscription | TransportSubscription:
        """``subscribe`` with ``start="earliest"``: all stored events, then live ones, without a gap between."""
        return self.subscribe(
            topic, callback, start="earliest", group=group, batch=batch, on_error=on_error, timeout=timeout
        )

    def unsubscribe(self, topic: str, callback: Callback, *, timeout: float | None = 5.0) -> None:
        """End the callback's subscription to ``topic``; nothing happens if there is none.

        Waits for a running callback, unless called from it.
        """
        check_topic(topic)
        if not is_durable(topic, self._settings.topic_prefix):
            if self._inner is not None:
                self._inner.unsubscribe(topic, callback)
            return
        subscription = self._open.find_callback((topic, callback))
        if subscription is not None:
            subscription.close(timeout)

    def _begin(
        self,
        topic: str,
        stream: str,
        first: int,
        existed: bool,
        tail: int,
        callback: Callback | None,
        on_error: ErrorHook | None,
    ) -> Subscription:
        stop = Stop()
        bounds = self._settings.queue_size, self._settings.queue_bytes
        sink: Sink
        if callback is None:
            sink = Queue(first, *bounds)
        else:
            sink = Calls(topic, first, callback, on_error, stop, bounds, self._logger)
        feed = Feed(topic, stream, first, existed, self._store, sink, stop, Wake(), self._counters, self._logger)
        with self._lock:
            self._check_open()
            subscription = begin(feed, on_end=self._open.forgetter(), client=self, replay_to=tail)
            self._open.add(subscription)
        return subscription

    # -- what is stored ------------------------------------------------------------------------------------------

    def get_history(self, topic: str, offset: int = 0, *, timeout: float | None = 30.0) -> list[Event]:
        """Stored events from index ``offset`` up to the tail at the call. ``[]`` for local, absent and empty topics.

        On a basin with create-on-read it creates the topic's stream where that is absent; see ``exists``.

        Raises:
            ReplayGapError: the events from ``offset`` were trimmed or have expired.
            DecodeError: a record is not an event.
            StoreError, OperationTimeoutError: ``timeout`` seconds passed without a batch of events, or a refusal.
        """
        return [event for batch in self._history(topic, offset, timeout) for event in batch]

    def iter_history(self, topic: str, offset: int = 0, *, timeout: float | None = 30.0) -> Iterator[Event]:
        """``get_history`` one event at a time, in bounded memory. Checks its arguments at the call."""
        return self._one_by_one(self._history(topic, offset, timeout))

    def _one_by_one(self, batches: Iterator[list[Event]]) -> Iterator[Event]:
        # A method, so that the client lives as long as its iterator.
        for batch in batches:
            yield from batch

    def _history(self, topic: str, offset: int, timeout: float | None) -> Iterator[list[Event]]:
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise TypeError(f"offset must be an int, not {offset!r}")
        self._check_open()
        stream = self._stream(topic)
        if stream is None:
            return iter([self._local().get_history(topic, offset, timeout=timeout)])
        reader = HistoryReader(self._store, topic, stream, max(0, offset), self._stop, timeout, self._logger)
        return reader.batches()

    def tail(self, topic: str, *, timeout: float | None = 30.0) -> int:
        """Index that the next event of ``topic`` will get; 0 for an absent topic.

        On a basin with create-on-read it creates the topic's stream.
        """
        deadline = Deadline.after(timeout)
        try:
            return self._store.tail(self._durable_stream(topic), deadline)
        except StoreError as error:
            if error.kind == "gone":
                return 0
            raise

    def exists(self, topic: str, *, timeout: float | None = 30.0) -> bool:
        """Whether the topic's stream is listed and not being deleted. Creates nothing."""
        found = self._store.find(self._durable_stream(topic), Deadline.after(timeout))
        return found is not None and not found.deleting

    def topics(self, prefix: str = "", *, timeout: float | None = 30.0) -> list[str]:
        """Names of the stored topics that begin with ``prefix``, in byte order. Creates nothing."""
        self._check_open()
        strip = len(self._settings.stream_prefix)
        deadline = Deadline.after(timeout)
        return [
            info.name[strip:]
            for info in self._store.list(self._settings.stream_prefix + prefix, deadline)
            if not info.deleting
        ]

    def clear_topic(
        self, topic: str, *, strict: bool = False, end_observers: bool = True, timeout: float | None = 30.0
    ) -> None:
        """End this process's subscriptions to ``topic`` (their iteration just ends) and delete its stream.

        Best effort: a failure is logged, unless ``strict``. Deleting an absent topic is no failure. With
        ``end_observers=False`` subscriptions are left to find out by themselves: they raise ``TopicGoneError``.
        """
        deadline = Deadline.after(timeout)
        try:
            self._check_open()
            stream = self._stream(topic)
            if stream is None:
                self._local().clear_topic(topic)
                return
            if end_observers:
                self._open.close(deadline, topic)
            self._store.delete(stream, deadline)
        except S2PubSubError as error:
            if strict:
                raise
            self._logger.warning("topic %r was not cleared: %s", topic, error)

    # -- leases --------------------------------------------------------------------------------------------------

    def get_lease_provider(self, *, clock: Clock = SYSTEM_CLOCK, random: Random | None = None) -> S2LeaseProvider:
        """Leases on this basin, for agents that share work.

        Args:
            clock: what expiries are compared with; tests move it.
            random: for nonces and the jitter of waits; by default from the operating system.
        """
        return S2LeaseProvider(
            self._store,
            self._settings.stream_prefix,
            self._open_stop,
            self._held,
            self._logger,
            clock=clock,
            random=random,
        )

    @property
    def leases(self) -> S2LeaseProvider:
        """``get_lease_provider()``."""
        return self.get_lease_provider()

    def _open_stop(self) -> Stop:
        self._check_open()
        return self._stop

    # -- the basin -----------------------------------------------------------------------------------------------

    def ensure_basin(
        self, *, retention: int | None = None, delete_on_empty: int | None = None, timeout: float | None = 30.0
    ) -> None:
        """Create the basin, with streams that are created by appends and reads; where it exists, change only that
        and what is given.

        Args:
            retention: seconds that events of new streams are kept.
            delete_on_empty: seconds after which an empty new stream is deleted.
            timeout: seconds for everything; None for no limit.
        """
        for name, value in (("retention", retention), ("delete_on_empty", delete_on_empty)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise TypeError(f"{name} must be an int of seconds, not {value!r}")
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1 second, got {value}")
        self._check_open()
        self._store.ensure_basin(Deadline.after(timeout), retention=retention, delete_on_empty=delete_on_empty)

    def check(self, *, timeout: float | None = 30.0) -> None:
        """Verify that the server can be reached, and the basin exists and creates streams on append and on read.

        Raises:
            StoreError: something is wrong; the message names the remedy.
        """
        self._check_open()
        flags = self._store.flags(Deadline.after(timeout))
        off = [name for name, on in flags.named() if not on]
        if off:
            raise StoreError(
                f"basin {self._store.basin!r} has {' and '.join(off)} off; ensure_basin() turns them on",
                code="basin_settings",
                status=None,
            )

    def stats(self) -> Stats:
        """A snapshot of counters."""
        subscriptions = self._open.subscriptions()
        pipes = self._open.pipes()
        return Stats(
            publishers=sum(not pipe.outbox.finished for pipe in pipes),
            in_flight=sum(pipe.outbox.unfinished for pipe in pipes),
            subscriptions=len(subscriptions),
            queued=sum(subscription.queued for subscription in subscriptions),
            leases=len(self._held),
            published=self._counters.published,
            delivered=self._counters.delivered,
            reconnects=self._counters.reconnects,
            parked=self._counters.parked,
            replaced_clients=self._store.replaced_clients,
        )

    # -- life cycle ----------------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything that publishers have accepted is stored, and local events are delivered.

        Raises:
            S2PubSubError: a publisher's event could not be stored.
            OperationTimeoutError: not done within ``timeout`` seconds.
        """
        deadline = Deadline.after(timeout)
        self._open.flush(deadline)
        if self._inner is not None:
            self._inner.flush(deadline.remaining())

    @property
    def basin(self) -> str:
        """Name of the basin."""
        return self._store.basin

    @property
    def logger(self) -> Any:
        """Where failures go that no caller waits for."""
        return self._logger

    @property
    def closed(self) -> bool:
        """Whether ``close()`` was called."""
        return self._closed

    def wait_closed(self, timeout: float | None = None) -> bool:
        """Wait up to ``timeout`` seconds for ``close()`` and say whether it was called: a sleep that it ends."""
        return self._stop.wait(check_timeout(timeout))

    def close_with(self, part: Closable) -> None:
        """Close ``part``, if it still lives, when this client is closed: before its subscriptions and connections."""
        with self._lock:
            self._check_open()
            self._parts.add(part)

    def close(self, timeout: float | None = 5.0) -> None:
        """End subscriptions, publishers and leases, close the connections and end the threads. Idempotent.

        All of it within ``timeout`` seconds; a thread that stays is warned about by name. Called from a callback it
        does not wait for threads. A close that was interrupted, or whose time was up, is completed by another one.

        Raises:
            S2PubSubError: events of publishers could not be stored, unless their calls have raised it before. All is
                closed nevertheless.
        """
        deadline = Deadline.after(timeout)
        with self._lock:
            self._closed = True
            parts = list(self._parts)
        self._stop.set()
        with contextlib.ExitStack() as steps:  # from the last to the first, each whatever the others raise
            steps.callback(self._done.close, deadline)
            steps.callback(self._held.join, deadline)
            steps.callback(self._loop.close, deadline)
            steps.callback(self._held.release, deadline)  # after callbacks and publishers, whose work they may guard
            steps.callback(self._open.close_publishers, deadline)
            steps.callback(self._open.close, deadline)
            for part in reversed(parts):
                steps.callback(_close, part, deadline)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except S2PubSubError as lost:
            if error is None:
                raise
            error.add_note(f"besides, {lost}")  # what is on its way out says more

    def __del__(self) -> None:
        loop = getattr(self, "_loop", None)
        if loop is not None and loop.started:
            loop.signal_close()
            self._done.signal_close()
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        return f"<S2PubSub on basin {self.basin!r}, {'closed' if self._closed else 'open'}>"

    def _check_open(self) -> None:
        if self._closed:
            error = ClosedError("the client is closed")
            error.outcome = "not_stored"
            raise error

    def _stream(self, topic: str) -> str | None:
        """The stream of a durable topic, None for a local one."""
        check_topic(topic)
        if not is_durable(topic, self._settings.topic_prefix):
            return None
        return stream_name(topic, self._settings.stream_prefix)

    def _durable_stream(self, topic: str) -> str:
        self._check_open()
        stream = self._stream(topic)
        if stream is None:
            raise ValueError(f"topic {topic!r} is local: it does not begin with {self._settings.topic_prefix!r}")
        return stream

    def _local(self) -> Transport:
        """The transport of local topics; the default one is made at its first use, and closed with this client."""
        if self._inner is None:
            with self._lock:
                self._check_open()
                if self._inner is None:
                    made = LocalPubSub(default=self._settings.default, logger=self._logger)
                    self._parts.add(made)
                    self._inner = made
        return self._inner

    def _reset_in_child(self) -> None:
        closed = self._closed
        self._reset()
        self._closed = closed


def _close(part: Closable, deadline: Deadline) -> None:
    part.close(timeout=deadline.remaining())


def _stored(event: Event, index: int) -> Event:
    return build_event(
        event.topic, event.type, event.data, event.run_id, event.id, event.created_at, index, 1, event.extra
    )


def _batches(encoded: list[tuple[Event, bytes]]) -> Iterator[list[tuple[Event, bytes]]]:
    batch: list[tuple[Event, bytes]] = []
    size = 0
    for item in encoded:
        metered = RECORD_OVERHEAD + len(item[1])
        if batch and (len(batch) == _MAX_BATCH or size + metered > _MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += metered
    if batch:
        yield batch
