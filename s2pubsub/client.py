"""``S2PubSub``: the public face of the library. Each call says here what it means, and in its last line who does it.

``publishing``, ``subscribing``, ``stored`` and ``basins`` do the work, with what ``engine`` holds. Durable topics are
streams in S2 (``store``); topics outside the prefix, and events published with ``local_only``, stay in this process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random
from types import TracebackType
from typing import Any, Self

import s2_sdk

from s2pubsub import basins, publishing, stored, subscribing
from s2pubsub.engine import Engine
from s2pubsub.errors import S2PubSubError
from s2pubsub.event import Event
from s2pubsub.held_lease import HeldLease
from s2pubsub.lease_clock import SYSTEM_CLOCK, Clock
from s2pubsub.leases import S2LeaseProvider
from s2pubsub.publisher import Publisher
from s2pubsub.registry import Closable
from s2pubsub.runtime.deadline import Deadline, check_timeout
from s2pubsub.settings import DEFAULT_QUEUE_BYTES, DEFAULT_QUEUE_SIZE, Settings
from s2pubsub.stats import Stats
from s2pubsub.subscription import Callback, ErrorHook, Subscription
from s2pubsub.transport import Transport, TransportSubscription


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
        self._engine = Engine(settings)

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
        return publishing.publish(self._engine, topic, type, data, run_id, local_only, timeout)

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
        return publishing.publish_many(self._engine, topic, events, timeout)

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
        return publishing.open_publisher(
            self._engine, topic, max_in_flight, max_bytes, exactly_once, lease, first_index
        )

    # -- subscribing ---------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str,
        callback: Callback | None = None,
        *,
        start: str | int = "latest",
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
            group: consumer group; local topics only. A member without a callback answers each event that it takes by
                ``ack`` or ``nack`` of its subscription; until then nobody else gets it.
            batch: batching options; local topics only.
            on_error: called with what the callback raised, and with the failure that ends the subscription.
            timeout: seconds to reach the server; None for no limit. Once returned, the subscription never gives up.

        Raises:
            StoreError, OperationTimeoutError: the server refused, or was not reached in time.
            GroupNotSupportedError: ``group`` on a durable topic.
            ClosedError: the client is closed.
        """
        return subscribing.subscribe(self._engine, topic, callback, start, group, batch, on_error, timeout)

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
        subscribing.unsubscribe(self._engine, topic, callback, timeout)

    # -- what is stored ------------------------------------------------------------------------------------------

    def get_history(self, topic: str, offset: int = 0, *, timeout: float | None = 30.0) -> list[Event]:
        """Stored events from index ``offset`` up to the tail at the call. ``[]`` for local, absent and empty topics.

        On a basin with create-on-read it creates the topic's stream where that is absent; see ``exists``.

        Raises:
            ReplayGapError: the events from ``offset`` were trimmed or have expired.
            DecodeError: a record is not an event.
            StoreError, OperationTimeoutError: ``timeout`` seconds passed without a batch of events, or a refusal.
        """
        return stored.get_history(self._engine, topic, offset, timeout)

    def iter_history(self, topic: str, offset: int = 0, *, timeout: float | None = 30.0) -> Iterator[Event]:
        """``get_history`` one event at a time, in bounded memory. Checks its arguments at the call."""
        return stored.iter_history(self._engine, topic, offset, timeout)

    def tail(self, topic: str, *, timeout: float | None = 30.0) -> int:
        """Index that the next event of ``topic`` will get; 0 for an absent topic.

        On a basin with create-on-read it creates the topic's stream.
        """
        return stored.tail(self._engine, topic, timeout)

    def exists(self, topic: str, *, timeout: float | None = 30.0) -> bool:
        """Whether the topic's stream is listed and not being deleted. Creates nothing."""
        return stored.exists(self._engine, topic, timeout)

    def topics(self, prefix: str = "", *, timeout: float | None = 30.0) -> list[str]:
        """Names of the stored topics that begin with ``prefix``, in byte order. Creates nothing."""
        return stored.topics(self._engine, prefix, timeout)

    def clear_topic(
        self, topic: str, *, strict: bool = False, end_observers: bool = True, timeout: float | None = 30.0
    ) -> None:
        """End this process's subscriptions to ``topic`` (their iteration just ends) and delete its stream.

        Best effort: a failure is logged, unless ``strict``. Deleting an absent topic is no failure. With
        ``end_observers=False`` subscriptions are left to find out by themselves: they raise ``TopicGoneError``.
        """
        stored.clear_topic(self._engine, topic, strict, end_observers, timeout)

    # -- leases and the basin --------------------------------------------------------------------------------------

    def get_lease_provider(self, *, clock: Clock = SYSTEM_CLOCK, random: Random | None = None) -> S2LeaseProvider:
        """Leases on this basin, for agents that share work.

        Args:
            clock: what expiries are compared with; tests move it.
            random: for nonces and the jitter of waits; by default from the operating system.
        """
        engine = self._engine
        prefix = engine.settings.stream_prefix
        return S2LeaseProvider(
            engine.store, prefix, engine.open_stop, engine.held, engine.logger, clock=clock, random=random
        )

    @property
    def leases(self) -> S2LeaseProvider:
        """``get_lease_provider()``."""
        return self.get_lease_provider()

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
        basins.ensure(self._engine, retention, delete_on_empty, timeout)

    def check(self, *, timeout: float | None = 30.0) -> None:
        """Verify that the server can be reached, and the basin exists and creates streams on append and on read.

        Raises:
            StoreError: something is wrong; the message names the remedy.
        """
        basins.check(self._engine, timeout)

    def stats(self) -> Stats:
        """A snapshot of counters."""
        return self._engine.stats()

    # -- life cycle ----------------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything that publishers have accepted is stored, and local events are delivered.

        Raises:
            S2PubSubError: a publisher's event could not be stored.
            OperationTimeoutError: not done within ``timeout`` seconds.
        """
        self._engine.flush(Deadline.after(timeout))

    @property
    def basin(self) -> str:
        """Name of the basin."""
        return self._engine.store.basin

    @property
    def logger(self) -> Any:
        """Where failures go that no caller waits for."""
        return self._engine.logger

    @property
    def closed(self) -> bool:
        """Whether ``close()`` was called."""
        return self._engine.closed

    def wait_closed(self, timeout: float | None = None) -> bool:
        """Wait up to ``timeout`` seconds for ``close()`` and say whether it was called: a sleep that it ends."""
        return self._engine.stop.wait(check_timeout(timeout))

    def close_with(self, part: Closable) -> None:
        """Close ``part``, if it still lives, when this client is closed: before its subscriptions and connections."""
        self._engine.close_with(part)

    def close(self, timeout: float | None = 5.0) -> None:
        """End subscriptions, publishers and leases, close the connections and end the threads. Idempotent.

        All of it within ``timeout`` seconds; a thread that stays is warned about by name. Called from a callback it
        does not wait for threads. A close that was interrupted, or whose time was up, is completed by another one.

        Raises:
            S2PubSubError: events of publishers could not be stored, unless their calls have raised it before. All is
                closed nevertheless.
        """
        self._engine.close(timeout)

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

    def __repr__(self) -> str:
        return repr(self._engine)
