"""What ``stats()`` counts, each counter against a fact known otherwise."""

from __future__ import annotations

import threading

import attrs
import pytest

from s2pubsub import ClosedError, Event, S2PubSub, Stats
from s2pubsub.runs import Runs
from tests.faults import APPEND_SESSION, READ_SESSION, FaultProxy
from tests.servers import ON_LITE
from tests.topics import MakePubSub, fill, indices, on_threads
from tests.waiting import LONG, eventually

TOPIC = "agent.thread-stream.stats"


def test_a_new_client_counts_nothing(pubsub: S2PubSub) -> None:
    """All is zero before the first use, and again what is open after the close."""
    assert pubsub.stats() == Stats()
    events = pubsub.subscribe(TOPIC)
    publisher = pubsub.publisher(TOPIC)
    pubsub.close()
    assert events.closed
    assert publisher.closed
    found = attrs.asdict(pubsub.stats())
    assert {name: found[name] for name in ("subscriptions", "queued", "publishers", "in_flight", "leases")} == {
        "subscriptions": 0, "queued": 0, "publishers": 0, "in_flight": 0, "leases": 0,
    }  # fmt: skip


def test_open_parts(pubsub: S2PubSub) -> None:
    """Subscriptions with and without callbacks, publishers, leases, and runs by theirs, count while they are open."""
    with pubsub.subscribe(TOPIC) as first:
        pubsub.subscribe(TOPIC, print)
        pubsub.subscribe(TOPIC, print)  # the same one
        pubsub.subscribe("a local topic", print)  # not on the server
        assert pubsub.stats().subscriptions == 2
        with pubsub.publisher(TOPIC), pubsub.publisher(TOPIC), pubsub.leases.hold("stats", "owner", 30):
            found = pubsub.stats()
            assert (found.publishers, found.leases) == (2, 1)
        first.close()
        eventually(lambda: pubsub.stats().subscriptions == 1)
    pubsub.unsubscribe(TOPIC, print)
    found = pubsub.stats()
    assert (found.subscriptions, found.publishers, found.leases) == (0, 0, 0)
    with Runs(pubsub, cleanup_timeout=0).start() as run:
        assert pubsub.stats().publishers == 1
        run.text("a")
    eventually(lambda: pubsub.stats().publishers == 0)


def test_published_and_delivered(pubsub: S2PubSub) -> None:
    """Each stored event is counted once, however it was published, from many threads, too; each received one as well.
    What was refused or stayed in the process does not count.
    """
    on_threads(8, lambda number: [pubsub.publish(TOPIC, type="t", data=n) for n in range(10)])
    fill(pubsub, TOPIC, 50)
    with pubsub.publisher(TOPIC) as publisher:
        for number in range(30):
            publisher.publish(type="t", data=number)
    pubsub.publish(TOPIC, type="t", data=1, local_only=True)
    pubsub.publish("jobs", type="t", data=1)
    with pytest.raises(ValueError, match="data"):
        pubsub.publish(TOPIC, type="t", data=float("nan"))
    assert pubsub.stats().published == pubsub.tail(TOPIC) == 160
    with pubsub.subscribe_with_replay(TOPIC) as events:
        indices(events, 160)
        assert pubsub.stats().delivered == 160


def test_queued(make_pubsub: MakePubSub) -> None:
    """What an iterator has not taken, and what stands behind the event that a callback is busy with, is queued."""
    pubsub = make_pubsub()
    fill(pubsub, TOPIC, 20)
    with pubsub.subscribe_with_replay(TOPIC) as events:
        eventually(lambda: pubsub.stats().queued == 20)
        indices(events, 5)
        assert pubsub.stats().queued == 15
    entered, go = threading.Semaphore(0), threading.Semaphore(0)

    def handle(event: Event) -> None:
        entered.release()
        go.acquire(timeout=LONG)

    with pubsub.subscribe_with_replay(TOPIC, handle):
        for left in (20, 19, 18):
            assert entered.acquire(timeout=LONG)
            eventually(lambda left=left: pubsub.stats().queued == left)
            go.release()
        go.release(20)
        eventually(lambda: pubsub.stats().queued == 0)


@ON_LITE
def test_in_flight(through: S2PubSub, proxy: FaultProxy) -> None:
    """What a publisher has taken counts until it is acknowledged."""
    with through.publisher(TOPIC) as publisher:
        publisher.publish(type="t", data=0).result(LONG)
        assert through.stats().in_flight == 0
        proxy.stall(scope="all")
        for number in range(7):
            publisher.publish(type="t", data=number)
        assert through.stats().in_flight == publisher.in_flight == 7
        proxy.resume()
        publisher.flush(LONG)
        assert through.stats().in_flight == 0


@ON_LITE
def test_reconnects(through: S2PubSub, proxy: FaultProxy) -> None:
    """Each attempt of a subscription or publisher to go on counts; a refusal, which ends it, does not."""
    with through.subscribe(TOPIC) as events:
        through.publish(TOPIC, type="t", data=0)
        indices(events, 1)
        for count in (1, 2, 3):
            proxy.finish_session(READ_SESSION)
            proxy.cut()
            through.publish(TOPIC, type="t", data=count)
            indices(events, 1)
        before = through.stats().reconnects
        assert 3 <= before <= 8
        proxy.answer(READ_SESSION, status=403, code="permission_denied", times=None)
        proxy.cut()
        with pytest.raises(Exception, match="403"):
            events.get(LONG)
        assert through.stats().reconnects == before + 1  # the cut alone
    with through.publisher(TOPIC) as publisher:
        publisher.publish(type="t", data=1).result(LONG)
        before = through.stats().reconnects
        proxy.cut_on(APPEND_SESSION)
        proxy.cut()
        publisher.publish(type="t", data=2).result(LONG)
        assert through.stats().reconnects > before


def test_parked(make_pubsub: MakePubSub) -> None:
    """A consumer that takes nothing parks its session, once."""
    pubsub = make_pubsub(queue_size=2)
    fill(pubsub, TOPIC, 3000, size=1000)
    with pubsub.subscribe_with_replay(TOPIC) as events:
        eventually(lambda: pubsub.stats().parked == 1)
        assert indices(events, 3000) == list(range(3000))
        assert pubsub.stats().parked >= 1


@ON_LITE
def test_replaced_clients(through: S2PubSub, proxy: FaultProxy) -> None:
    """A client whose connection went silent is replaced, and counted."""
    through.publish(TOPIC, type="t", data=0)
    assert through.stats().replaced_clients == 0
    proxy.stall()
    with pytest.raises(TimeoutError):
        through.publish(TOPIC, type="t", data=1, timeout=0.5)
    through.publish(TOPIC, type="t", data=2)
    assert through.stats().replaced_clients == 1


def test_a_closed_client_still_tells(pubsub: S2PubSub) -> None:
    """``stats()`` raises nothing after the close, and its totals stay."""
    fill(pubsub, TOPIC, 3)
    pubsub.close()
    assert pubsub.stats().published == 3
    with pytest.raises(ClosedError):
        pubsub.publish(TOPIC, type="t", data=1)
