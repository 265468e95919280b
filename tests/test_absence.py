"""Topics that are deleted, made anew, or not there yet, and positions that are not there yet."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import s2_sdk

from s2pubsub import (
    S2PubSub,
    TopicGoneError,
)
from tests.faults import READ_SESSION, FaultProxy, Request
from tests.raw import Streams
from tests.servers import CREATE_STREAMS, ON_LITE, Server
from tests.topics import MakePubSub, fill, indices, sessions, workers
from tests.waiting import LONG, eventually

TOPIC = "agent.stream.absence"

# A topic that is deleted.


def test_a_topic_that_is_deleted_under_its_reader(pubsub: S2PubSub, streams: Streams) -> None:
    """Design 2.9: deleted under a live subscriber, by somebody else, a topic ends with TopicGoneError; what had come is
    delivered first; and reading it does not make it anew on a basin with create-on-read.
    """
    fill(pubsub, TOPIC, 3)
    with pubsub.subscribe_from_offset(TOPIC, 0) as events:
        eventually(lambda: events.queued == 3)
        streams.delete(TOPIC)
        assert indices(events, 3) == [0, 1, 2]
        with pytest.raises(TopicGoneError) as caught:
            events.get(LONG)
        assert caught.value.topic == TOPIC
    eventually(lambda: not workers(TOPIC))
    assert streams.names() == []


@pytest.mark.parametrize("create_on_read", [True, False], ids=["create on read", "no create on read"])
@pytest.mark.parametrize("start", ["latest", 0, 1])
def test_a_topic_that_is_deleted_before_its_reader_begins(
    make_pubsub: MakePubSub,
    make_basin: Callable[..., str],
    server: Server,
    proxy: FaultProxy,
    create_on_read: bool,
    start: str | int,
) -> None:
    """Deleted just after a subscription has found its tail, and made anew by that on a basin with create-on-read, a
    topic ends with TopicGoneError, too; nobody waits for ever.
    """
    basin = make_basin(create_stream_on_append=True, create_stream_on_read=create_on_read)
    through = make_pubsub(basin=basin, endpoints=proxy.url, access_token="test")
    streams = Streams(server, basin)
    fill(make_pubsub(basin=basin), TOPIC, 3)
    held = proxy.hold_response(Request(kind="tail"))
    with ThreadPoolExecutor(1) as pool:
        subscribing = pool.submit(through.subscribe, TOPIC, start=start)
        eventually(lambda: held.hits == 1)
        streams.delete(TOPIC)
        eventually(lambda: streams.names() == [])
        proxy.remove(held)
        with subscribing.result(LONG) as events, pytest.raises(TopicGoneError):
            events.get(LONG)


@pytest.mark.parametrize("made", ["callable", "ready-made"])
def test_a_deleted_topic_with_a_client_that_retries(
    make_pubsub: MakePubSub, streams: Streams, server: Server, made: str
) -> None:
    """Design 2.9: it is not made anew either where the user made the SDK's client, which retries by default."""

    def make() -> s2_sdk.S2:
        return s2_sdk.S2(server.token, endpoints=s2_sdk.Endpoints(account=server.url, basin=server.basin_url))

    pubsub = make_pubsub(client=make if made == "callable" else make())
    fill(pubsub, TOPIC, 3)
    with pubsub.subscribe_from_offset(TOPIC, 0) as events:
        assert indices(events, 3) == [0, 1, 2]
        streams.delete(TOPIC)
        with pytest.raises(TopicGoneError):
            events.get(LONG)
    assert streams.names() == []


@ON_LITE
@pytest.mark.parametrize("longer", [True, False], ids=["longer", "shorter"])
def test_a_topic_that_is_made_anew_under_its_reader(
    through: S2PubSub, proxy: FaultProxy, streams: Streams, longer: bool
) -> None:
    """Design 2.9: a topic that was deleted and made anew while its reader was cut off is another one, be it longer than
    the position or shorter: TopicGoneError, and none of its events.
    """
    fill(through, TOPIC, 3)
    with through.subscribe_from_offset(TOPIC, 0) as events:
        assert indices(events, 3) == [0, 1, 2]
        proxy.wait_for(Request(kind="streams"), 1)
        eventually(lambda: proxy.seen(Request(kind="streams"))[0].finished)
        with proxy.refusing():
            proxy.cut(how="fin")  # a reset could take the look-up's answer along
            streams.delete(TOPIC)
            eventually(lambda: streams.names() == [])
            streams.append(TOPIC, *([b"{}"] * (9 if longer else 1)))
        with pytest.raises(TopicGoneError):
            events.get(LONG)
        assert sessions(proxy) == [0]


@ON_LITE
def test_a_position_behind_the_tail_means_gone(through: S2PubSub, proxy: FaultProxy) -> None:
    """Design 2.9: a 416 at a position that had been reached means that the topic is another one."""
    fill(through, TOPIC, 3)
    with through.subscribe_from_offset(TOPIC, 0) as events:
        assert indices(events, 3) == [0, 1, 2]
        proxy.answer(READ_SESSION, status=416, body=b'{"tail": {"seq_num": 1, "timestamp": 5}}')
        proxy.cut()
        with pytest.raises(TopicGoneError):
            events.get(LONG)


