"""The client as a whole: connections that go away, many threads, many clients, topics and the basin."""

from __future__ import annotations

import base64
import contextlib
import gc
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import s2_sdk

from s2pubsub import ClosedError, Event, S2PubSub, StoreError, Subscription
from tests.faults import APPEND, READ_SESSION, After, FaultProxy, Request
from tests.raw import PREFIX, Streams
from tests.servers import CREATE_STREAMS, ON_LITE, Server, ThreadServer, free_port
from tests.waiting import LONG, eventually

MakePubSub = Callable[..., S2PubSub]
TOPIC = "agent.stream.client"


def run_threads(actions: list[Callable[[], object]], limit: float = 60) -> None:
    """Run the actions at once, each on a thread of its own; the first error is raised here."""
    errors: list[BaseException] = []

    def run(action: Callable[[], object]) -> None:
        try:
            action()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(action,), daemon=True) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def indices(events: Subscription, count: int) -> list[int | None]:
    return [events.get(LONG).index for _ in range(count)]


def ours() -> list[str]:
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("s2pubsub-") and "server" not in t.name)


@pytest.fixture
def through(make_pubsub: MakePubSub, proxy: FaultProxy) -> S2PubSub:
    """A client whose requests go through the proxy."""
    return make_pubsub(endpoints=proxy.url, access_token="test")


