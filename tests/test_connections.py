"""Connections that go away, many threads, many clients, and retries that do not mind each other."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import s2_sdk

from s2pubsub import (
    ClosedError,
    Event,
    S2PubSub,
    StoreError,
)
from tests.faults import APPEND, READ_SESSION, After, FaultProxy, Request
from tests.raw import PREFIX
from tests.servers import ON_LITE, Server, ThreadServer, free_port
from tests.topics import MakePubSub, all_at_once, indices, our_threads
from tests.waiting import LONG, eventually

TOPIC = "agent.stream.connections"

# C48: connections that go away.


@ON_LITE
@pytest.mark.parametrize("grace", [5.0, 0.0], ids=["lets old streams finish", "closes at once"])
def test_goaway_with_sessions_and_publishes(through: S2PubSub, proxy: FaultProxy, grace: float) -> None:
    """C48: GOAWAY with ten sessions and five publishes in flight: subscribers go on without loss or repetition, each
    publish returns or says that it does not know, and new calls use a new connection.
    """
    through.publish(TOPIC, type="t", data="first")
    subscriptions = [through.subscribe_from_offset(TOPIC, 0) for _ in range(10)]
    for events in subscriptions:
        assert indices(events, 1) == [0]
    proxy.wait_for(READ_SESSION, 10)
    hold = proxy.hold_response(APPEND, times=4)
    outcomes: list[Any] = []

    def publish(n: int) -> None:
        try:
            outcomes.append(through.publish(TOPIC, type="t", data=n))
        except StoreError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=publish, args=(n,)) for n in range(5)]
    for number, thread in enumerate(threads, 2):
        thread.start()
        proxy.wait_for(APPEND, min(number, 5))
    before = proxy.accepted
    assert proxy.goaway(grace=grace) >= 2
    proxy.remove(hold)
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()
    for outcome in outcomes:
        assert isinstance(outcome, Event) or outcome.outcome == "unknown"
    last = through.publish(TOPIC, type="t", data="last")
    assert last.index is not None
    assert proxy.accepted > before
    for events in subscriptions:
        assert indices(events, last.index) == list(range(1, last.index + 1))
        events.close()
    stored = [event.data for event in through.get_history(TOPIC)]
    assert {event.data for event in outcomes if isinstance(event, Event)} <= set(stored)
    assert stored[-1] == "last"


@ON_LITE
@pytest.mark.limit(60)
def test_goaway_during_a_long_replay(through: S2PubSub, make_pubsub: MakePubSub, proxy: FaultProxy) -> None:
    """C48: GOAWAY again and again while 20 MB are replayed: every index once."""
    writer = make_pubsub()
    for _ in range(20):
        writer.publish_many(TOPIC, [{"type": "t", "data": "x" * 850}] * 1000)
    with through.subscribe_with_replay(TOPIC) as events:
        found: list[int | None] = []
        for step in range(20):
            found += indices(events, 1000)
            if step % 4 == 1:
                proxy.goaway(grace=0.0 if step % 8 == 1 else 2.0)
        assert found == list(range(20_000))


@ON_LITE
@pytest.mark.parametrize("what", ["fin", "rst", "reset", "lost"])
def test_publishes_on_a_connection_that_breaks(through: S2PubSub, proxy: FaultProxy, what: str) -> None:
    """C48: the SDK's own policy sends an append again whose connection broke; it is stored at least once."""
    through.publish(TOPIC, type="t", data=0)
    if what == "reset":
        proxy.reset_stream(APPEND)
    elif what == "lost":
        proxy.lose_response(APPEND)
    else:
        proxy.cut_on(APPEND, how=what, after=After(request=True))  # type: ignore[arg-type]
    event = through.publish(TOPIC, type="t", data=1)
    stored = [found for found in through.get_history(TOPIC) if found.data == 1]
    assert event.id in {found.id for found in stored}
    assert 1 <= len(stored) <= 2


# C49: many threads.