def test_clearing_ends_this_processs_readers(make_pubsub: MakePubSub, streams: Streams) -> None:
    """``clear_topic`` just ends the iteration of its own process's readers; others' end with TopicGoneError."""
    pubsub, other = make_pubsub(), make_pubsub()
    fill(pubsub, TOPIC, 2)
    mine = pubsub.subscribe_from_offset(TOPIC, 0)
    theirs = other.subscribe_from_offset(TOPIC, 0)
    assert indices(mine, 2) == indices(theirs, 2) == [0, 1]
    pubsub.clear_topic(TOPIC, strict=True)
    assert list(mine) == []
    assert mine.closed
    with pytest.raises(TopicGoneError):
        theirs.get(LONG)
    eventually(lambda: streams.names() == [])
    pubsub.clear_topic(TOPIC, strict=True)  # of an absent topic: no failure
    theirs.close()


# Topics that are not there yet, and positions that are not there yet.


@pytest.mark.parametrize("create_on_read", [True, False], ids=["create on read", "no create on read"])
@pytest.mark.parametrize("start", ["latest", "earliest", 0])
def test_a_reader_that_comes_first(
    make_pubsub: MakePubSub, make_basin: Callable[..., str], create_on_read: bool, start: str | int
) -> None:
    """A subscriber to a topic that does not exist yet gets all of it, whether or not its reading makes the stream."""
    basin = make_basin(create_stream_on_append=True, create_stream_on_read=create_on_read)
    pubsub = make_pubsub(basin=basin)
    with pubsub.subscribe(TOPIC, start=start) as events:
        with pytest.raises(TimeoutError):
            events.get(0.3)
        fill(pubsub, TOPIC, 3)
        assert indices(events, 3) == [0, 1, 2]


def test_a_reader_that_waits_for_a_topic_and_a_position(
    make_pubsub: MakePubSub, make_basin: Callable[..., str]
) -> None:
    """On a basin without create-on-read a reader from index 2 of an absent topic gets 2 and what follows, and can be
    closed while it waits.
    """
    pubsub = make_pubsub(basin=make_basin(create_stream_on_append=True))
    waiting = pubsub.subscribe_from_offset(f"{TOPIC}-never", 2)
    with pubsub.subscribe_from_offset(TOPIC, 2) as events:
        fill(pubsub, TOPIC, 4)
        assert indices(events, 2) == [2, 3]
    started = time.monotonic()
    waiting.close()
    assert time.monotonic() - started < 1
    assert list(waiting) == []


@ON_LITE
def test_offsets_beyond_the_tail(through: S2PubSub, proxy: FaultProxy) -> None:
    """A position that does not exist yet waits without error and without delay, also over cuts, and drops what comes
    before it.
    """
    fill(through, TOPIC, 3)
    with through.subscribe_from_offset(TOPIC, 6) as events:
        proxy.wait_for(READ_SESSION, 1)
        fill(through, TOPIC, 2, first=3)
        assert events.next_index == 6
        proxy.cut()
        proxy.wait_for(READ_SESSION, 2)
        fill(through, TOPIC, 1, first=5)
        with pytest.raises(TimeoutError):
            events.get(0.1)
        published_at = time.monotonic()
        fill(through, TOPIC, 2, first=6)
        found = [events.get(LONG) for _ in range(2)]
        assert time.monotonic() - published_at < 0.5
        assert [(event.index, event.data) for event in found] == [(6, 6), (7, 7)]
        assert through.stats().reconnects == 1


def test_an_offset_that_is_far_away_and_one_below_zero(pubsub: S2PubSub) -> None:
    """A huge index just waits; a negative one means the beginning."""
    fill(pubsub, TOPIC, 2)
    with pubsub.subscribe_from_offset(TOPIC, 2**53) as far, pubsub.subscribe_from_offset(TOPIC, -5) as near:
        assert indices(near, 2) == [0, 1]
        with pytest.raises(TimeoutError):
            far.get(0.2)
        assert not far.closed


def test_the_streams_config_is_sent_by_readers_too(
    make_pubsub: MakePubSub, make_basin: Callable[..., str], server: Server
) -> None:
    """``run_config`` applies whichever comes first and makes the stream: an append, a history, a tail, a subscriber."""
    basin = make_basin(**CREATE_STREAMS)
    pubsub = make_pubsub(basin=basin, run_config=s2_sdk.StreamConfig(retention_policy=4321))
    streams = Streams(server, basin)
    first: dict[str, Callable[[str], object]] = {
        "publish": lambda topic: pubsub.publish(topic, type="chunk", data=1),
        "publish_many": lambda topic: pubsub.publish_many(topic, [{"type": "chunk", "data": 1}]),
        "subscribe": lambda topic: pubsub.subscribe(topic).close(),
        "history": lambda topic: pubsub.get_history(topic),
        "tail": lambda topic: pubsub.tail(topic),
    }
    for name, use in first.items():
        use(f"{TOPIC}-{name}")
        assert streams.config(f"{TOPIC}-{name}")["retention_policy"] == {"age": 4321}, name
        assert pubsub.tail(f"{TOPIC}-{name}") == (1 if name.startswith("publish") else 0)
