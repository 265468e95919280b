"""Slow readers of local topics: full queues, publishers that wait, and flush."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from s2pubsub import ClosedError, Event, LocalPubSub, OperationTimeoutError
from tests.local_parts import HERE, numbers, publish
from tests.waiting import LONG, eventually

# Slow readers.


def test_a_slow_reader_delays_no_other(local):
    """C35: a callback that is stuck and an iterator that is never read delay neither publishes nor other readers."""
    release = threading.Event()
    local.subscribe(HERE, lambda event: release.wait(LONG))
    unread = local.subscribe(HERE)
    with local.subscribe(HERE) as events:
        publish(local, range(1000))
        assert numbers([events.get(LONG) for _ in range(1000)]) == list(range(1000))
    assert unread.queued == 1000
    unread.close()
    release.set()


def test_many_events_for_a_full_reader():
    """When the time is up in the middle, the error lists what was handed out; the reader gets exactly that."""
    with LocalPubSub(queue_size=3) as local, local.subscribe(HERE) as slow:
        with pytest.raises(OperationTimeoutError, match="room") as caught:
            local.publish_many(HERE, [{"type": "job", "data": {"n": n}} for n in range(5)], timeout=0.01)
        assert numbers(list(caught.value.stored)) == [0, 1, 2]
        assert [slow.get(LONG).id for _ in range(3)] == [event.id for event in caught.value.stored]
        with pytest.raises(OperationTimeoutError, match="goes on"):
            slow.wait(0)


@pytest.mark.parametrize("bound", [{"queue_size": 3}, {"queue_bytes": 400}])
@pytest.mark.parametrize("group", [None, "g"])
def test_publish_waits_for_a_full_reader_and_drops_nothing(bound, group):
    """A full queue makes publish wait, then raise with the event delivered to nobody; room lets it go on."""
    with LocalPubSub(**bound) as local, local.subscribe(HERE, group=group) as slow, local.subscribe(HERE) as other:
        published = publish(local, range(3))
        got = [other.get(LONG) for _ in range(3)]
        with pytest.raises(OperationTimeoutError, match="room") as caught:
            local.publish(HERE, type="job", data={"n": 9}, timeout=0.01)
        assert caught.value.outcome == "not_stored"
        with pytest.raises(OperationTimeoutError):
            other.get(0)
        publisher = threading.Thread(target=lambda: published.extend(publish(local, range(3, 10))))
        publisher.start()
        for n in range(10):
            event = slow.get(LONG)
            assert event.data["n"] == n
            slow.ack(event)
            if n >= 3:
                got.append(other.get(LONG))
        publisher.join(LONG)
        assert numbers(published) == list(range(10))
        assert numbers(got) == list(range(10))


@pytest.mark.parametrize("ending", ["close", "drop", "client", "clear"])
def test_a_publisher_that_waits_for_room_notices_the_readers_end(ending):
    """Closing, dropping or clearing the full reader lets a waiting publisher go on; closing all raises ClosedError."""
    local = LocalPubSub(queue_size=1)
    reader: Any = local.subscribe(HERE)
    publish(local, [0])
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append(local.publish(HERE, type="job", data=1, timeout=None))
        except ClosedError as error:
            outcome.append(error)

    publisher = threading.Thread(target=work)
    publisher.start()
    if ending == "close":
        reader.close()
    elif ending == "drop":
        with pytest.warns(ResourceWarning, match="unclosed"):
            reader = None
    elif ending == "client":
        local.close()
    else:
        local.clear_topic(HERE)
    publisher.join(LONG)
    assert not publisher.is_alive()
    assert isinstance(outcome[0], ClosedError if ending == "client" else Event)
    local.close()


def test_a_callback_may_publish_to_its_own_full_topic():
    """A callback that publishes more than its own queue holds does not wait for itself."""
    with LocalPubSub(queue_size=2) as local:
        calls: list[Event] = []

        def callback(event: Event) -> None:
            calls.append(event)
            if event.data["n"] == 0:
                publish(local, range(1, 20))

        local.subscribe(HERE, callback)
        publish(local, [0])
        eventually(lambda: len(calls) == 20)
        assert numbers(calls) == list(range(20))


# Flush.


def test_flush_waits_for_callbacks_and_not_for_iterators(local):
    """``flush`` returns when the callbacks are done with what was published, and says so when they are not in time."""
    release = threading.Event()
    calls: list[Event] = []
    unread = local.subscribe(HERE)

    def slow(event: Event) -> None:
        release.wait(LONG)
        calls.append(event)

    local.subscribe(HERE, slow)
    publish(local, range(3))
    with pytest.raises(OperationTimeoutError, match=HERE):
        local.flush(0.01)
    release.set()
    local.flush(LONG)
    assert numbers(calls) == [0, 1, 2]
    unread.close()


def test_flush_ends_although_events_keep_coming(local):
    """``flush`` waits for the events of its call only; a busy publisher does not keep it for ever."""
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            publish(local, [0])

    local.subscribe(HERE, lambda event: None)
    publisher = threading.Thread(target=busy)
    publisher.start()
    try:
        for _ in range(5):
            local.flush(LONG)
    finally:
        stop.set()
        publisher.join(LONG)


def test_flush_from_a_callback_returns(local):
    """A callback that flushes is not kept waiting for its own end."""
    done: list[bool] = []
    local.subscribe(HERE, lambda event: done.append(local.flush(None) is None))
    publish(local, range(2))
    local.flush(LONG)
    assert done == [True, True]
