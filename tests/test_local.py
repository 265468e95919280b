"""The local transport: fan-out, copies, order, errors of callbacks, closing, full queues, forks and leaks."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from s2pubsub import ClosedError, EncodeError, Event, LocalPubSub, OperationTimeoutError
from s2pubsub.transport import Transport
from tests.waiting import LONG, eventually

HERE = "jobs"


@pytest.fixture
def local() -> Iterator[LocalPubSub]:
    with LocalPubSub() as pubsub:
        yield pubsub


@pytest.fixture
def switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def publish(pubsub: LocalPubSub, numbers: Any, topic: str = HERE) -> list[Event]:
    return [pubsub.publish(topic, type="job", data={"n": n, "list": [n]}) for n in numbers]


def numbers(events: list[Event]) -> list[int]:
    return [event.data["n"] for event in events]


def local_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("s2pubsub-local")]


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
    """Local events pass the same strict codec: what would come back different is refused."""
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


# Closing.


@pytest.mark.parametrize("close", ["subscription", "client", "unsubscribe", "clear"])
def test_closing_from_inside_a_callback(local, close):
    """C31: no deadlock, no callback after the one that closes, the thread ends, a close from outside returns at once."""
    calls: list[Event] = []

    def callback(event: Event) -> None:
        calls.append(event)
        if event.data["n"] == 3:
            if close == "subscription":
                subscription.close()
            elif close == "client":
                local.close()
            elif close == "unsubscribe":
                local.unsubscribe(HERE, callback)
            else:
                local.clear_topic(HERE)

    entered = threading.Event()
    subscription = local.subscribe(HERE, callback)
    other = local.subscribe("other", lambda event: entered.wait(LONG))
    try:
        publish(local, range(10))
    except ClosedError:
        assert close == "client"
    eventually(lambda: subscription.closed)
    entered.set()
    subscription.wait(LONG)
    assert numbers(calls) == [0, 1, 2, 3]
    eventually(lambda: len(local_threads()) == (0 if close == "client" else 1))
    subscription.close()
    assert other.closed is (close == "client")


def test_callbacks_that_close_each_other(local):
    """C31: two callbacks that close each other's subscription at the same moment do not deadlock."""
    barrier = threading.Barrier(2)

    def close(other: list[Any]) -> Any:
        def callback(event: Event) -> None:
            barrier.wait(LONG)
            other[0].close()

        return callback

    first: list[Any] = []
    second: list[Any] = []
    first.append(local.subscribe(HERE, close(second)))
    second.append(local.subscribe(HERE, close(first)))
    publish(local, [1])
    first[0].wait(LONG)
    second[0].wait(LONG)


def test_close_many_times_from_many_threads(local, switch_often):
    """C34: eight closes at the same moment, in half of the rounds while the topic is being cleared, all return."""
    errors: list[BaseException] = []

    def close(subscription: Any, barrier: threading.Barrier) -> None:
        try:
            barrier.wait(LONG)
            subscription.close()
        except BaseException as error:
            errors.append(error)

    for n in range(100):
        subscription = local.subscribe(HERE, lambda event: None) if n % 4 < 2 else local.subscribe(HERE)
        barrier = threading.Barrier(9)
        threads = [threading.Thread(target=close, args=(subscription, barrier)) for _ in range(8)]
        for thread in threads:
            thread.start()
        publish(local, range(3))
        barrier.wait(LONG)
        if n % 2:
            local.clear_topic(HERE)
        for thread in threads:
            thread.join(LONG)
            assert not thread.is_alive()
        subscription.wait(LONG)
        assert subscription.closed
    assert errors == []


@pytest.mark.parametrize("group", [None, "g"])
def test_no_callback_starts_after_close_has_returned(local, switch_often, group):
    """C36: on a busy topic no callback starts after ``close`` has returned; close waits for a running one."""
    running = threading.Event()
    stop = threading.Event()
    late: list[Event] = []

    def busy() -> None:
        while not stop.is_set():
            local.publish(HERE, type="job", data=0)

    publisher = threading.Thread(target=busy)
    publisher.start()
    try:
        for _ in range(150):
            closed: list[bool] = []
            running.clear()

            def callback(event: Event, closed: list[bool] = closed) -> None:
                running.set()
                if closed:
                    late.append(event)

            subscription = local.subscribe(HERE, callback, group=group)
            assert running.wait(LONG)
            subscription.close()
            closed.append(True)
            subscription.wait(0)
    finally:
        stop.set()
        publisher.join(LONG)
    assert late == []


