"""Callbacks: what they raise, closing from inside them, none after a close, one session for one callback."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from s2pubsub import ClosedError, Event, S2PubSub, Subscription
from tests.faults import READ_SESSION, FaultProxy
from tests.servers import ON_LITE
from tests.waiting import LONG, eventually

pytestmark = ON_LITE

TOPIC = "agent.stream.run-7"
CLOSING = 2.0
"""Seconds within which a close must be done with."""


def publish(pubsub: S2PubSub, count: int, topic: str = TOPIC) -> None:
    """Publish ``count`` numbered events."""
    pubsub.publish_many(topic, [{"type": "chunk", "data": n} for n in range(count)])


def subscription_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("s2pubsub-sub-")]


class Calls:
    """A callback that keeps what it was called with; ``then`` is called with each event."""

    def __init__(self, then: Callable[[Event], object] = lambda event: None) -> None:
        self.indices: list[int | None] = []
        self.then = then

    def __call__(self, event: Event) -> None:
        self.indices.append(event.index)
        self.then(event)

    def wait(self, count: int) -> list[int | None]:
        eventually(lambda: len(self.indices) >= count)
        return self.indices


# What a callback raises.


class Odd(BaseException):
    """Not even an Exception."""


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), Odd("odd")], ids=repr)
def test_what_a_callback_raises_reaches_the_hook(pubsub: S2PubSub, error: BaseException) -> None:
    """C30: an error in a callback goes to the hook with the event's index; the next events follow, the neighbour is
    untouched, and close is quick.
    """

    def fail(event: Event) -> None:
        if event.index == 2:
            raise error

    errors: list[BaseException] = []
    failing, healthy = Calls(fail), Calls()
    first = pubsub.subscribe(TOPIC, failing, on_error=errors.append)
    second = pubsub.subscribe(TOPIC, healthy)
    publish(pubsub, 5)
    assert failing.wait(5) == [0, 1, 2, 3, 4]
    assert healthy.wait(5) == [0, 1, 2, 3, 4]
    assert errors == [error]
    assert f"in the callback for event 2 of topic '{TOPIC}'" in error.__notes__
    assert not first.closed
    began = time.monotonic()
    for subscription in (first, second):
        subscription.close()
    pubsub.close()
    assert time.monotonic() - began < CLOSING


def test_what_a_callback_raises_is_logged(pubsub: S2PubSub, caplog: pytest.LogCaptureFixture) -> None:
    """C30: without a hook the error is logged with its traceback, the topic and the index."""

    def fail(event: Event) -> None:
        raise SystemExit(3) if event.index == 2 else ValueError(f"not {event.index}")

    failing = Calls(fail)
    with pubsub.subscribe(TOPIC, failing):
        publish(pubsub, 5)
        failing.wait(5)
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [TOPIC in record.getMessage() for record in errors] == [True] * 5
    assert f"event 2 of topic '{TOPIC}'" in errors[2].getMessage()
    assert errors[2].exc_info is not None
    assert errors[2].exc_info[0] is SystemExit


def test_a_hook_that_raises_is_logged_too(pubsub: S2PubSub, caplog: pytest.LogCaptureFixture) -> None:
    """C30: where the hook itself fails, both errors are in the log, and the next event follows."""

    def fail(event: Event) -> None:
        raise ValueError("the callback's")

    def hook(error: BaseException) -> None:
        raise SystemExit("the hook's") from None

    failing = Calls(fail)
    with pubsub.subscribe(TOPIC, failing, on_error=hook):
        publish(pubsub, 2)
        failing.wait(2)
    assert caplog.text.count("ValueError: the callback's") == 2
    assert caplog.text.count("SystemExit: the hook's") == 2


def test_the_end_of_a_callback_subscription_is_reported(pubsub: S2PubSub, make_pubsub: Callable[..., S2PubSub]) -> None:
    """C30: the failure that ends the subscription reaches the same hook, and ``wait`` raises it every time."""
    errors: list[BaseException] = []
    ended = threading.Event()

    def hook(error: BaseException) -> None:
        errors.append(error)
        ended.set()

    publish(pubsub, 3)
    pubsub.publish(TOPIC, type="chunk", data=3)
    subscription = pubsub.subscribe_from_offset(TOPIC, 0, lambda event: None, on_error=hook)
    eventually(lambda: subscription.next_index == 4)
    make_pubsub().clear_topic(TOPIC, strict=True)
    assert ended.wait(LONG)
    assert [type(error).__name__ for error in errors] == ["TopicGoneError"]
    for _ in range(2):
        with pytest.raises(type(errors[0])):
            subscription.wait(LONG)
    assert subscription.closed


# Closing from inside.


def test_a_callback_closes_its_own_subscription(pubsub: S2PubSub) -> None:
    """C31: after the close inside event 3 there is no further call; the thread ends; a close outside is a no-op."""
    publish(pubsub, 10)

    def close(event: Event) -> None:
        if event.index == 3:
            holder[0].close()

    calls = Calls(close)
    holder: list[Subscription] = []
    gate = threading.Event()

    def gated(event: Event) -> None:
        assert gate.wait(LONG)
        calls(event)

    holder.append(pubsub.subscribe_with_replay(TOPIC, gated))
    gate.set()
    eventually(lambda: not subscription_threads(), CLOSING)
    assert calls.indices == [0, 1, 2, 3]
    began = time.monotonic()
    holder[0].close()
    pubsub.unsubscribe(TOPIC, gated)
    assert time.monotonic() - began < 0.1


def test_a_callback_unsubscribes_itself(pubsub: S2PubSub) -> None:
    """C31: ``unsubscribe`` from inside, and a new subscription of the same callback at once, both work."""
    publish(pubsub, 4)

    def again(event: Event) -> None:
        if event.index == 1 and len(calls.indices) == 2:
            pubsub.unsubscribe(TOPIC, calls)
            pubsub.subscribe_from_offset(TOPIC, 3, calls)

    calls = Calls(again)
    pubsub.subscribe_with_replay(TOPIC, calls)
    assert calls.wait(3) == [0, 1, 3]
    eventually(lambda: pubsub.stats().subscriptions == 1)


def test_a_callback_closes_the_client(pubsub: S2PubSub) -> None:
    """C31: closing the client from a callback raises nothing and stops all of its subscriptions."""
    publish(pubsub, 10)
    failures: list[BaseException] = []

    def close(event: Event) -> None:
        if event.index == 3:
            pubsub.close()
            with pytest.raises(ClosedError):
                pubsub.publish(TOPIC, type="late", data=None)

    calls, other = Calls(close), Calls()
    idle = pubsub.subscribe("agent.stream.idle")
    pubsub.subscribe("agent.stream.other", other)
    pubsub.subscribe_with_replay(TOPIC, calls, on_error=failures.append)
    calls.wait(4)
    eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("s2pubsub-")], CLOSING)
    assert calls.indices == [0, 1, 2, 3]
    assert failures == []
    assert list(idle) == []
    began = time.monotonic()
    pubsub.close()
    assert time.monotonic() - began < 0.1


@pytest.mark.parametrize("what", ["close", "unsubscribe", "clear_topic"])
def test_two_callbacks_close_each_other(pubsub: S2PubSub, what: str) -> None:
    """C31: two callbacks that end each other's subscription at the same moment do not wait for each other."""
    barrier = threading.Barrier(2)
    made: dict[str, Subscription] = {}
    calls: dict[str, Calls] = {}

    def end(topic: str) -> Callable[[Event], None]:
        def act(event: Event) -> None:
            if event.index == 1:
                barrier.wait(LONG)
                if what == "close":
                    made[topic].close()
                elif what == "unsubscribe":
                    pubsub.unsubscribe(topic, calls[topic])
                else:
                    pubsub.clear_topic(topic)
                barrier.wait(LONG)  # so that each has been told to end before it could be called again

        return act

    for topic, other in (("agent.stream.a", "agent.stream.b"), ("agent.stream.b", "agent.stream.a")):
        calls[topic] = Calls(end(other))
        made[topic] = pubsub.subscribe(topic, calls[topic])
    for topic in made:
        publish(pubsub, 10, topic)
    eventually(lambda: not subscription_threads(), CLOSING)
    assert {topic: c.indices for topic, c in calls.items()} == {topic: [0, 1] for topic in made}
    for subscription in made.values():
        subscription.close()