@pytest.fixture
def streams(server: Server, basin: str) -> Streams:
    return Streams(server, basin)


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
        while not done.is_set():
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
            run_threads([lambda number=number: publish(number) for number in range(32)], 100)
        finally:
            done.set()

    run_threads(
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
    threads, descriptors = ours(), len(os.listdir("/proc/self/fd"))
    for number in range(30):
        use(number)
    assert ours() == threads
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
    run_threads([lambda topic=topic: pubsub.publish(topic, type="t", data="second") for topic in topics[:4]])
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

    run_threads([lambda call=call: check(call) for call in calls])


# C72: events are checked.

WRONG_EVENTS: list[tuple[Any, str]] = [
    ({"type": 5, "data": 1}, "type"),
    ({"type": None, "data": 1}, "type"),
    ({"type": "t", "data": 1, "run_id": True}, "run_id"),
    ({"type": "t"}, "data"),
    ({"data": 1}, "type"),
    ({"type": "t", "data": 1, "runId": "r"}, "runId"),
    ({"type": "t", "data": 1, "extra": [1]}, "extra"),
    ({"type": "t", "data": {1: 2}}, "data"),
    ([("type", "t"), ("data", 1)], "events"),
    (5, "events"),
    ({5: "t"}, "5"),
]


@pytest.mark.parametrize(("event", "name"), WRONG_EVENTS, ids=repr)
def test_events_that_are_no_events(pubsub: S2PubSub, event: Any, name: str) -> None:
    """C72: an event of the wrong form is a ValueError or TypeError that names key and place; nothing is stored."""
    good = {"type": "t", "data": 1}
    with pytest.raises((ValueError, TypeError)) as caught:
        pubsub.publish_many(TOPIC, [good, event])
    assert name in str(caught.value)
    assert "events[1]" in str(caught.value)
    assert not isinstance(caught.value, BaseExceptionGroup)
    assert not pubsub.exists(TOPIC)


# Topics and the basin.


def test_topics(pubsub: S2PubSub, streams: Streams) -> None:
    """``topics`` lists stored topics by prefix in byte order, and creates nothing; so does ``exists``."""
    names = ["agent.stream.a", "agent.stream.b", "agent.stream.é", "agent.thread-stream.a", "agent.x"]
    for name in reversed(names):
        pubsub.publish(name, type="t", data=1)
    assert pubsub.topics() == sorted(names, key=str.encode)
    assert pubsub.topics("agent.stream.") == names[:3]
    assert pubsub.topics("agent.stream.a") == ["agent.stream.a"]
    assert pubsub.topics("nothing") == []
    assert pubsub.exists("agent.stream.a")
    assert not pubsub.exists("agent.stream")  # a prefix of others
    assert not pubsub.exists("agent.stream.c")
    assert len(streams.names()) == 5
    pubsub.clear_topic("agent.stream.a", strict=True)
    eventually(lambda: pubsub.topics("agent.stream.") == names[1:3])
    assert not pubsub.exists("agent.stream.a")


@pytest.mark.slow
@pytest.mark.limit(60)
def test_more_topics_than_a_page(pubsub: S2PubSub) -> None:
    """More than a thousand topics are listed all, in order."""
    names = [f"agent.many.{number:04}" for number in range(1100)]
    run_threads(
        [lambda part=part: [pubsub.publish(name, type="t", data=1) for name in names[part::20]] for part in range(20)]
    )
    assert pubsub.topics("agent.many.") == names


def test_tail_and_stats(pubsub: S2PubSub) -> None:
    """``tail`` is the next index; ``stats`` counts what was published, delivered and is open."""
    assert pubsub.tail(TOPIC) == 0
    pubsub.publish_many(TOPIC, [{"type": "t", "data": n} for n in range(5)])
    pubsub.publish(TOPIC, type="t", data=5)
    assert pubsub.tail(TOPIC) == 6
    with pubsub.subscribe_with_replay(TOPIC) as events:
        eventually(lambda: pubsub.stats().queued == 6)
        stats = pubsub.stats()
        assert (stats.subscriptions, stats.published, stats.delivered) == (1, 6, 6)
        assert (stats.reconnects, stats.parked, stats.replaced_clients) == (0, 0, 0)
        indices(events, 6)
    assert pubsub.stats().subscriptions == 0
    assert pubsub.stats().queued == 0


def test_local_topics_have_no_tail(pubsub: S2PubSub) -> None:
    """What is stored can be asked of durable topics only."""
    for call in (pubsub.tail, pubsub.exists):
        with pytest.raises(ValueError, match="local"):
            call("other.topic")


def test_check(make_pubsub: MakePubSub, make_basin: Callable[..., str]) -> None:
    """``check`` passes for a good basin, and names what is off and the remedy otherwise."""
    make_pubsub(basin=make_basin(**CREATE_STREAMS)).check()
    for flags, off in (
        ({}, ["create-stream-on-append", "create-stream-on-read"]),
        ({"create_stream_on_append": True}, ["create-stream-on-read"]),
        ({"create_stream_on_read": True}, ["create-stream-on-append"]),
    ):
        with pytest.raises(StoreError) as caught:
            make_pubsub(basin=make_basin(**flags)).check()
        assert caught.value.code == "basin_settings"
        assert "ensure_basin()" in str(caught.value)
        for name in ("create-stream-on-append", "create-stream-on-read"):
            assert (name in str(caught.value)) == (name in off)


def test_a_basin_that_does_not_exist(make_pubsub: MakePubSub) -> None:
    """Design 4: a misspelt basin is a StoreError everywhere, final, and never looks like an empty topic."""
    pubsub = make_pubsub(basin="no-such-basin-here")
    calls: list[Callable[[], object]] = [
        lambda: pubsub.publish(TOPIC, type="t", data=1),
        lambda: pubsub.publish_many(TOPIC, [{"type": "t", "data": 1}]),
        lambda: pubsub.get_history(TOPIC),
        lambda: pubsub.subscribe(TOPIC),
        lambda: pubsub.subscribe_from_offset(TOPIC, 3),
        lambda: pubsub.tail(TOPIC),
        lambda: pubsub.exists(TOPIC),
        lambda: pubsub.topics(),
        lambda: pubsub.check(),
        lambda: pubsub.clear_topic(TOPIC, strict=True),
    ]
    for call in calls:
        started = time.monotonic()
        with pytest.raises(StoreError) as caught:
            call()
        assert time.monotonic() - started < 2
        assert (caught.value.code, caught.value.status) == ("basin_not_found", 404)
        assert "S2_BASIN" in str(caught.value)


def test_a_basin_that_is_removed_under_a_reader(
    make_pubsub: MakePubSub, make_basin: Callable[..., str], server: Server
) -> None:
    """Its reader ends with an error, and makes nothing anew."""
    basin = make_basin(**CREATE_STREAMS)
    pubsub = make_pubsub(basin=basin)
    pubsub.publish(TOPIC, type="t", data=1)
    with pubsub.subscribe_from_offset(TOPIC, 0) as events:
        assert indices(events, 1) == [0]
        Streams(server, basin).delete(TOPIC)
        server.remove_basin(basin)
        with pytest.raises(Exception, match=r"deleted|not found|basin"):
            events.get(LONG)


def test_ensure_basin(make_pubsub: MakePubSub, server: Server) -> None:
    """It makes a basin that does not exist, and changes of one that does only the two flags and what is given."""
    name = f"t-made-{os.urandom(6).hex()}"
    pubsub = make_pubsub(basin=name)

    def config() -> Any:
        return server.request("GET", f"/v1/basins/{name}")

    try:
        pubsub.ensure_basin(retention=7200)
        pubsub.check()
        assert config()["default_stream_config"]["retention_policy"] == {"age": 7200}
        server.request(
            "PATCH",
            f"/v1/basins/{name}",
            {"default_stream_config": {"timestamping": {"mode": "arrival"}}, "create_stream_on_read": False},
        )
        pubsub.ensure_basin(delete_on_empty=60)
        pubsub.check()
        found = config()["default_stream_config"]
        assert found["retention_policy"] == {"age": 7200}
        assert found["timestamping"]["mode"] == "arrival"
        assert found["delete_on_empty"] == {"min_age_secs": 60}
        before = config()
        pubsub.ensure_basin()
        assert config() == before
    finally:
        server.remove_basin(name)


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"retention": 0}, ValueError),
        ({"retention": -5}, ValueError),
        ({"retention": "7200"}, TypeError),
        ({"delete_on_empty": True}, TypeError),
        ({"delete_on_empty": 1.5}, TypeError),
    ],
)
def test_ensure_basin_checks_its_arguments(pubsub: S2PubSub, settings: dict[str, Any], kind: type[Exception]) -> None:
    """C72: seconds are whole positive numbers; a wrong one is named before any request."""
    with pytest.raises(kind, match=next(iter(settings))):
        pubsub.ensure_basin(**settings)