@pytest.mark.slow
@pytest.mark.limit(120)
def test_one_client_from_many_threads(pubsub: S2PubSub, server: Server) -> None:
    """C49: 32 threads publish 200 events each on 8 topics while 16 read history and 16 subscribe and close: all 6,400
    are stored once, and each history is the beginning of its topic.
    """
    each = 50 if isinstance(server, ThreadServer) else 200  # that one shares our interpreter
    topics = [f"{TOPIC}-{number}" for number in range(8)]
    done = threading.Event()
    histories: list[tuple[str, list[str]]] = []

    def publish(number: int) -> None:
        for count in range(each):
            pubsub.publish(topics[number % 8], type="t", data=[number, count])

    def read(number: int) -> None:
        while not done.wait(0.05):
            found = pubsub.get_history(topics[number % 8])
            assert [event.index for event in found] == list(range(len(found)))
            histories.append((topics[number % 8], [event.id for event in found]))

    def subscribe(number: int) -> None:
        while not done.is_set():
            with pubsub.subscribe(topics[number % 8]) as events, contextlib.suppress(TimeoutError):
                first = events.get(0.05).index
                assert first is not None
                assert events.get(0.05).index == first + 1

    def publish_all() -> None:
        try:
            all_at_once([lambda number=number: publish(number) for number in range(32)], 100)
        finally:
            done.set()

    all_at_once(
        [publish_all]
        + [lambda number=number: read(number) for number in range(16)]
        + [lambda number=number: subscribe(number) for number in range(16)],
        110,
    )
    stored = {topic: pubsub.get_history(topic) for topic in topics}
    ids = {topic: [event.id for event in events] for topic, events in stored.items()}
    assert (
        sum(len(found) for found in ids.values()) == len({one for found in ids.values() for one in found}) == 32 * each
    )
    assert all(found == ids[topic][: len(found)] for topic, found in histories)
    for events in stored.values():
        assert sorted(tuple(event.data) for event in events) == sorted({tuple(event.data) for event in events})


# C50: many clients.


@pytest.mark.limit(60)
def test_clients_one_after_the_other(server: Server, basin: str) -> None:
    """C50: thirty times open, publish, subscribe, receive and close; no thread and no descriptor is left."""

    def use(number: int) -> None:
        with S2PubSub(basin=basin, endpoints=server.url, access_token=server.token) as pubsub:
            with pubsub.subscribe(TOPIC) as events:
                pubsub.publish(TOPIC, type="t", data=number)
                assert events.get(LONG).data == number

    use(-1)
    threads, descriptors = our_threads(), len(os.listdir("/proc/self/fd"))
    for number in range(30):
        use(number)
    assert our_threads() == threads
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)


def test_a_client_closed_in_the_middle_of_anothers_traffic(make_pubsub: MakePubSub, server: Server) -> None:
    """C50: two clients, made of one settings object, are independent: the other one's traffic goes on undisturbed."""
    endpoints = s2_sdk.Endpoints(account=server.url, basin=server.basin_url)
    stays, goes = (make_pubsub(endpoints=endpoints, access_token=server.token) for _ in range(2))
    with stays.subscribe(TOPIC) as events:
        going = goes.subscribe(TOPIC)
        for number in range(30):
            stays.publish(TOPIC, type="t", data=number)
            if number == 15:
                goes.close()
        assert indices(events, 30) == list(range(30))
        assert list(going) == []
        assert stays.stats().reconnects == 0
        with pytest.raises(ClosedError):
            goes.publish(TOPIC, type="t", data=1)


@pytest.mark.parametrize("kind", ["callable", "ready-made"])
def test_a_client_of_the_users_own(make_pubsub: MakePubSub, server: Server, kind: str) -> None:
    """``client=`` takes a callable or a ready-made, unused S2; both do everything, and close closes them."""

    def make() -> s2_sdk.S2:
        made.append(s2_sdk.S2(server.token, endpoints=s2_sdk.Endpoints(account=server.url, basin=server.basin_url)))
        return made[-1]

    made: list[s2_sdk.S2] = []
    pubsub = make_pubsub(client=make if kind == "callable" else make())
    with pubsub.subscribe(TOPIC) as events:
        pubsub.publish_many(TOPIC, [{"type": "t", "data": n} for n in range(3)])
        assert indices(events, 3) == [0, 1, 2]
    assert pubsub.tail(TOPIC) == 3
    assert pubsub.exists(TOPIC)
    assert len(pubsub.get_history(TOPIC)) == 3
    pubsub.check()
    pubsub.clear_topic(TOPIC, strict=True)
    pubsub.close()
    if kind == "callable":
        assert len(made) >= 2  # one for each lane
    else:
        assert len(made) == 1