def test_iteration_ends_quietly_at_close(local):
    """After ``close`` a waiting ``for`` ends, ``get`` raises ClosedError, and what was queued is gone."""
    got: list[Event] = []
    events = local.subscribe(HERE)
    reader = threading.Thread(target=lambda: got.extend(events))
    reader.start()
    publish(local, [1])
    eventually(lambda: got)
    events.close()
    reader.join(LONG)
    assert not reader.is_alive()
    publish(local, [2])
    assert list(events) == []
    with pytest.raises(ClosedError):
        events.get(0)
    events.wait(0)


def test_clear_topic_ends_its_subscriptions_only(local):
    """Clearing a topic ends its subscriptions, quietly; others, and later ones on the same topic, work."""
    calls: list[Event] = []
    callback = local.subscribe(HERE, calls.append)
    member = local.subscribe(HERE, group="g")
    plain = local.subscribe(HERE)
    other = local.subscribe("other")
    local.clear_topic(HERE)
    local.clear_topic("never heard of")
    assert callback.closed
    assert member.closed
    assert plain.closed
    assert list(plain) == list(member) == []
    callback.wait(LONG)
    assert not other.closed
    with local.subscribe(HERE) as again:
        publish(local, [1])
        assert again.get(LONG).data["n"] == 1
    assert calls == []
    other.close()


def test_after_close_everything_raises(local):
    """C39: publish, subscribe and leases raise ClosedError; a second close is silent."""
    subscription = local.subscribe(HERE)
    local.close()
    local.close()
    assert local.closed
    assert subscription.closed
    for call in (
        lambda: local.publish(HERE, type="job", data=1),
        lambda: local.publish_many(HERE, [{"type": "job", "data": 1}]),
        lambda: local.subscribe(HERE),
        lambda: local.subscribe(HERE, print, group="g"),
        lambda: local.get_history(HERE),
        lambda: local.leases.acquire_lease("k", "me", 1),
    ):
        with pytest.raises(ClosedError):
            call()
    local.flush(0)
    local.unsubscribe(HERE, print)
    local.clear_topic(HERE)


def test_close_says_which_thread_stays():
    """A callback that does not return costs ``close`` its timeout only, and the warning names the thread."""
    local = LocalPubSub()
    release = threading.Event()
    entered = threading.Event()

    def stuck(event: Event) -> None:
        entered.set()
        release.wait(LONG)

    local.subscribe(HERE, stuck)
    publish(local, range(2))
    assert entered.wait(LONG)
    with pytest.warns(ResourceWarning, match="s2pubsub-local-jobs"):
        local.close(timeout=0.05)
    release.set()
    eventually(lambda: not local_threads())


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
            gc.collect()
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


# Threads, arguments, drops, forks.


def test_no_thread_before_the_first_callback():
    """Making one, publishing and iterating start no thread; each callback has one, named after its topic."""
    with LocalPubSub() as local:
        publish(local, [1])
        with local.subscribe(HERE):
            assert local_threads() == []
        local.subscribe(HERE, print, group="g")
        assert local_threads() == ["s2pubsub-local-jobs"]
    assert local_threads() == []


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"max_attempts": 0}, ValueError),
        ({"max_attempts": True}, TypeError),
        ({"retry_pause": None}, TypeError),
        ({"retry_pause": -1}, ValueError),
        ({"handling_limit": 0}, ValueError),
        ({"handling_limit": "1"}, TypeError),
        ({"queue_size": None}, TypeError),
        ({"queue_bytes": 0}, ValueError),
    ],
)
def test_settings_are_checked(settings, error):
    """C72: a setting of a wrong type or value raises an error that names it."""
    with pytest.raises(error, match=next(iter(settings))):
        LocalPubSub(**settings)


