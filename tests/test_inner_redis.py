"""The contract of ``S2PubSub(inner=…)``, on two implementations: ``LocalPubSub`` and one on Redis pub/sub."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from s2pubsub import ClosedError, EncodeError, Event, LocalPubSub, S2PubSub
from s2pubsub.transport import Transport, TransportSubscription
from tests.redis_server import has_redis, start_redis
from tests.waiting import LONG

TOPIC = "jobs"
MISSING = "redis-server or the Python package redis is not installed: the second transport is not tested"


@pytest.fixture(scope="module")
def redis_port() -> Iterator[int]:
    """A Redis of the test run's own, in memory, on a free port."""
    if not has_redis():
        pytest.skip(MISSING)
    with start_redis() as port:
        yield port


@pytest.fixture(params=["local", "redis"])
def make_inner(request: pytest.FixtureRequest) -> Iterator[Callable[[], Any]]:
    """Make transports of each kind; closed after the test. All of them made for one test share their topics."""
    with ExitStack() as stack:
        if request.param == "local":
            shared = stack.enter_context(LocalPubSub())
            yield lambda: shared
            return
        port = request.getfixturevalue("redis_port")
        from tests.redis_transport import RedisTransport

        def make() -> Any:
            made = RedisTransport(port)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def inner(make_inner: Callable[[], Any]) -> Any:
    return make_inner()


@pytest.fixture
def make_client() -> Iterator[Callable[[Any], S2PubSub]]:
    """A client whose local topics are carried by the transport given; it never connects to S2."""
    with ExitStack() as stack:
        yield lambda inner: stack.enter_context(
            S2PubSub(basin="no-server", access_token="none", endpoints="http://127.0.0.1:9", inner=inner)
        )


def publish(pubsub: Any, numbers: Any) -> list[Event]:
    return [pubsub.publish(TOPIC, type="job", data={"n": n}, run_id="r") for n in numbers]


def numbers(events: list[Event]) -> list[int]:
    return [event.data["n"] for event in events]


def test_the_protocol(inner):
    """Both are transports by their methods alone, and typed as such."""
    assert isinstance(inner, Transport)
    carried: Transport = inner
    subscription: TransportSubscription = carried.subscribe(TOPIC)
    assert subscription.topic == TOPIC
    assert not subscription.closed
    subscription.close()
    assert subscription.closed


def test_what_is_no_transport_is_refused(make_client):
    """A class that lacks a method is refused with the method's name."""

    class Half:
        def publish(self) -> None: ...

    with pytest.raises(TypeError, match=r"inner.*Half.*subscribe"):
        make_client(Half())


def test_a_client_carries_its_local_topics_on_it(inner, make_client):
    """Publish, iterate, callbacks, history, unsubscribe, flush and clear of a client go through the transport."""
    pubsub = make_client(inner)
    called: list[Event] = []
    pubsub.subscribe(TOPIC, called.append)
    with pubsub.subscribe(TOPIC) as events:
        published = publish(pubsub, range(5))
        pubsub.flush(LONG)
        assert called == published
        assert [events.get(LONG) for _ in range(5)] == published
        assert {event.index for event in published} == {None}
        assert pubsub.get_history(TOPIC) == []
        pubsub.unsubscribe(TOPIC, called.append)
        publish(pubsub, [5])
        pubsub.flush(LONG)
        assert numbers([events.get(LONG)]) == [5]
        assert len(called) == 5
        pubsub.clear_topic(TOPIC)
        assert list(events) == []


def test_two_clients_share_topics(make_inner, make_client):
    """Clients on transports of one kind and place see each other's events."""
    first, second = make_client(make_inner()), make_client(make_inner())
    with second.subscribe(TOPIC) as events:
        publish(first, range(3))
        assert numbers([events.get(LONG) for _ in range(3)]) == [0, 1, 2]


def test_one_subscription_for_one_callback(inner, make_client):
    """C37: the same callback on the same topic is one subscription."""
    pubsub = make_client(inner)
    called: list[Event] = []
    assert pubsub.subscribe(TOPIC, called.append) is pubsub.subscribe(TOPIC, called.append)
    publish(pubsub, range(3))
    pubsub.flush(LONG)
    assert numbers(called) == [0, 1, 2]


def test_an_error_of_a_callback_is_isolated(inner, make_client):
    """C65: it reaches the hook, the further events and the other subscribers are not affected."""
    pubsub = make_client(inner)
    errors: list[BaseException] = []
    healthy: list[Event] = []
    pubsub.subscribe(TOPIC, lambda event: 1 / 0, on_error=errors.append)
    pubsub.subscribe(TOPIC, healthy.append)
    publish(pubsub, range(3))
    pubsub.flush(LONG)
    assert [type(error) for error in errors] == [ZeroDivisionError] * 3
    assert numbers(healthy) == [0, 1, 2]


def test_events_are_copies(inner, make_client):
    """C64: readers do not see what others do to an event."""
    pubsub = make_client(inner)
    with pubsub.subscribe(TOPIC) as first, pubsub.subscribe(TOPIC) as second:
        publish(pubsub, [1])
        first.get(LONG).data["n"] = "changed"
        assert numbers([second.get(LONG)]) == [1]


def test_values_are_strict(inner, make_client):
    """C61: What would come back different is refused on every transport."""
    with pytest.raises(EncodeError):
        make_client(inner).publish(TOPIC, type="job", data={1: 2})


def test_timeouts_and_ends(inner, make_client):
    """``get`` raises TimeoutError without an event and ClosedError after ``close``; a waiting ``for`` ends."""
    pubsub = make_client(inner)
    events = pubsub.subscribe(TOPIC)
    with pytest.raises(TimeoutError):
        events.get(0.01)
    with pytest.raises(TimeoutError):
        events.wait(0.01)
    reader = threading.Thread(target=lambda: list(events))
    reader.start()
    events.close()
    reader.join(LONG)
    assert not reader.is_alive()
    events.wait(LONG)
    with pytest.raises(ClosedError):
        events.get(0.01)
    events.close()


def test_closing_from_inside_a_callback(inner, make_client):
    """C31: a callback may close its own subscription; it is not called again."""
    pubsub = make_client(inner)
    called: list[Event] = []

    def once(event: Event) -> None:
        called.append(event)
        subscription.close()

    subscription = pubsub.subscribe(TOPIC, once)
    publish(pubsub, range(3))
    subscription.wait(LONG)
    assert numbers(called) == [0]


def test_the_client_does_not_close_it(inner, make_client):
    """A transport that was passed in stays open when the client is closed; its own close ends everything."""
    pubsub = make_client(inner)
    events = pubsub.subscribe(TOPIC)
    pubsub.close()
    publish(inner, [1])
    assert numbers([events.get(LONG)]) == [1]
    inner.close()
    inner.close()
    assert list(events) == []
    with pytest.raises(ClosedError):
        publish(inner, [2])
