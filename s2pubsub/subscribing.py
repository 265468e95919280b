"""How a client subscribes: where a subscription begins, and what its thread is made of.

What the calls mean stands at ``S2PubSub``; how the thread reads, in ``following``; the handle is in ``subscription``.
"""

from __future__ import annotations

from typing import Any

from s2pubsub.engine import Engine
from s2pubsub.errors import GroupNotSupportedError
from s2pubsub.following import Feed, Sink, find_tail
from s2pubsub.local.options import check_start
from s2pubsub.runtime.deadline import Deadline
from s2pubsub.runtime.wake import Wake
from s2pubsub.runtime.worker import Stop
from s2pubsub.subscription import Callback, Calls, ErrorHook, Queue, Subscription, begin
from s2pubsub.topic import check_topic, is_durable
from s2pubsub.transport import TransportSubscription


def subscribe(
    engine: Engine,
    topic: str,
    callback: Callback | None,
    start: str | int,
    group: str | None,
    batch: Any,
    on_error: ErrorHook | None,
    timeout: float | None,
) -> Subscription | TransportSubscription:
    """See ``S2PubSub.subscribe``."""
    deadline = Deadline.after(timeout)
    check_start(start)
    stream = engine.stream(topic)
    if stream is None:
        return engine.local().subscribe(
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
    tail, existed = find_tail(engine.store, topic, stream, deadline, engine.stop)
    first = tail if start == "latest" else 0 if start == "earliest" else max(0, int(start))

    def make() -> Subscription:
        return _begin(engine, topic, stream, first, existed, tail, callback, on_error)

    return make() if callback is None else engine.open.callback_subscription((topic, callback), make)


def unsubscribe(engine: Engine, topic: str, callback: Callback, timeout: float | None) -> None:
    """See ``S2PubSub.unsubscribe``."""
    check_topic(topic)
    if not is_durable(topic, engine.settings.topic_prefix):
        if engine.inner is not None:
            engine.inner.unsubscribe(topic, callback)
        return
    subscription = engine.open.find_callback((topic, callback))
    if subscription is not None:
        subscription.close(timeout)


def _begin(
    engine: Engine,
    topic: str,
    stream: str,
    first: int,
    existed: bool,
    tail: int,
    callback: Callback | None,
    on_error: ErrorHook | None,
) -> Subscription:
    stop = Stop()
    bounds = engine.settings.queue_size, engine.settings.queue_bytes
    sink: Sink
    if callback is None:
        sink = Queue(first, *bounds)
    else:
        sink = Calls(topic, first, callback, on_error, stop, bounds, engine.logger)
    feed = Feed(topic, stream, first, existed, engine.store, sink, stop, Wake(), engine.counters, engine.logger, tail)
    with engine.lock:
        engine.check_open()
        subscription = begin(feed, on_end=engine.open.forgetter(), client=engine)
        engine.open.add(subscription)
    return subscription
