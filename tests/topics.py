"""What the tests of topics share: filling them, taking from them, calling from many threads, and judging errors."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

from s2pubsub import S2PubSub, S2PubSubError, StoreError, Subscription
from tests.faults import READ_SESSION, FaultProxy
from tests.waiting import LONG

MakePubSub = Callable[..., S2PubSub]
"""The fixture ``make_pubsub``."""


def fill(pubsub: S2PubSub, topic: str, count: int, *, first: int = 0, size: int = 0) -> None:
    """Publish events whose data is the number they have in order, with ``size`` characters behind it if asked for."""
    numbers = range(first, first + count)
    pubsub.publish_many(topic, [{"type": "chunk", "data": [n, "x" * size] if size else n} for n in numbers])


def indices(events: Subscription, count: int) -> list[int | None]:
    """Take the next ``count`` events."""
    return [events.get(LONG).index for _ in range(count)]


def sessions(proxy: FaultProxy) -> list[int | None]:
    """What each read session asked for."""
    return [seen.seq_num for seen in proxy.seen(READ_SESSION)]


def workers(topic: str) -> list[threading.Thread]:
    """The threads of subscriptions to ``topic``."""
    return [thread for thread in threading.enumerate() if thread.name == f"s2pubsub-sub-{topic}"]


def our_threads() -> list[str]:
    """Names of the library's threads, those of an embedded server excepted."""
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("s2pubsub-") and "server" not in t.name)


def on_threads(count: int, action: Callable[[int], object], limit: float = 60) -> None:
    """Call ``action(0)``, ``action(1)``, … on threads that begin together; the first error is raised here."""
    barrier = threading.Barrier(count)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            barrier.wait(LONG)
            action(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def all_at_once(actions: list[Callable[[], object]], limit: float = 60) -> None:
    """``on_threads`` for actions that differ."""
    on_threads(len(actions), lambda number: actions[number](), limit)


def failed(publish: Callable[[], object], kind: type[S2PubSubError] = StoreError) -> Any:
    """The error of a publish that must fail: ours, with none of our tools' behind it, and the same after pickling."""
    with pytest.raises(kind) as caught:
        publish()
    error = caught.value
    twin = pickle.loads(pickle.dumps(error))
    assert (type(twin), str(twin), twin.outcome, twin.stored) == (type(error), str(error), error.outcome, error.stored)
    assert error.__cause__ is not error
    for link in (error, error.__cause__):
        assert not isinstance(link, BaseExceptionGroup)
        assert type(link).__name__ not in ("RetryError", "TryAgain", "CancelledError")
    return error
