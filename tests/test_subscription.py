"""The handle of a subscription: iteration, single events, batches, sharing, positions, and its end."""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from s2pubsub import ClosedError, DecodeError, Event, OperationTimeoutError, S2PubSub, Subscription
from tests.raw import Streams
from tests.servers import Server
from tests.topics import MakePubSub
from tests.waiting import LONG, eventually

TOPIC = "agent.stream.subscription"


def fill(pubsub: S2PubSub, count: int, first: int = 0) -> None:
    pubsub.publish_many(TOPIC, [{"type": "chunk", "data": n} for n in range(first, first + count)])


# Taking events.


def test_get(pubsub: S2PubSub) -> None:
    """``get`` gives the next event, waits as long as it may, polls with 0, and raises a TimeoutError with the topic."""
    with pubsub.subscribe(TOPIC) as events:
        for timeout in (0, 0.2):
            started = time.monotonic()
            with pytest.raises(OperationTimeoutError, match=TOPIC) as caught:
                events.get(timeout)
            assert str(timeout) in str(caught.value)
            assert timeout <= time.monotonic() - started < timeout + 0.5
        threading.Timer(0.1, lambda: fill(pubsub, 2)).start()
        assert events.get().index == 0
        assert events.get(timeout=LONG).index == 1
        with pytest.raises(TypeError):
            events.get("1")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="negative"):
            events.get(-1)


def test_iteration_ends_after_close(pubsub: S2PubSub) -> None:
    """``for`` blocks for the next event and just ends after close, in whatever thread it waits; ``get`` raises then."""
    fill(pubsub, 3)
    events = pubsub.subscribe_from_offset(TOPIC, 0)
    found: list[int | None] = []
    got_all = threading.Event()

    def read() -> None:
        for event in events:
            found.append(event.index)
            if event.index == 2:
                got_all.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert got_all.wait(LONG)
    events.close()
    thread.join(2)
    assert not thread.is_alive()
    assert found == [0, 1, 2]
    assert list(events) == []
    with pytest.raises(ClosedError):
        events.get(0)
    with pytest.raises(StopIteration):
        next(events)
    events.close()
    events.wait(0)
    assert events.closed
    assert "closed" in repr(events)


def test_events_that_are_held_are_dropped_by_close(pubsub: S2PubSub) -> None:
    """Closing discards what is queued; ``next_index`` stays where the consumer was."""
    fill(pubsub, 10)
    events = pubsub.subscribe_from_offset(TOPIC, 0)
    assert [events.get(LONG).index for _ in range(3)] == [0, 1, 2]
    eventually(lambda: events.queued == 7)
    events.close()
    assert list(events) == []
    assert events.next_index == 3