def test_encryption(make_pubsub: MakePubSub, make_basin: Callable[..., str]) -> None:
    """A basin with a cipher is written and read with the key; without it, or with another one, the server's refusal
    reaches the caller.
    """
    basin = make_basin(**CREATE_STREAMS, stream_cipher="aegis-256")
    key, other = os.urandom(32), os.urandom(32)
    for given in (key, base64.b64encode(key).decode()):
        pubsub = make_pubsub(basin=basin, encryption_key=given)
        pubsub.clear_topic(TOPIC, strict=True)
        with pubsub.subscribe(TOPIC) as events:
            assert pubsub.publish(TOPIC, type="t", data="secret", timeout=10).index == 0
            assert events.get(LONG).data == "secret"
        assert [event.data for event in pubsub.get_history(TOPIC)] == ["secret"]
        pubsub.publish_many(TOPIC, [{"type": "t", "data": n} for n in range(1500)])
        assert len(pubsub.get_history(TOPIC)) == 1501
    wrong = make_pubsub(basin=basin, encryption_key=other)
    with pytest.raises(StoreError) as caught:
        wrong.get_history(TOPIC)
    assert caught.value.code == "decryption_failed"
    with wrong.subscribe_with_replay(TOPIC) as events, pytest.raises(StoreError) as caught:
        events.get(LONG)
    assert caught.value.code == "decryption_failed"
    without = make_pubsub(basin=basin)
    with pytest.raises(StoreError) as caught:
        without.publish(TOPIC, type="t", data=1)
    assert (caught.value.status, caught.value.outcome) == (400, "not_stored")


def test_prefixes(make_pubsub: MakePubSub, server: Server, basin: str) -> None:
    """Streams are named by ``stream_prefix`` and topic; topics outside ``topic_prefix`` are local."""
    pubsub = make_pubsub(stream_prefix="other/", topic_prefix="run.")
    pubsub.publish("run.7", type="t", data=1)
    assert Streams(server, basin).names() == ["other/run.7"]
    assert pubsub.topics() == ["run.7"]
    with pytest.raises(ValueError, match="local"):
        pubsub.tail("agent.stream.x")


# Life.


def test_closing_is_idempotent_and_ends_everything(make_pubsub: MakePubSub) -> None:
    """Closed from several threads at once, with subscriptions open, everything ends within a moment."""
    before = ours()
    pubsub = make_pubsub()
    iterated = [pubsub.subscribe(f"{TOPIC}-{n}") for n in range(10)]
    called = [pubsub.subscribe(f"{TOPIC}-{n}", lambda event: None) for n in range(10)]
    started = time.monotonic()
    run_threads([pubsub.close] * 8)
    assert time.monotonic() - started < 2
    assert all(list(events) == [] for events in iterated)
    assert all(subscription.closed for subscription in called)
    eventually(lambda: ours() == before)  # those that make clients end by themselves
    pubsub.close()
    for call in (
        lambda: pubsub.subscribe(TOPIC),
        lambda: pubsub.get_history(TOPIC),
        lambda: pubsub.iter_history(TOPIC),
        lambda: pubsub.tail(TOPIC),
        lambda: pubsub.topics(),
        lambda: pubsub.check(),
        lambda: pubsub.ensure_basin(),
        lambda: pubsub.clear_topic(TOPIC, strict=True),
    ):
        with pytest.raises(ClosedError):
            call()
    gc.collect()


@ON_LITE
def test_a_ready_made_client_is_not_replaced(make_pubsub: MakePubSub, proxy: FaultProxy) -> None:
    """Design 3: it cannot be; a publish on its frozen connection fails, and works again when the connection does."""
    pubsub = make_pubsub(client=s2_sdk.S2("test", endpoints=s2_sdk.Endpoints(account=proxy.url, basin=proxy.url)))
    pubsub.publish(TOPIC, type="t", data=0)
    proxy.stall()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            pubsub.publish(TOPIC, type="t", data="lost", timeout=0.3)
    assert pubsub.stats().replaced_clients == 0
    proxy.resume()
    assert pubsub.publish(TOPIC, type="t", data=1).data == 1
