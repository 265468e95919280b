"""What is stored of topics: their events, tails and names, and their removal. What it means stands at ``S2PubSub``."""

from __future__ import annotations

from collections.abc import Iterator

from s2pubsub.engine import Engine
from s2pubsub.errors import S2PubSubError, StoreError
from s2pubsub.event import Event
from s2pubsub.history import HistoryReader
from s2pubsub.runtime.deadline import Deadline


def get_history(engine: Engine, topic: str, offset: int, timeout: float | None) -> list[Event]:
    """See ``S2PubSub.get_history``."""
    return [event for batch in _history(engine, topic, offset, timeout) for event in batch]


def iter_history(engine: Engine, topic: str, offset: int, timeout: float | None) -> Iterator[Event]:
    """See ``S2PubSub.iter_history``."""
    return _one_by_one(engine, _history(engine, topic, offset, timeout))


def _one_by_one(client: object, batches: Iterator[list[Event]]) -> Iterator[Event]:
    # ``client``: it lives as long as its iterator.
    for batch in batches:
        yield from batch


def _history(engine: Engine, topic: str, offset: int, timeout: float | None) -> Iterator[list[Event]]:
    if isinstance(offset, bool) or not isinstance(offset, int):
        raise TypeError(f"offset must be an int, not {offset!r}")
    stream = engine.stream(topic)
    if stream is None:
        return iter([engine.local().get_history(topic, offset, timeout=timeout)])
    reader = HistoryReader(engine.store, topic, stream, max(0, offset), engine.stop, timeout, engine.logger)
    return reader.batches()


def tail(engine: Engine, topic: str, timeout: float | None) -> int:
    """See ``S2PubSub.tail``."""
    deadline = Deadline.after(timeout)
    try:
        return engine.store.tail(engine.durable_stream(topic), deadline)
    except StoreError as error:
        if error.kind == "gone":
            return 0
        raise


def exists(engine: Engine, topic: str, timeout: float | None) -> bool:
    """See ``S2PubSub.exists``."""
    found = engine.store.find(engine.durable_stream(topic), Deadline.after(timeout))
    return found is not None and not found.deleting


def topics(engine: Engine, prefix: str, timeout: float | None) -> list[str]:
    """See ``S2PubSub.topics``."""
    engine.check_open()
    before = engine.settings.stream_prefix
    listed = engine.store.list(before + prefix, Deadline.after(timeout))
    return [info.name[len(before) :] for info in listed if not info.deleting]


def clear_topic(engine: Engine, topic: str, strict: bool, end_observers: bool, timeout: float | None) -> None:
    """See ``S2PubSub.clear_topic``."""
    deadline = Deadline.after(timeout)
    try:
        stream = engine.stream(topic)
        if stream is None:
            engine.local().clear_topic(topic)
            return
        if end_observers:
            engine.open.close(deadline, topic)
        engine.store.delete(stream, deadline)
    except S2PubSubError as error:
        if strict:
            raise
        engine.logger.warning("topic %r was not cleared: %s", topic, error)