def test_a_callback_uses_the_client(pubsub: S2PubSub) -> None:
    """C31: publishing, history and subscribing from inside a callback work."""
    seen: list[Event] = []

    def work(event: Event) -> None:
        if event.topic == TOPIC and event.data < 3:
            pubsub.publish("agent.stream.answers", type="answer", data=event.data)
            assert [e.data for e in pubsub.get_history("agent.stream.answers")][-1] == event.data

    answers = pubsub.subscribe("agent.stream.answers", seen.append)
    with pubsub.subscribe(TOPIC, work), answers:
        publish(pubsub, 3)
        eventually(lambda: len(seen) == 3)


# No call after close.


class Gate:
    """A callback that notes each start; after ``shut`` a start is a failure."""

    def __init__(self) -> None:
        self.is_shut = False
        self.started = 0
        self.late = 0

    def __call__(self, event: Event) -> None:
        if self.is_shut:
            self.late += 1
        self.started += 1


def rounds_of_closing(pubsub: S2PubSub, rounds: int, seed: int) -> None:
    chance = random.Random(seed)
    publish(pubsub, 300)
    busy = threading.Event()

    def keep_busy() -> None:
        while not busy.is_set():
            pubsub.publish(TOPIC, type="chunk", data=0)

    publisher = threading.Thread(target=keep_busy)
    publisher.start()
    try:
        for number in range(rounds):
            gate = Gate()
            subscription = pubsub.subscribe_from_offset(TOPIC, 0, gate)
            wanted = chance.randrange(0, 200)
            eventually(lambda gate=gate, wanted=wanted: gate.started >= wanted)
            if number % 2:
                subscription.close()
            else:
                pubsub.unsubscribe(TOPIC, gate)
            gate.is_shut = True
            assert subscription.ended
            assert gate.late == 0
    finally:
        busy.set()
        publisher.join(LONG)
    assert not subscription_threads()


