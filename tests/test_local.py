"""The local transport: fan-out, order, copies, one subscription for one callback, errors of callbacks."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest

from s2pubsub import EncodeError, Event, LocalPubSub, OperationTimeoutError
from s2pubsub.transport import Transport
from tests.local_parts import HERE, local_threads, numbers, publish
from tests.waiting import LONG, eventually

# Fan-out.


def test_it_is_a_transport(local):
    """LocalPubSub has what the client asks of any inner transport."""
    assert isinstance(local, Transport)


def test_every_subscriber_gets_every_event_in_order(local):
    """Callbacks and iterators each get all events that were published after they subscribed, with index None."""
    publish(local, [-1])
    called: list[Event] = []
    local.subscribe(HERE, called.append)
    with local.subscribe(HERE) as first, local.subscribe_from_offset(HERE, 5) as second:
        published = publish(local, range(100))
        local.flush(LONG)
        for got in (called, [first.get(LONG) for _ in range(100)], [next(second) for _ in range(100)]):
            assert numbers(got) == list(range(100))
            assert got == published
            assert {event.index for event in got} == {None}
            assert {event.delivery_attempt for event in got} == {1}


def test_nothing_is_stored(local):
    """History is empty, and a replay begins with what comes next."""
    publish(local, range(3))
    assert local.get_history(HERE) == []
    assert list(local.iter_history(HERE)) == []
    with local.subscribe_with_replay(HERE) as events:
        assert not events.replaying
        assert events.next_index is None
        publish(local, [3])
        assert events.get(LONG).data["n"] == 3


def test_all_readers_see_one_order(local, switch_often):
    """What several threads publish at once reaches all readers in the same order, each thread's events in its own."""
    readers = [local.subscribe(HERE) for _ in range(3)]

    def work(thread: int) -> None:
        for n in range(50):
            local.publish(HERE, type="job", data=[thread, n])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    seen = [[tuple(reader.get(LONG).data) for _ in range(200)] for reader in readers]
    assert seen[0] == seen[1] == seen[2]
    for thread in range(4):
        assert [n for t, n in seen[0] if t == thread] == list(range(50))
    for reader in readers:
        reader.close()


def test_publish_many(local):
    """Several events are published in order; one that is not valid keeps all of them back and names its place."""
    with local.subscribe(HERE) as events:
        local.publish_many(HERE, [{"type": "a", "data": 1}, {"type": "b", "data": 2, "run_id": "r"}])
        assert [(e.type, e.data, e.run_id) for e in (events.get(LONG), events.get(LONG))] == [
            ("a", 1, ""),
            ("b", 2, "r"),
        ]
        with pytest.raises(EncodeError, match=r"events\[1\]\.data"):
            local.publish_many(HERE, [{"type": "a", "data": 1}, {"type": "b", "data": float("nan")}])
        with pytest.raises(OperationTimeoutError):
            events.get(0)


def test_batches_of_an_iterator(local):
    """An iterator can be read in lists; the last list may be short."""
    with local.subscribe(HERE) as events:
        publish(local, range(5))
        batches = events.batches(max_size=2, max_wait=0.01)
        assert [numbers(next(batches)) for _ in range(3)] == [[0, 1], [2, 3], [4]]
        events.close()
        assert list(batches) == []


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_share_an_iterator(local, threads):
    """Several threads may share one iterator: each event goes to one of them."""
    got: list[Event] = []
    events = local.subscribe(HERE)
    readers = [threading.Thread(target=lambda: got.extend(events)) for _ in range(threads)]
    for reader in readers:
        reader.start()
    publish(local, range(50))
    eventually(lambda: len(got) == 50)
    events.close()
    for reader in readers:
        reader.join(LONG)
        assert not reader.is_alive()
    assert sorted(numbers(got)) == list(range(50))


def test_strict_values_only(local):
    """C61: Local events pass the same strict codec: what would come back different is refused."""
    for value in (float("nan"), {1: 2}, (1,), {2**60}, b"x", "\ud800"):
        with pytest.raises(EncodeError):
            local.publish(HERE, type="job", data=value)
    with LocalPubSub(default=list) as lenient, lenient.subscribe(HERE) as events:
        lenient.publish(HERE, type="job", data=(1, 2))
        assert events.get(LONG).data == [1, 2]


# Copies.


def test_an_event_does_not_change_under_its_readers(local):
    """C64: one reader's changes, and the publisher's, are not seen by the others nor by a redelivery."""
    second: list[Any] = []
    attempts: list[Any] = []

    def change(event: Event) -> None:
        event.data["list"].append("changed")
        event.data["n"] = "changed"

    def refuse_first(event: Event) -> None:
        attempts.append((event.delivery_attempt, repr(event.data)))
        change(event)
        if event.delivery_attempt == 1:
            raise ValueError("not yet")

    local.subscribe(HERE, change)
    local.subscribe(HERE, lambda event: second.append(repr(event.data)))
    local.subscribe(HERE, refuse_first, group="g", on_error=lambda error: None)
    data = {"n": 1, "list": [1]}
    as_published = repr(data)
    local.publish(HERE, type="job", data=data)
    data["list"].append("by the publisher")
    local.flush(LONG)
    assert second == [as_published]
    assert attempts == [(1, as_published), (2, as_published)]