def test_arguments_are_checked(local):
    """C72: topics, callbacks, groups, starts, batches and timeouts of a wrong type are refused with their name."""
    for arguments, error, name in (
        (("",), ValueError, "topic"),
        ((5,), TypeError, "topic"),
        ((HERE, "no callable"), TypeError, "callback"),
    ):
        with pytest.raises(error, match=name):
            local.subscribe(*arguments)
    for keywords, error, name in (
        ({"group": ""}, TypeError, "group"),
        ({"start": True}, TypeError, "start"),
        ({"start": "first"}, ValueError, "start"),
        ({"batch": {"max_size": 3}}, TypeError, "batch"),
        ({"timeout": "1"}, TypeError, "timeout"),
    ):
        with pytest.raises(error, match=name):
            local.subscribe(HERE, print, **keywords)
    with pytest.raises(TypeError, match="offset"):
        local.subscribe_from_offset(HERE, "5")
    subscription = local.subscribe(HERE, print)
    with pytest.raises(TypeError, match="iterated"):
        next(subscription)
    assert subscription.ack(local.publish("other", type="job", data=1))


def test_a_dropped_iterator_leaves_its_topic(local):
    """An iterator that nobody refers to any more complains, and costs the topic nothing."""
    events: Any = local.subscribe(HERE)
    publish(local, [1])
    with pytest.warns(ResourceWarning, match="unclosed <LocalSubscription to 'jobs', open>"):
        events = None  # noqa: F841
        gc.collect()
    publish(local, [2])
    assert local._topics.all() == []


def test_a_dropped_transport_ends_its_threads():
    """A transport that nobody refers to any more complains and ends the threads of its callbacks."""
    local: Any = LocalPubSub()
    local.subscribe(HERE, print)
    with pytest.warns(ResourceWarning, match="unclosed <LocalPubSub"):
        local = None
        gc.collect()
    eventually(lambda: not local_threads())


def test_many_topics_leave_nothing(local):
    """C38: two rounds of 300 topics with callbacks, groups and iterators leave no thread and no topic behind."""
    for _ in range(2):
        for n in range(300):
            topic = f"topic-{n}"
            with local.subscribe(topic) as plain, local.subscribe(topic, group="g") as member:
                handle = local.subscribe(topic, lambda event: None)
                publish(local, [n], topic)
                assert plain.get(LONG).data["n"] == n
                member.ack(member.get(LONG))
                handle.close()
        publish(local, [0])
        assert local._topics.all() == []
        assert local._topics.callbacks == {}
        assert local_threads() == []


def test_a_forked_child_starts_anew(local):
    """C40, C41: in the child inherited subscriptions raise ClosedError, new ones work; the parent's are untouched."""
    inherited = local.subscribe(HERE)
    publish(local, [1])
    calls: list[Event] = []
    callback = local.subscribe(HERE, calls.append)
    lease = local.leases.hold("key", "me", 10)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(ClosedError, match="fork"):
                next(inherited)
            inherited.close()
            callback.wait(0)
            callback.close()
            with pytest.raises(ClosedError, match="fork"):
                lease.check()
            assert lease.lost.is_set()
            assert local.leases.acquire_lease("key", "you", 1).acquired
            with local.subscribe(HERE) as events:
                publish(local, [2])
                assert numbers([events.get(LONG)]) == [2]
            again: list[Event] = []
            local.subscribe(HERE, again.append)
            publish(local, [3])
            local.flush(LONG)
            assert numbers(again) == [3]
            local.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    publish(local, [4])
    assert numbers([inherited.get(LONG), inherited.get(LONG)]) == [1, 4]
    local.flush(LONG)
    assert numbers(calls) == [4]
    lease.check()
    lease.close()
    inherited.close()


def test_a_signal_handler_may_close(local):
    """C47: a handler that closes the subscription which its own thread waits on ends the wait, whenever it comes."""

    def handler(signum: int, frame: Any) -> None:
        events.close()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        for n in range(50):
            events = local.subscribe(HERE)
            timer = threading.Timer(n * 1e-5, lambda: os.kill(os.getpid(), signal.SIGUSR1))
            timer.start()
            assert list(events) == []
            timer.join(LONG)
    finally:
        signal.signal(signal.SIGUSR1, before)
