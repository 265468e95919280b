"""Slow consumers: they park, hold up nobody, hold a bounded number of events, and lose nothing."""

from __future__ import annotations

import threading
import time

import pytest

from s2pubsub import Event, S2PubSub, Subscription, TopicGoneError
from tests.faults import READ_SESSION, FaultProxy, Request
from tests.raw import PREFIX, Streams
from tests.servers import ON_LITE, Server
from tests.topics import MakePubSub
from tests.waiting import LONG, eventually

BACKLOG = "agent.stream.backlog"
LIVE = "agent.stream.live"
MEGABYTES = 30
EVENTS = MEGABYTES * 1000
ON_BACKLOG = Request(kind="read_session", stream=PREFIX + BACKLOG)


def fill(pubsub: S2PubSub, megabytes: int = MEGABYTES) -> None:
    """Store a thousand events of one KB for each megabyte."""
    batch = [{"type": "chunk", "data": "x" * 850} for _ in range(1000)]
    for _ in range(megabytes):
        pubsub.publish_many(BACKLOG, batch)


def slowest_delivery(pubsub: S2PubSub, events: Subscription, count: int = 40) -> float:
    """Seconds from the start of a publish to the event in the consumer's hands, the worst of ``count``."""
    worst = 0.0
    for number in range(count):
        started = time.monotonic()
        pubsub.publish(LIVE, type="chunk", data=number)
        assert events.get(LONG).data == number
        worst = max(worst, time.monotonic() - started)
    return worst


@pytest.mark.slow
@pytest.mark.limit(60)
@pytest.mark.parametrize("stopped", [1, 8])
def test_stopped_consumers_hold_up_nobody(make_pubsub: MakePubSub, stopped: int) -> None:
    """Design 2.2: subscribers that stopped reading 30 MB park; a neighbour of the same client gets its events at once,
    new ones can be opened; and in the end every one of them has read each index once, in order.
    """
    writer, pubsub = make_pubsub(), make_pubsub()
    fill(writer)
    slow = [pubsub.subscribe_from_offset(BACKLOG, 0) for _ in range(stopped)]
    eventually(lambda: pubsub.stats().parked >= stopped)
    with pubsub.subscribe(LIVE) as events:
        assert slowest_delivery(pubsub, events) < 1.0
    assert all(events.queued <= 1024 + 1000 for events in slow)
    with pubsub.subscribe_from_offset(BACKLOG, 0) as fast:
        assert [fast.get(LONG).index for _ in range(3000)] == list(range(3000))
    for events in slow[:2]:
        assert [events.get(LONG).index for _ in range(EVENTS)] == list(range(EVENTS))
    writer.publish(BACKLOG, type="chunk", data="last")
    assert slow[0].get(LONG).data == "last"
    for events in slow:
        events.close()


@ON_LITE
@pytest.mark.limit(60)
def test_what_a_parked_subscriber_asks_for(through: S2PubSub, proxy: FaultProxy) -> None:
    """Design 2.2: parked, it has no session open; with room again it asks for that much from the next index on, until
    it has caught up, and then without a limit.
    """
    fill(through, 6)
    with through.subscribe_from_offset(BACKLOG, 0) as events:
        eventually(lambda: through.stats().parked == 1)
        eventually(lambda: proxy.seen(ON_BACKLOG)[0].finished == "client reset")
        queued = events.queued
        assert 1024 <= queued <= 2024
        assert [events.get(LONG).index for _ in range(6000)] == list(range(6000))
        proxy.wait_for(ON_BACKLOG, 3)
        eventually(lambda: "count" not in proxy.seen(ON_BACKLOG)[-1].query)
        asked = proxy.seen(ON_BACKLOG)
        assert asked[1].seq_num == queued
        assert 1 <= int(asked[1].query["count"]) <= 1024
        assert int(asked[1].query["bytes"]) >= 2**20
        assert asked[1].query["wait"] == "1"
        assert [seen.seq_num for seen in asked] == sorted(seen.seq_num or 0 for seen in asked)
        through.publish(BACKLOG, type="chunk", data="last")
        assert events.get(LONG).index == 6000
    assert through.stats().reconnects == 0


@pytest.mark.limit(60)
def test_a_slow_callback(make_pubsub: MakePubSub) -> None:
    """Design 2.2: a callback that takes its time parks its session, too: nobody waits for it and it gets each index
    once, what comes live while it is slow, too.
    """
    pubsub = make_pubsub()
    fill(pubsub, 15)
    release = threading.Event()
    seen: list[int | None] = []
    complete = threading.Event()

    def receive(event: Event) -> None:
        release.wait(30)
        seen.append(event.index)
        if event.data == "last":
            complete.set()

    with pubsub.subscribe_from_offset(BACKLOG, 0, receive), pubsub.subscribe(LIVE) as events:
        assert slowest_delivery(pubsub, events, 20) < 1.0
        assert seen == []
        release.set()
        pubsub.publish(BACKLOG, type="chunk", data="last")
        assert complete.wait(20)
    assert seen == list(range(15_001))
    assert pubsub.stats().parked >= 1