@pytest.mark.limit(60)
@pytest.mark.usefixtures("switch_often")
def test_no_callback_after_close(pubsub: S2PubSub) -> None:
    """C36: once close has returned, no callback starts; each subscription was open and busy."""
    rounds_of_closing(pubsub, 40, seed=1)


@pytest.mark.stress
@pytest.mark.slow
@pytest.mark.limit(600)
@pytest.mark.usefixtures("switch_often")
def test_no_callback_after_close_for_long(pubsub: S2PubSub) -> None:
    """C36: the same, a thousand times."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rounds_of_closing(pubsub, 1000, seed)


@pytest.mark.parametrize("closing", ["close", "stop", "client"])
def test_none_in_the_rest_of_a_batch(pubsub: S2PubSub, closing: str) -> None:
    """C36: a callback that closes in the middle of a batch of 50 is not called for the rest of it."""
    publish(pubsub, 50)
    made: list[Subscription] = []
    ready = threading.Event()

    def end(event: Event) -> None:
        assert ready.wait(LONG)
        if event.index == 20:
            {"close": made[0].close, "stop": made[0].stop, "client": pubsub.close}[closing]()

    calls = Calls(end)
    made.append(pubsub.subscribe_with_replay(TOPIC, calls))
    ready.set()
    eventually(lambda: not subscription_threads(), CLOSING)
    assert calls.indices == list(range(21))
    assert made[0].next_index == 21


def test_close_waits_for_a_running_callback(pubsub: S2PubSub) -> None:
    """C36: close from outside returns after the callback that runs; a second close meanwhile waits as well."""
    entered, leave = threading.Event(), threading.Event()
    log: list[str] = []

    def slow(event: Event) -> None:
        entered.set()
        assert leave.wait(LONG)
        log.append("callback ended")

    subscription = pubsub.subscribe(TOPIC, slow)
    publish(pubsub, 2)
    assert entered.wait(LONG)

    def close(name: str, action: Callable[[], object]) -> threading.Thread:
        def act() -> None:
            action()
            log.append(name)

        thread = threading.Thread(target=act)
        thread.start()
        return thread

    closers = [close("closed", subscription.close)]
    eventually(lambda: subscription.closed)
    closers += [close("closed", subscription.close), close("closed", pubsub.close), close("closed", pubsub.close)]
    for closer in closers:
        closer.join(0.05)
    assert log == []
    leave.set()
    for closer in closers:
        closer.join(LONG)
    assert log == ["callback ended", *["closed"] * 4]


def test_a_callback_that_stays_is_named(pubsub: S2PubSub) -> None:
    """A callback that does not return in time does not hold up close: it warns with the thread's name."""
    entered, leave = threading.Event(), threading.Event()

    def stuck(event: Event) -> None:
        entered.set()
        leave.wait(LONG)

    subscription = pubsub.subscribe(TOPIC, stuck)
    publish(pubsub, 1)
    assert entered.wait(LONG)
    try:
        with pytest.warns(ResourceWarning, match=f"s2pubsub-sub-{TOPIC}"):
            subscription.close(timeout=0.1)
    finally:
        leave.set()
    subscription.close()
    assert subscription.ended


