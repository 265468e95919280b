"""``LocalPubSub``: publish/subscribe within one process, with the verbs of ``S2PubSub``.

For topics that need no history: nothing is stored, and a subscriber sees what is published after it has subscribed.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from s2pubsub.codec import Default, encode, encode_many
from s2pubsub.errors import ClosedError, OperationTimeoutError
from s2pubsub.event import Event
from s2pubsub.local.delivery import Member
from s2pubsub.local.leases import LocalLeaseProvider
from s2pubsub.local.line import Line
from s2pubsub.local.options import BatchOptions, Rules, check_start
from s2pubsub.local.subscription import LocalSubscription, LocalWorker, begin
from s2pubsub.local.topics import Topics
from s2pubsub.runtime.closing import Closing
from s2pubsub.runtime.deadline import Deadline, check_timeout
from s2pubsub.runtime.fork import reset_in_child
from s2pubsub.runtime.loop import Log
from s2pubsub.runtime.worker import on_worker_thread
from s2pubsub.topic import check_topic
from s2pubsub.transport import Callback, ErrorHook


class LocalPubSub(Closing):
    """Topics of one process. Thread-safe. No thread before the first subscription with a callback.

    Every subscriber gets every event: plain ones each for themselves, the members of a group (competing consumers)
    together. An event passes the same strict codec as a stored one, and each reader and each attempt gets its own copy.

    **Groups.** Whoever is free takes the next event; members take turns. A callback that returns has handled its event;
    one that raises has refused it. An iterating member answers with ``subscription.ack(event)`` or ``nack(event)``. A
    refused event comes again after ``retry_pause`` with the next ``delivery_attempt``, behind the events that wait,
    and is given up with a log line that has its id after ``max_attempts``.

    **Nothing is dropped silently.** A local topic has no log to read again, so a reader that does not keep up is
    neither cut off nor passed over: once ``queue_size`` events or ``queue_bytes`` bytes are not done, publishers on its
    topic wait for room, up to their timeout, and then raise, with the event delivered to nobody. Callbacks of local
    topics that publish do not wait, since they may be the ones who make the room.

    Args:
        max_attempts: how often an event is delivered to a group; None for no cap.
        retry_pause: seconds between a refused delivery and the next.
        handling_limit: seconds after which an event that a member of a group still handles goes to the next free member
            with the next attempt's number; None for no limit. It should be well above what handling takes.
        queue_size, queue_bytes: how much one reader or group may have before it, in hand or waiting.
        default: called with a value that is not JSON; returns one that is.
        logger: where errors go that no hook takes.
    """

    def __init__(
        self,
        *,
        max_attempts: int | None = 5,
        retry_pause: float = 0.1,
        handling_limit: float | None = None,
        queue_size: int = 16384,
        queue_bytes: int = 16 * 2**20,
        default: Default | None = None,
        logger: Log | None = None,
    ) -> None:
        self._rules = Rules(queue_size, queue_bytes, max_attempts, retry_pause, handling_limit)
        self._default = default
        self._logger: Log = logger or logging.getLogger("s2pubsub")
        self._leases = LocalLeaseProvider(self._logger)
        self._closed = False
        self._reset()
        reset_in_child(self)

    def _reset(self) -> None:
        self._lock = threading.RLock()  # reentrant, since a signal handler may close in the middle of publish
        self._topics = Topics()

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
        """Hand an event to everybody who is subscribed now; return it. All of them get events in the same order.

        Args:
            topic: any name.
            type: free text.
            data: any strict JSON value.
            run_id: the run it belongs to.
            local_only: accepted for the sake of code that runs on ``S2PubSub`` too; all events here are.
            timeout: seconds to wait for a reader whose queue is full; None for no limit.

        Raises:
            EncodeError: ``data`` is not strict JSON or too large.
            OperationTimeoutError: a reader's queue stayed full; nobody got the event.
            ClosedError: this is closed.
        """
        deadline = Deadline.after(timeout)
        check_topic(topic)
        self._check_open()
        event, body = encode(topic, type=type, data=data, run_id=run_id, default=self._default)
        self._hand_out(event, body, deadline)
        return event

    def publish_many(
        self, topic: str, events: Iterable[Mapping[str, Any] | Event], *, timeout: float | None = 30.0
    ) -> list[Event]:
        """Publish several events in order; nothing is published when one of them is not valid.

        Args:
            topic: any name.
            events: mappings with ``type``, ``data`` and optionally ``run_id`` and ``extra``; or events to publish anew.
            timeout: seconds for everything; None for no limit.

        Raises:
            EncodeError, TypeError, OperationTimeoutError, ClosedError: as for ``publish``; ``stored`` lists the events
                that were handed out before.
        """
        deadline = Deadline.after(timeout)
        check_topic(topic)
        self._check_open()
        encoded = encode_many(topic, events, default=self._default)
        published: list[Event] = []
        for event, body in encoded:
            try:
                self._hand_out(event, body, deadline)
            except (OperationTimeoutError, ClosedError) as error:
                error.stored = tuple(published)
                raise
            published.append(event)
        return published

    def _hand_out(self, event: Event, body: bytes, deadline: Deadline) -> None:
        """To all or to nobody: a publisher that has to wait for one reader has not served the others yet."""
        patient = not isinstance(threading.current_thread(), LocalWorker)
        while True:
            with self._lock:
                self._check_open()
                self._topics.forget_ended()
                lines = self._topics.of(event.topic)
                full = next((line for line in lines if line.full()), None) if patient else None
                if full is None:
                    for line in lines:
                        line.put(event.id, body)
                    return
            if not full.wait_for_room(deadline):
                reader = "a subscriber" if full.group is None else f"group {full.group!r}"
                error = OperationTimeoutError(
                    f"publish to topic {event.topic!r}: {reader} has not made room in time, its queue is full; nobody "
                    f"got the event"
                )
                error.outcome = "not_stored"
                raise error

    # -- subscribing ---------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str,
        callback: Callback | None = None,
        *,
        start: str | int = "latest",
        group: str | None = None,
        batch: BatchOptions | None = None,
        on_error: ErrorHook | None = None,
        timeout: float | None = 30.0,
    ) -> LocalSubscription:
        """Subscribe to ``topic``; everything published after this call returns is seen.

        Args:
            topic: any name.
            callback: called with each event on a thread of the subscription, one at a time, in order. One that raises
                is reported to ``on_error``, else logged with topic and event id, and the next event follows. The same
                callback on the same topic and group is one subscription. Without it, iterate over the result.
            start: ignored, since nothing is stored: every subscription is live.
            group: name of the group of competing consumers to join.
            batch: gather events and call the callback with several in a row.
            on_error: called with what the callback raised.
            timeout: not needed here: nothing is waited for.

        Raises:
            ClosedError: this is closed.
        """
        check_topic(topic)
        check_timeout(timeout)
        check_start(start)
        if group is not None and (type(group) is not str or not group):
            raise TypeError(f"group must be a text that is not empty, not {group!r}")
        if batch is not None and not isinstance(batch, BatchOptions):
            raise TypeError(f"batch must be BatchOptions, not {batch!r}")
        if callback is None:
            if batch is not None:
                raise ValueError("batch= is for callbacks; iterate over subscription.batches() instead")
            with self._lock:
                return self._begin(topic, None, group, None, on_error)
        if not callable(callback):
            raise TypeError(f"callback must be callable, not {callback!r}")
        key = topic, group, callback
        with self._lock:
            found = self._topics.callbacks.get(key)
            if found is None or found.closed:
                found = self._topics.callbacks[key] = self._begin(topic, callback, group, batch, on_error)
            return found

    def subscribe_from_offset(
        self,
        topic: str,
        offset: int,
        callback: Callback | None = None,
        *,
        group: str | None = None,
        batch: BatchOptions | None = None,
        on_error: ErrorHook | None = None,
        timeout: float | None = 30.0,
    ) -> LocalSubscription:
        """``subscribe``: there is nothing stored to begin with, so it is live whatever ``offset`` says."""
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
        batch: BatchOptions | None = None,
        on_error: ErrorHook | None = None,
        timeout: float | None = 30.0,
    ) -> LocalSubscription:
        """``subscribe``: there is nothing stored to replay."""
        return self.subscribe(
            topic, callback, start="earliest", group=group, batch=batch, on_error=on_error, timeout=timeout
        )

    def unsubscribe(self, topic: str, callback: Callback, *, timeout: float | None = 5.0) -> None:
        """End the callback's subscriptions to ``topic``, in every group; nothing happens if there is none.

        Waits up to ``timeout`` seconds for a running callback, unless called from one.
        """
        deadline = Deadline.after(timeout)
        check_topic(topic)
        with self._lock:
            held = self._topics.callbacks.items()
            found = [subscription for key, subscription in held if key[0] == topic and key[2] == callback]
        for subscription in found:
            subscription.close(deadline.remaining())

    def get_history(self, topic: str, offset: int = 0, *, timeout: float | None = 30.0) -> list[Event]:
        """Always ``[]``: nothing is stored."""
        check_topic(topic)
        self._check_open()
        return []

    def iter_history(self, topic: str, offset: int = 0, *, timeout: float | None = 30.0) -> Iterator[Event]:
        """Always empty: nothing is stored."""
        return iter(self.get_history(topic, offset, timeout=timeout))

    def clear_topic(self, topic: str, *, strict: bool = False, timeout: float | None = 30.0) -> None:
        """End the topic's subscriptions, whose iteration just ends, and discard what waits for them.

        Waits up to ``timeout`` seconds for running callbacks, unless called from one.
        """
        deadline = Deadline.after(timeout)
        check_topic(topic)
        with self._lock:
            lines = self._topics.remove(topic)
            held = self._topics.held(topic)
        for line in lines:
            line.end(on_purpose=True)
        for subscription in held:
            subscription.close(deadline.remaining())

    # -- leases --------------------------------------------------------------------------------------------------

    @property
    def leases(self) -> LocalLeaseProvider:
        """The leases of this process."""
        return self._leases

    def get_lease_provider(self) -> LocalLeaseProvider:
        """``leases``, as a method."""
        return self._leases

    # -- life cycle ----------------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Wait until callbacks have handled what is published now. Batches are delivered before their time.

        What they raise is not raised here. Iterated subscriptions are not waited for. Called from a callback it only
        returns, since that callback's own event cannot be done before it has returned.

        Raises:
            OperationTimeoutError: not done within ``timeout`` seconds.
        """
        deadline = Deadline.after(timeout)
        if on_worker_thread():
            return
        with self._lock:
            lines = self._topics.all()
        for line in lines:
            if not line.flush(deadline):
                raise OperationTimeoutError(f"topic {line.topic!r}: events were not handled within {timeout} s")

    @property
    def closed(self) -> bool:
        """Whether ``close()`` was called."""
        return self._closed

    def close(self, timeout: float | None = 5.0) -> None:
        """End all subscriptions and leases. What waits is discarded (``flush()`` first). Idempotent.

        Waits up to ``timeout`` seconds for running callbacks, unless called from one; a thread that stays is warned
        about by name. Waiting publishers raise ``ClosedError``.
        """
        deadline = Deadline.after(timeout)
        with self._lock:
            self._closed = True
            lines = self._topics.all()
            held = list(self._topics.callbacks.values())
        for line in lines:
            line.end(on_purpose=False)
        self._leases.close()
        for subscription in held:
            subscription.close(deadline.remaining())
        with self._lock:
            self._topics.forget_ended()

    def __del__(self) -> None:
        if getattr(self, "_closed", True):
            return
        lines = [line for line in self._topics.all() if not line.ended]
        for line in lines:
            line.end(on_purpose=False)
        if lines:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        return f"<LocalPubSub, {'closed' if self._closed else 'open'}>"

    # -- parts -----------------------------------------------------------------------------------------------------

    def _begin(
        self,
        topic: str,
        callback: Callback | None,
        group: str | None,
        batch: BatchOptions | None,
        on_error: ErrorHook | None,
    ) -> LocalSubscription:
        self._check_open()
        self._topics.forget_ended()
        member = Member(iterates=callback is None, batching=batch is not None)
        joined = line = None if group is None else self._topics.group(topic, group)
        if line is None or not line.join(member):
            line = Line(topic, group, self._rules, self._logger)
            line.join(member)
        subscription = begin(line, member, callback, batch, on_error, self._topics.forgetter(topic), self._logger)
        if line is not joined:
            self._topics.add(line)
        return subscription

    def _check_open(self) -> None:
        if self._closed:
            error = ClosedError("the local transport is closed")
            error.outcome = "not_stored"
            raise error

    def _reset_in_child(self) -> None:
        self._reset()