def test_a_callback_that_is_slower_than_its_live_topic(pubsub: S2PubSub) -> None:
    """Each event parks the session again; all come once, in order, and none waits for the end of a long session."""
    seen: list[int | None] = []
    complete = threading.Event()
    pause = threading.Event()

    def receive(event: Event) -> None:
        pause.wait(0.3)
        seen.append(event.index)
        if event.index == 7:
            complete.set()

    with pubsub.subscribe(LIVE, receive):
        for number in range(8):
            pubsub.publish(LIVE, type="chunk", data=number)
        assert complete.wait(15)
    assert seen == list(range(8))


@pytest.mark.parametrize(("queue_size", "queue_bytes"), [(1, 2**22), (10, 2**22), (1024, 1), (1024, 100_000)])
def test_small_bounds(make_pubsub: MakePubSub, queue_size: int, queue_bytes: int) -> None:
    """C33: whichever bound comes first, events or bytes, everything passes, also records larger than the bound."""
    pubsub = make_pubsub(queue_size=queue_size, queue_bytes=queue_bytes)
    sizes = [10, 200_000, 10, 1_000_000, 10] * 3
    pubsub.publish_many(BACKLOG, [{"type": "chunk", "data": "x" * size} for size in sizes])
    with pubsub.subscribe_from_offset(BACKLOG, 0) as events:
        eventually(lambda: pubsub.stats().parked >= 1)
        assert events.queued < len(sizes)
        assert [len(events.get(LONG).data) for _ in sizes] == sizes
        pubsub.publish(BACKLOG, type="chunk", data="last")
        assert events.get(LONG).data == "last"


@ON_LITE
@pytest.mark.limit(60)
def test_a_connection_that_breaks_between_limited_sessions(through: S2PubSub, proxy: FaultProxy) -> None:
    """Cut at any moment while it catches up with limits, a slow reader still gets each index once, in order."""
    fill(through, 8)
    with through.subscribe_from_offset(BACKLOG, 0) as events:
        found: list[int | None] = []
        for step in range(8):
            eventually(lambda: events.queued >= 1000 or through.stats().parked > 0)
            found += [events.get(LONG).index for _ in range(1000)]
            if step % 2:
                proxy.cut()
        assert found == list(range(8000))


@pytest.mark.limit(60)
def test_a_topic_that_is_deleted_while_its_reader_is_parked(pubsub: S2PubSub, server: Server, basin: str) -> None:
    """What had been buffered is delivered, then TopicGoneError; the topic is not made anew."""
    fill(pubsub, 3)
    streams = Streams(server, basin)
    with pubsub.subscribe_from_offset(BACKLOG, 0) as events:
        eventually(lambda: pubsub.stats().parked == 1)
        queued = events.queued
        streams.delete(BACKLOG)
        eventually(lambda: streams.names() == [])
        assert [events.get(LONG).index for _ in range(queued)] == list(range(queued))
        with pytest.raises(TopicGoneError):
            events.get(LONG)
    assert streams.names() == []


def test_closing_a_parked_subscription(pubsub: S2PubSub) -> None:
    """It returns at once, drops what is held, and the iteration ends."""
    fill(pubsub, 3)
    events = pubsub.subscribe_from_offset(BACKLOG, 0)
    eventually(lambda: pubsub.stats().parked == 1)
    started = time.monotonic()
    events.close()
    assert time.monotonic() - started < 1
    assert list(events) == []
    assert events.queued == 0
    assert events.next_index == 0


@pytest.mark.slow
@pytest.mark.limit(60)
def test_a_slow_reader_of_history(make_pubsub: MakePubSub) -> None:
    """C33: an iterator over history that is left lying parks, too; taken up again it goes on with each index."""
    pubsub = make_pubsub()
    fill(pubsub)
    history = pubsub.iter_history(BACKLOG)
    found = [next(history).index for _ in range(1500)]
    with pubsub.subscribe(LIVE) as events:
        assert slowest_delivery(pubsub, events) < 1.0
    found += [event.index for event in history]
    assert found == list(range(EVENTS))


@ON_LITE
@pytest.mark.limit(60)
def test_sessions_that_are_closed_end_at_the_server(through: S2PubSub, proxy: FaultProxy) -> None:
    """Design 2.4: sessions at the tail that are closed while events arrive all end, also on Python 3.11, where the
    SDK's close may wait for ever once a frame is buffered.
    """
    stop = threading.Event()
    topics = [f"{LIVE}-{number}" for number in range(5)]

    def write() -> None:
        while not stop.is_set():
            for topic in topics:
                through.publish(topic, type="chunk", data=0)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    for _ in range(12):
        subscriptions = [through.subscribe(topic) for topic in topics]
        for events in subscriptions:
            events.get(LONG)
        for events in subscriptions:
            events.close()
    stop.set()
    writer.join(LONG)
    eventually(lambda: all(seen.finished for seen in proxy.seen(READ_SESSION)))
    assert len(proxy.seen(READ_SESSION)) >= 60