# One session for one callback.


def test_one_callback_is_one_session(make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy, lite_server: Any) -> None:
    """C37: eight threads subscribe one callback at once: one session, each event once, none after unsubscribe."""
    pubsub = make_pubsub(endpoints=proxy.url)
    calls = Calls()
    barrier = threading.Barrier(8)
    made: list[Subscription] = []

    def subscribe() -> None:
        barrier.wait(LONG)
        made.append(pubsub.subscribe(TOPIC, calls))

    threads = [threading.Thread(target=subscribe) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert len(made) == 8
    assert len({id(subscription) for subscription in made}) == 1
    publish(pubsub, 10)
    assert calls.wait(10) == list(range(10))
    pubsub.unsubscribe(TOPIC, calls)
    assert not subscription_threads()
    publish(pubsub, 10)
    eventually(lambda: all(seen.finished for seen in proxy.seen(READ_SESSION)))
    assert len(proxy.seen(READ_SESSION)) == 1
    assert calls.indices == list(range(10))
    pubsub.unsubscribe(TOPIC, calls)


class Bound:
    """A method is a new object at each access, and yet one callback."""

    def __init__(self) -> None:
        self.indices: list[int | None] = []

    def take(self, event: Event) -> None:
        self.indices.append(event.index)


def test_bound_methods_are_one_callback(pubsub: S2PubSub) -> None:
    """C37: the same method of the same object is the same callback; of another object it is another one."""
    one, two = Bound(), Bound()
    first = pubsub.subscribe(TOPIC, one.take)
    assert pubsub.subscribe(TOPIC, one.take) is first
    assert pubsub.subscribe(TOPIC, two.take) is not first
    publish(pubsub, 3)
    eventually(lambda: len(one.indices) == len(two.indices) == 3)
    pubsub.unsubscribe(TOPIC, one.take)
    publish(pubsub, 3)
    eventually(lambda: len(two.indices) == 6)
    assert one.indices == [0, 1, 2]


def test_callbacks_and_topics_are_independent(pubsub: S2PubSub) -> None:
    """C37: two callbacks on a topic, and one on two topics, are four subscriptions; ending one leaves the others."""
    a, b = Calls(), Calls()
    topics = "agent.stream.a", "agent.stream.b"
    made = {(topic, calls): pubsub.subscribe(topic, calls) for topic in topics for calls in (a, b)}
    assert len({id(subscription) for subscription in made.values()}) == 4
    assert pubsub.stats().subscriptions == 4
    pubsub.unsubscribe(topics[0], a)
    for topic in topics:
        publish(pubsub, 5, topic)
    eventually(lambda: (len(a.indices), len(b.indices)) == (5, 10))


def test_a_callback_may_come_again(pubsub: S2PubSub) -> None:
    """C37: after unsubscribe, and after its subscription has failed, the same callback is a new subscription."""
    calls = Calls()
    for round_ in range(3):
        subscription = pubsub.subscribe(TOPIC, calls)
        publish(pubsub, 1)
        calls.wait(round_ + 1)
        if round_ == 1:
            subscription.close()
        else:
            pubsub.unsubscribe(TOPIC, calls)
    assert calls.indices == [0, 1, 2]
    assert pubsub.stats().subscriptions == 0


@pytest.mark.limit(60)
@pytest.mark.usefixtures("switch_often")
def test_subscribing_and_unsubscribing_at_once(pubsub: S2PubSub) -> None:
    """C37: threads that subscribe and unsubscribe one callback in a race never leave more than one subscription."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    calls = Calls()
    pubsub.publish(TOPIC, type="first", data=0)

    def work(chance: random.Random) -> None:
        for _ in range(25):
            if chance.random() < 0.5:
                pubsub.subscribe(TOPIC, calls)
            else:
                pubsub.unsubscribe(TOPIC, calls)

    threads = [threading.Thread(target=work, args=(random.Random(seed + n),)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG * 3)
    pubsub.subscribe(TOPIC, calls)
    calls.indices.clear()
    index = pubsub.publish(TOPIC, type="only", data=1).index
    eventually(lambda: index in calls.indices)
    eventually(lambda: len(subscription_threads()) == 1)
    assert calls.indices.count(index) == 1
    pubsub.unsubscribe(TOPIC, calls)
    assert pubsub.stats().subscriptions == 0
