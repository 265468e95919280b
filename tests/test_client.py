"""The client as a whole: events given to it, topics, the basin, and its end."""

from __future__ import annotations

import base64
import gc
import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import s2_sdk

from s2pubsub import (
    ClosedError,
    S2PubSub,
    StoreError,
)
from tests.faults import FaultProxy
from tests.raw import Streams
from tests.servers import CREATE_STREAMS, ON_LITE, Server
from tests.topics import MakePubSub, all_at_once, indices, our_threads
from tests.waiting import LONG, eventually

TOPIC = "agent.stream.client"


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
    all_at_once(
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
    before = our_threads()
    pubsub = make_pubsub()
    iterated = [pubsub.subscribe(f"{TOPIC}-{n}") for n in range(10)]
    called = [pubsub.subscribe(f"{TOPIC}-{n}", lambda event: None) for n in range(10)]
    started = time.monotonic()
    all_at_once([pubsub.close] * 8)
    assert time.monotonic() - started < 2
    assert all(list(events) == [] for events in iterated)
    assert all(subscription.closed for subscription in called)
    eventually(lambda: our_threads() == before)  # those that make clients end by themselves
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
