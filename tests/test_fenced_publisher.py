"""Publishers fenced by a lease: renewals among the events, the loss of the lease, other topics."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from s2pubsub import ClosedError, LeaseLostError, S2PubSub
from s2pubsub.fence import decode_token
from s2pubsub.runtime.deadline import Deadline
from tests.faults import FaultProxy
from tests.faults.rules import APPEND_SESSION
from tests.raw import Streams
from tests.waiting import LONG, eventually

KEY = "resource\0thread"


def test_renewals_travel_among_the_events(pubsub: S2PubSub, streams: Streams) -> None:
    """The lease renews in-band while events flow: no event is refused, and fences lie between them in the log."""
    leases = pubsub.leases
    topic = leases.thread_topic(KEY)
    with leases.hold(KEY, "alice", 10.0) as lease, pubsub.publisher(topic, lease=lease) as publisher:
        stop = threading.Event()

        def renew() -> None:
            while not stop.is_set():
                lease.renew()

        renewer = threading.Thread(target=renew)
        renewer.start()
        futures = [publisher.publish(type="n", data=number) for number in range(1000)]
        publisher.flush()
        stop.set()
        renewer.join(LONG)
        indices = [future.result(0).index for future in futures]
        assert lease.token == streams.fences(topic, pubsub.tail(topic))[-1]
        assert not lease.closed
    assert indices == sorted(indices)
    events = pubsub.get_history(topic)
    assert [event.data for event in events] == list(range(1000))
    assert [event.index for event in events] == indices
    assert leases.get_lease_owner(KEY) is None


@pytest.mark.limit(40)
def test_renewals_survive_cuts(make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy) -> None:
    """With acknowledgements of events and fences dropped, what is stored is found by the token that is in force."""
    pubsub = make_pubsub(endpoints=proxy.url)
    leases = pubsub.leases
    topic = leases.thread_topic(KEY)
    with leases.hold(KEY, "alice", 30.0) as lease, pubsub.publisher(topic, lease=lease) as publisher:
        for number in range(60):
            publisher.publish(type="n", data=number)
            if number % 10 == 5:
                renewing = threading.Thread(target=lease.renew)
                renewing.start()
                publisher.publish(type="n", data=1000 + number)
                if number % 20 == 5:
                    proxy.lose()
                else:
                    proxy.lose_response(APPEND_SESSION)
                proxy.cut()
                renewing.join(LONG)
        publisher.flush()
        assert not lease.closed
        stored = [event.data for event in pubsub.get_history(topic)]
        expected = [n for number in range(60) for n in ([number, 1000 + number] if number % 10 == 5 else [number])]
        assert list(dict.fromkeys(stored)) == expected


def test_a_lost_lease_fails_what_is_pending(make_pubsub: Callable[..., S2PubSub]) -> None:
    """When somebody else has the token in force, pending and later events fail with LeaseLostError, not stored."""
    mine, other = make_pubsub(), make_pubsub()
    topic = mine.leases.thread_topic(KEY)
    with mine.leases.hold(KEY, "alice", 30.0) as lease:
        publisher = mine.publisher(topic, lease=lease)
        publisher.publish(type="n", data=0).result(LONG)
        # as if alice's time had run out without her noticing
        stream = mine._engine.settings.stream_prefix + topic
        other._engine.store.fence(stream, "stolen", lease.token, Deadline.after(LONG))
        error = publisher.publish(type="n", data=1).exception(LONG)
        assert isinstance(error, LeaseLostError)
        assert error.outcome == "not_stored"
        assert lease.lost.wait(LONG)
        with pytest.raises(LeaseLostError):
            publisher.publish(type="n", data=2)
        publisher.close()
    assert [event.data for event in mine.get_history(topic)] == [0]


def test_giving_the_lease_up_ends_the_publisher(pubsub: S2PubSub) -> None:
    """Release lets pending events be stored first; after it the publisher is closed, and a new holder may begin."""
    leases = pubsub.leases
    topic = leases.thread_topic(KEY)
    lease = leases.hold(KEY, "alice", 30.0)
    publisher = pubsub.publisher(topic, lease=lease)
    futures = [publisher.publish(type="n", data=number) for number in range(100)]
    lease.close()
    assert all(future.result(LONG) for future in futures)
    with pytest.raises(ClosedError, match="released"):
        publisher.publish(type="n", data=100)
    publisher.close()
    assert leases.get_lease_owner(KEY) is None
    with leases.hold(KEY, "bob", 30.0) as next_lease, pubsub.publisher(topic, lease=next_lease) as second:
        second.publish(type="n", data=100).result(LONG)
        next_lease.transfer("carol")
        with pytest.raises(ClosedError):
            second.publish(type="n", data=101)
    assert leases.get_lease_owner(KEY) == "carol"
    assert [event.data for event in pubsub.get_history(topic)] == list(range(101))


def test_the_lease_renews_by_itself_when_the_publisher_is_closed(pubsub: S2PubSub) -> None:
    """A closed publisher gives the writing of tokens back, and another one can be opened."""
    leases = pubsub.leases
    topic = leases.thread_topic(KEY)
    with leases.hold(KEY, "alice", 30.0) as lease:
        for number in range(2):
            with pubsub.publisher(topic, lease=lease) as publisher:
                with pytest.raises(ValueError, match="has a publisher"):
                    pubsub.publisher(topic, lease=lease)
                publisher.publish(type="n", data=number).result(LONG)
            eventually(lambda: pubsub.stats().publishers == 0 and lease._holding._on_over is None)
            before = lease.token
            lease.renew()
            assert lease.token != before


def test_a_renewal_elsewhere_by_the_same_owner_is_adopted(pubsub: S2PubSub) -> None:
    """A token that the same owner wrote past the publisher serves as well: the event is stored, the lease is kept."""
    leases = pubsub.leases
    topic = leases.thread_topic(KEY)
    with leases.hold(KEY, "alice", 30.0) as lease, pubsub.publisher(topic, lease=lease) as publisher:
        publisher.publish(type="n", data=0).result(LONG)
        assert leases.renew_lease(KEY, "alice", 30.0)
        publisher.publish(type="n", data=1).result(LONG)
        lease.renew()
        publisher.publish(type="n", data=2).result(LONG)
        assert not lease.closed
    assert [event.data for event in pubsub.get_history(topic)] == [0, 1, 2]


def test_another_topic_is_fenced_by_the_later_lease(make_pubsub: Callable[..., S2PubSub]) -> None:
    """On an own topic the next holder's publisher ends the former one's, which cannot come back."""
    first, second = make_pubsub(), make_pubsub()
    topic = "agent.notes.1"
    alice = first.leases.hold(KEY, "alice", 30.0)
    publisher = first.publisher(topic, lease=alice)
    publisher.publish(type="n", data=0).result(LONG)
    token = decode_token(alice.token)
    assert token is not None
    assert second.leases.transfer_lease(KEY, "alice", "bob", 60.0)  # past alice, who does not know yet
    with second.leases.hold(KEY, "bob", 60.0) as bob, second.publisher(topic, lease=bob) as successor:
        successor.publish(type="n", data=1).result(LONG)
        error = publisher.publish(type="n", data=-1).exception(LONG)
        assert isinstance(error, LeaseLostError)
        with pytest.raises(LeaseLostError):
            publisher.close()
        with pytest.raises((LeaseLostError, ClosedError)):
            first.publisher(topic, lease=alice)
    alice.close()
    assert [event.data for event in first.get_history(topic)] == [0, 1]


def test_arguments_are_checked(pubsub: S2PubSub) -> None:
    """Topics of runs, exactly_once beside a lease, foreign objects and leases that are over are refused."""
    with pubsub.leases.hold(KEY, "alice", 30.0) as lease:
        for topic in ("agent.stream.run", "agent.control.run"):
            with pytest.raises(ValueError, match="belongs to a run"):
                pubsub.publisher(topic, lease=lease)
        with pytest.raises(ValueError, match="not both"):
            pubsub.publisher("agent.notes", lease=lease, exactly_once=True)
        with pytest.raises(TypeError, match="lease"):
            pubsub.publisher("agent.notes", lease=KEY)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="first_index"):
            pubsub.publisher("agent.notes", first_index=0)
    with pytest.raises(ClosedError):
        pubsub.publisher(pubsub.leases.thread_topic(KEY), lease=lease)
