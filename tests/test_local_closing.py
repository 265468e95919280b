"""Ends of the local transport: closing from anywhere, dropped handles, forks, signals, and what is left behind."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

from s2pubsub import ClosedError, Event, LocalPubSub
from tests.local_parts import HERE, local_threads, numbers, publish
from tests.waiting import LONG, eventually

# Closing.


@pytest.mark.parametrize("close", ["subscription", "client", "unsubscribe", "clear"])
def test_closing_from_inside_a_callback(local, close):
    """C31: no deadlock, no callback after the one that closes, the thread ends; a close from outside returns."""
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
        del events
    publish(local, [2])
    assert local._topics.all() == []


def test_a_dropped_transport_ends_its_threads():
    """A transport that nobody refers to any more complains and ends the threads of its callbacks."""
    local: Any = LocalPubSub()
    local.subscribe(HERE, print)
    with pytest.warns(ResourceWarning, match="unclosed <LocalPubSub"):
        del local
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

    def signal_often(pause: float, done: threading.Event) -> None:
        # More than once: CPython itself misses a signal that comes just before a thread begins to wait for a lock,
        # until the next one. A close that was missed by us would not be made up for by another.
        while not done.wait(pause):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
            pause = 0.05

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        for n in range(100):
            events = local.subscribe(HERE)
            done = threading.Event()
            signaller = threading.Thread(target=signal_often, args=(n * 1e-5, done))
            signaller.start()
            assert list(events) == []
            done.set()
            signaller.join(LONG)
    finally:
        signal.signal(signal.SIGUSR1, before)