def test_several_threads_share_one_subscription(pubsub: S2PubSub) -> None:
    """Each event goes to one of them, each of them gets its events in order, and close releases all."""
    with pubsub.subscribe(TOPIC) as events:
        found: list[list[int]] = [[] for _ in range(6)]

        def read(number: int) -> None:
            for event in events:
                assert event.index is not None
                found[number].append(event.index)

        threads = [threading.Thread(target=read, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for number in range(200):
            pubsub.publish(TOPIC, type="chunk", data=number)
        fill(pubsub, 2000, first=200)
        eventually(lambda: sum(map(len, found)) == 2200)
    for thread in threads:
        thread.join(2)
        assert not thread.is_alive()
    assert sorted(index for indices in found for index in indices) == list(range(2200))
    assert all(indices == sorted(indices) for indices in found)


def test_threads_that_only_wait_a_moment_share_it_too(pubsub: S2PubSub) -> None:
    """Threads that poll with short timeouts lose nothing, although one may give up when an event comes."""
    with pubsub.subscribe(TOPIC) as events:
        found: list[int | None] = []
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                try:
                    found.append(events.get(0.001).index)
                except TimeoutError:
                    pass

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number in range(150):
            pubsub.publish(TOPIC, type="chunk", data=number)
        eventually(lambda: len(found) == 150)
        stop.set()
        for thread in threads:
            thread.join(LONG)
    assert sorted(index for index in found if index is not None) == list(range(150))


def test_batches(pubsub: S2PubSub) -> None:
    """``batches`` gives lists in order, as large as asked for, the last one when its wait is over."""
    fill(pubsub, 25)
    with pubsub.subscribe_from_offset(TOPIC, 0) as events:
        eventually(lambda: events.queued == 25)
        batches = events.batches(max_size=10, max_wait=0.2)
        assert [[event.index for event in next(batches)] for _ in range(2)] == [list(range(10)), list(range(10, 20))]
        assert events.get(LONG).index == 20
        started = time.monotonic()
        assert [event.index for event in next(batches)] == [21, 22, 23, 24]
        assert 0.15 < time.monotonic() - started < 1
        threading.Timer(0.2, lambda: fill(pubsub, 1, first=25)).start()
        assert [event.index for event in next(batches)] == [25]
        events.close()
        assert list(batches) == []
        assert list(events.batches()) == []


def test_batches_without_waiting(pubsub: S2PubSub) -> None:
    """With ``max_wait`` 0 a list holds what is there; wrong arguments are refused at the call."""
    fill(pubsub, 5)
    with pubsub.subscribe_from_offset(TOPIC, 0) as events:
        eventually(lambda: events.queued == 5)
        assert [event.index for event in next(events.batches(100, 0))] == [0, 1, 2, 3, 4]
        for size, wait, error in ((0, 1, ValueError), (True, 1, TypeError), ("1", 1, TypeError), (1, -1, ValueError)):
            with pytest.raises(error):
                events.batches(size, wait)  # type: ignore[arg-type]


# Positions.


def test_next_index(pubsub: S2PubSub) -> None:
    """``next_index`` is where another process would resume: behind the last event taken, whatever is queued."""
    fill(pubsub, 4)
    with pubsub.subscribe_from_offset(TOPIC, 1) as events:
        assert events.next_index == 1
        eventually(lambda: events.queued == 3)
        assert events.next_index == 1
        assert events.get(LONG).index == 1
        assert events.next_index == 2
        assert [events.get(LONG).index for _ in range(2)] == [2, 3]
        assert events.next_index == 4
        with pubsub.subscribe_from_offset(TOPIC, events.next_index) as resumed:
            fill(pubsub, 1, first=4)
            assert resumed.get(LONG).index == events.get(LONG).index == 4
    assert events.next_index == 5


def test_replaying(pubsub: S2PubSub) -> None:
    """``replaying`` is true until what was stored at the call has been taken."""
    fill(pubsub, 3)
    with pubsub.subscribe_with_replay(TOPIC) as events:
        fill(pubsub, 1, first=3)
        states = []
        for _ in range(4):
            states.append(events.replaying)
            events.get(LONG)
        assert states == [True, True, True, False]
    with pubsub.subscribe(TOPIC) as events:
        assert not events.replaying


def test_the_same_events_however_they_are_read(pubsub: S2PubSub) -> None:
    """Publish, history, iteration and callbacks give equal events, with topic, id, run and time."""
    sent = [pubsub.publish(TOPIC, type=f"t{n}", data={"n": n}, run_id="run") for n in range(3)]
    called: list[Event] = []
    done = threading.Semaphore(0)

    def receive(event: Event) -> None:
        called.append(event)
        done.release()

    with pubsub.subscribe_with_replay(TOPIC) as events, pubsub.subscribe_with_replay(TOPIC, receive):
        iterated = [events.get(LONG) for _ in range(3)]
        for _ in range(3):
            assert done.acquire(timeout=LONG)
    assert sent == iterated == called == pubsub.get_history(TOPIC)
    assert [(event.topic, event.type, event.run_id, event.index) for event in sent] == [
        (TOPIC, f"t{n}", "run", n) for n in range(3)
    ]


# Ends.


def test_wait(pubsub: S2PubSub) -> None:
    """``wait`` returns when the subscription has ended by close, and times out before."""
    events = pubsub.subscribe(TOPIC)
    with pytest.raises(OperationTimeoutError):
        events.wait(0.05)
    threading.Timer(0.1, events.close).start()
    events.wait(LONG)
    assert events.closed


def test_a_failure_comes_behind_what_is_buffered_every_time(pubsub: S2PubSub, streams: Streams) -> None:
    """C63: record 5 is not JSON: 0 to 4, then one decode error with its index, every time; from 6 on it goes on, and so
    does history.
    """
    fill(pubsub, 5)
    streams.append(TOPIC, b"{not json")
    fill(pubsub, 4, first=6)
    with pubsub.subscribe_from_offset(TOPIC, 0) as events:
        assert [events.get(LONG).index for _ in range(5)] == [0, 1, 2, 3, 4]
        errors: list[DecodeError] = []
        for read in (lambda: events.get(LONG), lambda: next(events), lambda: events.wait(0), lambda: list(events)):
            with pytest.raises(DecodeError) as caught:
                read()
            errors.append(caught.value)
        assert {(error.topic, error.index) for error in errors} == {(TOPIC, 5)}
        assert events.next_index == 5
        assert events.closed
    assert pubsub.stats().reconnects == 0
    with pubsub.subscribe_from_offset(TOPIC, 6) as events:
        assert [events.get(LONG).index for _ in range(4)] == [6, 7, 8, 9]
    with pytest.raises(DecodeError) as caught:
        pubsub.get_history(TOPIC)
    assert caught.value.index == 5
    history = pubsub.iter_history(TOPIC)
    assert [next(history).index for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(DecodeError):
        next(history)
    assert [event.index for event in pubsub.get_history(TOPIC, 6)] == [6, 7, 8, 9]


@pytest.mark.parametrize(
    "body", [b"", b"\xff\xfe", b"[]", b"null", b'{"type":1}', b'{"type":"t","data":NaN}', b"{}" * 2], ids=repr
)
def test_every_kind_of_foreign_record(pubsub: S2PubSub, streams: Streams, body: bytes) -> None:
    """C63: whatever is no event ends its reader with the decode error and no reconnect loop, by callback too."""
    fill(pubsub, 1)
    streams.append(TOPIC, body)
    fill(pubsub, 1, first=2)
    errors: list[Any] = []
    seen: list[int | None] = []
    called = pubsub.subscribe_with_replay(TOPIC, lambda event: seen.append(event.index), on_error=errors.append)
    with pytest.raises(DecodeError):
        called.wait(LONG)
    assert seen == [0]
    assert [(type(error), error.index) for error in errors] == [(DecodeError, 1)]
    assert called.next_index == 1
    called.close()


def test_an_error_is_a_fresh_one_for_each_reader(pubsub: S2PubSub, streams: Streams) -> None:
    """Threads that share a failed subscription each get an error of their own, so that tracebacks do not mix."""
    streams.append(TOPIC, b"no event")
    with pubsub.subscribe_with_replay(TOPIC) as events:
        errors: list[BaseException] = []

        def read() -> None:
            try:
                events.get(LONG)
            except DecodeError as error:
                errors.append(error)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        assert len({id(error) for error in errors}) == 4


def test_a_callbacks_subscription_cannot_be_iterated(pubsub: S2PubSub) -> None:
    """Taking events from it is a TypeError that says why."""
    subscription = pubsub.subscribe(TOPIC, lambda event: None)
    for take in (lambda: next(subscription), lambda: subscription.get(0), lambda: subscription.batches()):
        with pytest.raises(TypeError, match="callback"):
            take()
    subscription.close()


def test_a_dropped_handle_says_so_and_ends(pubsub: S2PubSub) -> None:
    """The last reference gone, a handle that was not closed warns, and its thread ends."""
    held = [pubsub.subscribe(TOPIC)]
    ref = weakref.ref(held[0])
    with pytest.warns(ResourceWarning, match=TOPIC):
        _drop(held)
    assert ref() is None
    eventually(lambda: not [t for t in threading.enumerate() if t.name == f"s2pubsub-sub-{TOPIC}"])
    assert pubsub.stats().subscriptions == 0


def test_an_iterator_keeps_its_client(make_pubsub: MakePubSub, server: Server, basin: str) -> None:
    """A subscription goes on although nobody refers to the client that made it."""
    writer = make_pubsub()

    def subscribe() -> Subscription:
        client = S2PubSub(basin=basin, endpoints=server.url, access_token=server.token)
        found = client.subscribe(TOPIC)
        assert isinstance(found, Subscription)
        return found

    held = [subscribe()]
    gc.collect()
    writer.publish(TOPIC, type="chunk", data=1)
    assert held[0].get(LONG).data == 1
    held[0].close()
    with pytest.warns(ResourceWarning, match="S2PubSub"):
        _drop(held)


def _drop(held: list[Any]) -> None:
    held.clear()
    gc.collect()


def test_callbacks_that_raise(pubsub: S2PubSub, caplog: pytest.LogCaptureFixture) -> None:
    """C30: what a callback raises is logged with its place, or given to the hook, and the next event follows."""

    def receive(event: Event) -> None:
        seen.append(event.index)
        if event.index == 1:
            raise SystemExit(3) if event.topic.endswith("exit") else ValueError("from the callback")

    for topic, hook in ((TOPIC, None), (f"{TOPIC}-exit", None), (TOPIC, [])):
        seen: list[int | None] = []
        caplog.clear()
        with pubsub.subscribe(topic, receive, on_error=None if hook is None else hook.append) as subscription:
            for number in range(4):
                pubsub.publish(topic, type="chunk", data=number)
            eventually(lambda seen=seen: len(seen) == 4)
            assert not subscription.closed
        logged = [record for record in caplog.records if record.levelno >= logging.ERROR]
        if hook is None:
            assert len(logged) == 1
            assert logged[0].exc_info is not None
            assert topic in logged[0].getMessage()
            assert "1" in logged[0].getMessage()
        else:
            assert logged == []
            assert [type(error) for error in hook] == [ValueError]
        pubsub.clear_topic(topic, strict=True)


def test_arguments_are_checked_before_anything(make_pubsub: MakePubSub) -> None:
    """Wrong arguments of the subscribe calls are TypeErrors and ValueErrors before any connection is made."""
    pubsub = make_pubsub(endpoints="http://127.0.0.1:9", access_token="test")  # nothing listens there
    wrong: list[tuple[type[Exception], Callable[[], object]]] = [
        (TypeError, lambda: pubsub.subscribe(TOPIC, 5)),  # type: ignore[arg-type]
        (ValueError, lambda: pubsub.subscribe(TOPIC, start="newest")),
        (TypeError, lambda: pubsub.subscribe(TOPIC, start=None)),  # type: ignore[arg-type]
        (TypeError, lambda: pubsub.subscribe(TOPIC, start=True)),
        (TypeError, lambda: pubsub.subscribe(TOPIC, start=1.0)),  # type: ignore[arg-type]
        (TypeError, lambda: pubsub.subscribe_from_offset(TOPIC, "0")),  # type: ignore[arg-type]
        (TypeError, lambda: pubsub.subscribe_from_offset(TOPIC, True)),
        (ValueError, lambda: pubsub.subscribe(TOPIC, group="workers")),
        (ValueError, lambda: pubsub.subscribe(TOPIC, batch=object())),
        (ValueError, lambda: pubsub.subscribe("")),
        (TypeError, lambda: pubsub.subscribe(TOPIC, timeout="1")),  # type: ignore[arg-type]
        (TypeError, lambda: pubsub.get_history(TOPIC, "0")),  # type: ignore[arg-type]
        (TypeError, lambda: pubsub.iter_history(TOPIC, 1.5)),  # type: ignore[arg-type]
    ]
    for kind, call in wrong:
        with pytest.raises(kind):
            call()
    assert not any(thread.name == "s2pubsub-io" for thread in threading.enumerate())