@ON_LITE
def test_a_callable_is_called_again_for_a_replacement(make_pubsub: MakePubSub, proxy: FaultProxy) -> None:
    """Design 2.3: each replaced client comes from the callable."""

    def make() -> s2_sdk.S2:
        made.append(threading.current_thread().name)
        return s2_sdk.S2("test", endpoints=s2_sdk.Endpoints(account=proxy.url, basin=proxy.url))

    made: list[str] = []
    pubsub = make_pubsub(client=make)
    pubsub.publish(TOPIC, type="t", data=0)
    assert len(made) == 1
    proxy.stall()
    with pytest.raises(TimeoutError):
        pubsub.publish(TOPIC, type="t", data=1, timeout=0.5)
    assert pubsub.publish(TOPIC, type="t", data=2).index == 1
    assert len(made) == 2
    assert "s2pubsub-io" not in made  # it may take its time


# C70: independent retries.


@ON_LITE
@pytest.mark.slow
@pytest.mark.limit(60)
def test_retries_of_different_subscriptions(
    make_pubsub: MakePubSub, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """C70: eight subscriptions lose the server at different moments, four publishes retry meanwhile: each log shows its
    own attempts 1, 2, 3 and its own waits; one that is refused for good leaves the others going.
    """
    caplog.set_level(logging.DEBUG, "s2pubsub")
    pubsub = make_pubsub(endpoints=proxy.url, access_token="test")
    topics = [f"{TOPIC}-{number}" for number in range(8)]
    for topic in topics:
        pubsub.publish(topic, type="t", data="first")
    for number, topic in enumerate(topics):
        match = Request(kind="read_session", stream=PREFIX + topic)
        proxy.finish_session(match, times=number % 4 + 1, after=After(seconds=0.05 * number))
    refused = Request(kind="read_session", stream=PREFIX + topics[7])
    proxy.answer(refused, status=403, code="permission_denied", times=None)
    proxy.answer(APPEND, status=429, code="rate_limited", times=6)
    subscriptions = [pubsub.subscribe_from_offset(topic, 0) for topic in topics]
    all_at_once([lambda topic=topic: pubsub.publish(topic, type="t", data="second") for topic in topics[:4]])
    for number, topic in enumerate(topics[:7]):
        match = Request(kind="read_session", stream=PREFIX + topic)
        proxy.wait_for(match, number % 4 + 2, timeout=20)
    pubsub.publish(topics[6], type="t", data="last")
    assert indices(subscriptions[6], 2) == [0, 1]
    for events in subscriptions[:4]:
        assert indices(events, 2) == [0, 1]
    with pytest.raises(StoreError) as caught:
        indices(subscriptions[7], 2)
    assert caught.value.status == 403
    for number, topic in enumerate(topics[:7]):
        lines = [r for r in caplog.records if repr(topic) in r.getMessage() and "attempt" in r.getMessage()]
        attempts = [int(line.getMessage().split("attempt ")[1].split(",")[0]) for line in lines]
        waits = [float(line.getMessage().split("next in ")[1].split(" ")[0]) for line in lines]
        assert len(attempts) == number % 4 + 1
        assert attempts[0] == 1
        assert all(later in (1, earlier + 1) for earlier, later in itertools.pairwise(attempts))
        for attempt, wait in zip(attempts, waits, strict=True):
            assert 0.25 * 2 ** (attempt - 1) <= wait <= 0.25 * 2 ** (attempt - 1) + 0.26
    for events in subscriptions:
        events.close()


# C71: the original error.


def test_errors_are_the_original_ones(make_pubsub: MakePubSub) -> None:
    """C71: with nothing listening every call raises the library's error with the SDK's as its cause, in its time."""
    pubsub = make_pubsub(endpoints=f"http://127.0.0.1:{free_port()}", access_token="test")
    calls: list[Callable[[], object]] = [
        lambda: pubsub.publish(TOPIC, type="t", data=1, timeout=3),
        lambda: pubsub.subscribe(TOPIC, timeout=3),
        lambda: pubsub.get_history(TOPIC, timeout=3),
        lambda: pubsub.tail(TOPIC, timeout=3),
        lambda: pubsub.exists(TOPIC, timeout=3),
        lambda: pubsub.topics(timeout=3),
        lambda: pubsub.check(timeout=3),
        lambda: pubsub.ensure_basin(timeout=3),
        lambda: pubsub.clear_topic(TOPIC, strict=True, timeout=3),
    ]

    def check(call: Callable[[], object]) -> None:
        with pytest.raises((StoreError, TimeoutError)) as caught:
            call()
        error: Any = caught.value
        if isinstance(error, TimeoutError):  # the publish, in the middle of the SDK's own attempts
            error = error.__cause__
        assert (error.code, error.status) == ("connection", None)
        assert isinstance(error.__cause__, s2_sdk.S2ClientError)

    all_at_once([lambda call=call: check(call) for call in calls])