# The same callback twice.


def test_the_same_callback_is_one_subscription(local, switch_often):
    """C37: subscribed by 8 threads at once a callback gets each event once, and one unsubscribe ends it."""
    for _ in range(20):
        calls: list[Event] = []
        barrier = threading.Barrier(8)
        handles: list[Any] = []

        def callback(event: Event, calls: list[Event] = calls) -> None:
            calls.append(event)

        def subscribe(barrier: threading.Barrier = barrier, handles: list[Any] = handles, to: Any = callback) -> None:
            barrier.wait(LONG)
            handles.append(local.subscribe(HERE, to))

        threads = [threading.Thread(target=subscribe) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        assert len({id(handle) for handle in handles}) == 1
        assert len(local_threads()) == 1
        publish(local, range(10))
        local.flush(LONG)
        local.unsubscribe(HERE, callback)
        publish(local, range(10))
        local.flush(LONG)
        assert numbers(calls) == list(range(10))
        assert local_threads() == []


def test_other_callbacks_topics_and_groups_are_other_subscriptions(local):
    """C37: another callback, topic or group is independent of the first; unsubscribe ends all groups of a topic."""
    first: list[Event] = []
    second: list[Event] = []
    local.subscribe(HERE, first.append)
    local.subscribe(HERE, second.append)
    local.subscribe("elsewhere", first.append)
    publish(local, [1])
    publish(local, [2], "elsewhere")
    local.flush(LONG)
    assert (sorted(numbers(first)), numbers(second)) == ([1, 2], [1])
    local.subscribe(HERE, first.append, group="g")
    publish(local, [3])
    local.flush(LONG)
    assert numbers(first).count(3) == 2
    local.unsubscribe(HERE, first.append)
    local.unsubscribe("nowhere", first.append)
    publish(local, [4])
    publish(local, [5], "elsewhere")
    local.flush(LONG)
    assert sorted(numbers(first))[-1] == 5
    assert numbers(second) == [1, 3, 4]


def test_a_callback_can_subscribe_again(local):
    """After an unsubscribe the same callback makes a new subscription."""
    calls: list[Event] = []
    first = local.subscribe(HERE, calls.append)
    local.unsubscribe(HERE, calls.append)
    second = local.subscribe(HERE, calls.append)
    assert first is not second
    assert first.closed
    publish(local, [1])
    local.flush(LONG)
    assert numbers(calls) == [1]


# Errors of callbacks.


def test_a_handler_that_raises_affects_nobody(local):
    """C65: the others get all events in order, publish returns, and every error reaches the hook."""
    first: list[Event] = []
    third: list[Event] = []
    errors: list[BaseException] = []

    def broken(event: Event) -> None:
        raise ValueError(event.data["n"])

    local.subscribe(HERE, first.append)
    local.subscribe(HERE, broken, on_error=errors.append)
    local.subscribe(HERE, third.append)
    publish(local, range(5))
    local.flush(LONG)
    assert numbers(first) == numbers(third) == list(range(5))
    assert [error.args for error in errors] == [(n,) for n in range(5)]
    assert all(HERE in error.__notes__[0] for error in errors)


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt])
def test_an_error_without_a_hook_is_logged(local, caplog, kind):
    """C30: it is logged with traceback, topic and event id; the subscription and its neighbours go on."""
    calls: list[Event] = []
    healthy: list[Event] = []

    def callback(event: Event) -> None:
        calls.append(event)
        if event.data["n"] == 2:
            raise kind("broken")

    local.subscribe(HERE, callback)
    local.subscribe(HERE, healthy.append)
    published = publish(local, range(5))
    local.flush(LONG)
    assert numbers(calls) == numbers(healthy) == list(range(5))
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert HERE in record.getMessage()
    assert published[2].id in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[0] is kind
    began = time.monotonic()
    local.close()
    assert time.monotonic() - began < 2


def test_an_error_of_the_hook_is_logged_too(local, caplog):
    """C30: a hook that raises loses neither its own error nor the callback's."""

    def hook(error: BaseException) -> None:
        raise RuntimeError("hook")

    local.subscribe(HERE, lambda event: 1 / 0, on_error=hook)
    publish(local, [1])
    local.flush(LONG)
    assert {record.exc_info[0] for record in caplog.records if record.exc_info} == {RuntimeError, ZeroDivisionError}
