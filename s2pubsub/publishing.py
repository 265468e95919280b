"""How a client publishes: blocking calls, and the opening of publishers. What the calls mean stands at ``S2PubSub``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from s2pubsub import tracing
from s2pubsub.codec import RECORD_OVERHEAD, EventInput, compose, encode_many, event_inputs
from s2pubsub.engine import Engine
from s2pubsub.errors import S2PubSubError
from s2pubsub.event import Event, build_event
from s2pubsub.fencing import Fencing, check_fenced
from s2pubsub.following import find_tail
from s2pubsub.held_lease import HeldLease
from s2pubsub.publisher import Pipe, Publisher, check_bounds
from s2pubsub.runtime.deadline import Deadline

_OPEN_LIMIT = 30.0
"""Seconds to reach the server for publishers that begin at the tail."""

_MAX_BATCH = 1000
_MAX_BATCH_BYTES = 2**20


def publish(
    engine: Engine, topic: str, type: str, data: Any, run_id: str, local_only: bool, timeout: float | None
) -> Event:
    """See ``S2PubSub.publish``."""
    deadline = Deadline.after(timeout)
    stream = engine.stream(topic)
    if stream is None:
        return engine.local().publish(topic, type=type, data=data, run_id=run_id, timeout=timeout)
    tracer = tracing.tracer
    if tracer is None:
        return _publish(engine, topic, stream, type, data, run_id, None, local_only, deadline)

    def carrying(extra: Mapping[str, str]) -> list[Event]:
        return [_publish(engine, topic, stream, type, data, run_id, extra, local_only, deadline)]

    return tracing.send(tracer, topic, 1, carrying)[0]


def _publish(
    engine: Engine,
    topic: str,
    stream: str,
    type: str,
    data: Any,
    run_id: str,
    extra: Mapping[str, str] | None,
    local_only: bool,
    deadline: Deadline,
) -> Event:
    draft = compose(type, data, run_id, None, None, extra, engine.settings.default)
    if local_only:
        engine.open.offer_local(topic, draft.body)
        return draft.event(topic, None)
    index = engine.store.commit(stream, draft.body, deadline)
    engine.counters.published += 1
    return draft.event(topic, index)


def publish_many(
    engine: Engine, topic: str, events: Iterable[Mapping[str, Any] | Event], timeout: float | None
) -> list[Event]:
    """See ``S2PubSub.publish_many``."""
    deadline = Deadline.after(timeout)
    stream = engine.stream(topic)
    inputs = event_inputs(events)
    if stream is None:
        return [
            engine.local().publish(topic, type=e.type, data=e.data, run_id=e.run_id, timeout=deadline.remaining())
            for e in inputs
        ]

    def carrying(extra: Mapping[str, str]) -> list[Event]:
        return _append(engine, topic, stream, [attrs.evolve(e, extra={**e.extra, **extra}) for e in inputs], deadline)

    tracer = tracing.tracer
    if tracer is None:
        return _append(engine, topic, stream, inputs, deadline)
    return tracing.send(tracer, topic, len(inputs), carrying)


def _append(engine: Engine, topic: str, stream: str, inputs: Sequence[EventInput], deadline: Deadline) -> list[Event]:
    encoded = encode_many(topic, inputs, default=engine.settings.default)
    stored: list[Event] = []
    for batch in _batches(encoded):
        try:
            first = engine.store.append(stream, [body for _, body in batch], deadline)
        except S2PubSubError as error:
            error.stored = tuple(stored)
            if error.outcome is None:
                error.outcome = "unknown"
            raise
        stored += [_stored(event, index) for index, (event, _) in enumerate(batch, first)]
        engine.counters.published += len(batch)
    return stored


def open_publisher(
    engine: Engine,
    topic: str,
    max_in_flight: int,
    max_bytes: int,
    exactly_once: bool,
    lease: HeldLease | None,
    first_index: int | None,
) -> Publisher:
    """See ``S2PubSub.publisher``."""
    check_bounds(max_in_flight, max_bytes)
    stream = engine.stream(topic)
    if stream is None:
        raise ValueError(f"topic {topic!r} is local, so it has no publisher(): use publish(), which does not wait")
    if lease is not None:
        check_fenced(topic, lease, exactly_once)
    if first_index is not None and not exactly_once:
        raise ValueError("first_index goes with exactly_once=True")
    store, deadline = engine.store, Deadline.after(_OPEN_LIMIT)
    if (exactly_once and first_index is None) or lease is not None:
        first_index, _ = find_tail(store, topic, stream, deadline, engine.stop)
    pipe = Pipe(topic, max_in_flight, max_bytes, engine.done, engine.counters, engine.logger)
    start = partial(store.start_appender, stream, pipe.outbox, pipe, position=first_index)
    if lease is not None:
        fencing = Fencing(pipe, lease)
        start = partial(start, token=fencing.begin(store, stream, deadline, engine.stop), is_own=fencing.is_own)
    try:
        with engine.lock:
            engine.check_open()
            engine.done.start()
            engine.open.add_pipe(pipe)
            pipe.run(start)
    except BaseException:
        pipe.end()
        raise
    return Publisher(pipe, engine, engine.settings.default)


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
