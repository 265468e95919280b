"""Subscribers of one topic in one client share a read session at the tail, and nothing else."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator

import pytest

from s2pubsub import Event, OperationTimeoutError, S2PubSub, Subscription, TopicGoneError
from tests.faults import READ_SESSION, Effect, FaultProxy
from tests.raw import Streams
from tests.servers import ON_LITE, Server
from tests.topics import MakePubSub, fill, indices, on_threads
from tests.waiting import LONG, eventually

TOPIC = "agent.stream.shared"


def open_sessions(proxy: FaultProxy) -> int:
    return sum(1 for seen in proxy.seen(READ_SESSION) if not seen.finished)


def close(subscriptions: list[Subscription]) -> None:
    for events in subscriptions:
        events.close()


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads switch as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@ON_LITE
def test_live_subscribers_share_a_session(through: S2PubSub, proxy: FaultProxy) -> None:
    """Eight live subscribers end up with one session, each gets every event, and the last one to leave closes it."""
    fill(through, TOPIC, 3)
    subscriptions = [through.subscribe(TOPIC) for _ in range(8)]
    eventually(lambda: open_sessions(proxy) == 1)
    fill(through, TOPIC, 5, first=3)
    for events in subscriptions:
        assert indices(events, 5) == [3, 4, 5, 6, 7]
    for events in subscriptions[:7]:
        events.close()
        assert open_sessions(proxy) == 1
    assert through.publish(TOPIC, type="chunk", data=8).index == 8
    assert indices(subscriptions[7], 1) == [8]
    subscriptions[7].close()
    eventually(lambda: open_sessions(proxy) == 0)


@ON_LITE
def test_a_replay_joins_when_it_has_caught_up(through: S2PubSub, proxy: FaultProxy) -> None:
    """A subscriber from the first event reads a session of its own up to the tail, then the one of the live ones."""
    fill(through, TOPIC, 200)
    with through.subscribe(TOPIC) as live, through.subscribe_with_replay(TOPIC) as replay:
        assert indices(replay, 200) == list(range(200))
        eventually(lambda: open_sessions(proxy) == 1)
        fill(through, TOPIC, 3, first=200)
        assert indices(replay, 3) == indices(live, 3) == [200, 201, 202]
        with pytest.raises(TimeoutError):
            replay.get(0.1)


@ON_LITE
def test_joining_a_session_that_lags(through: S2PubSub, pubsub: S2PubSub, proxy: FaultProxy) -> None:
    """A new subscriber whose look-up found a later tail than the shared session has reached waits at its place: this is
    not a topic that was deleted and made anew. Once the session goes on, each gets what is its own.
    """
    fill(through, TOPIC, 3)
    with through.subscribe(TOPIC) as first:
        eventually(lambda: [seen.frames for seen in proxy.seen(READ_SESSION)] == [1])  # it is at the tail
        assert proxy.strike(READ_SESSION, Effect(do="silence")) == 1
        fill(pubsub, TOPIC, 2, first=3)
        with through.subscribe(TOPIC) as late:
            with pytest.raises(OperationTimeoutError):
                late.get(0.5)
            assert len(proxy.seen(READ_SESSION)) == 1
            proxy.cut()
            fill(pubsub, TOPIC, 1, first=5)
            assert indices(first, 3) == [3, 4, 5]
            assert indices(late, 1) == [5]


@ON_LITE
def test_joining_a_session_that_lags_before_the_tail(through: S2PubSub, pubsub: S2PubSub, proxy: FaultProxy) -> None:
    """The same for one that begins where the lagging session stands, before the tail that its look-up has found."""
    fill(through, TOPIC, 3)
    with through.subscribe(TOPIC) as first:
        eventually(lambda: [seen.frames for seen in proxy.seen(READ_SESSION)] == [1])  # it is at the tail
        assert proxy.strike(READ_SESSION, Effect(do="silence")) == 1
        fill(pubsub, TOPIC, 2, first=3)
        with through.subscribe_from_offset(TOPIC, 3) as resumed:
            with pytest.raises(OperationTimeoutError):
                resumed.get(0.5)
            assert len(proxy.seen(READ_SESSION)) == 1
            proxy.cut()
            fill(pubsub, TOPIC, 1, first=5)
            assert indices(resumed, 3) == indices(first, 3) == [3, 4, 5]


def test_each_decodes_its_own_copy(pubsub: S2PubSub) -> None:
    """C64: what one subscriber does to an event's data does not show at another that reads the same session."""
    subscriptions = [pubsub.subscribe(TOPIC) for _ in range(3)]
    pubsub.publish(TOPIC, type="chunk", data={"list": [1]})
    first, *others = (events.get(LONG) for events in subscriptions)
    first.data["list"].append(2)
    assert [event.data for event in others] == [{"list": [1]}] * 2
    close(subscriptions)


@pytest.mark.limit(60)
def test_a_slow_one_goes_its_own_way(make_pubsub: MakePubSub) -> None:
    """A subscriber that stops taking is put off while the others read on without it; in the end it has read each index
    once, in order.
    """
    pubsub = make_pubsub(queue_size=100)
    slow, fast = pubsub.subscribe(TOPIC), pubsub.subscribe(TOPIC)
    count = 0
    while not pubsub.stats().parked:
        pubsub.publish_many(TOPIC, [{"type": "chunk", "data": "x" * 900}] * 500)
        assert indices(fast, 500) == list(range(count, count + 500))
        count += 500
    assert indices(slow, count) == list(range(count))
    assert pubsub.publish(TOPIC, type="chunk", data="last").index == count
    assert indices(slow, 1) == indices(fast, 1) == [count]
    close([slow, fast])


@ON_LITE
@pytest.mark.parametrize("how", ["fin", "rst"])
def test_the_session_breaks(through: S2PubSub, proxy: FaultProxy, how: str) -> None:
    """C01: cut three times, every sharer goes on with the next index, and they share a session again."""
    subscriptions = [through.subscribe(TOPIC) for _ in range(5)]
    count = 0
    for _ in range(3):
        fill(through, TOPIC, 4, first=count)
        for events in subscriptions:
            assert indices(events, 4) == list(range(count, count + 4))
        count += 4
        proxy.cut(how=how)
        eventually(lambda: open_sessions(proxy) == 1)
    fill(through, TOPIC, 2, first=count)
    for events in subscriptions:
        assert indices(events, 2) == [count, count + 1]
    close(subscriptions)


def test_an_index_beyond_the_tail(pubsub: S2PubSub) -> None:
    """One that waits for a later index shares too, and gets nothing before it."""
    fill(pubsub, TOPIC, 2)
    with pubsub.subscribe(TOPIC) as live, pubsub.subscribe(TOPIC, start=5) as later:
        fill(pubsub, TOPIC, 6, first=2)
        assert indices(live, 6) == [2, 3, 4, 5, 6, 7]
        assert indices(later, 3) == [5, 6, 7]


def test_the_topic_is_deleted(pubsub: S2PubSub, server: Server, basin: str) -> None:
    """C04: every sharer gets TopicGoneError, after what it had not taken yet."""
    subscriptions = [pubsub.subscribe(TOPIC) for _ in range(4)]
    fill(pubsub, TOPIC, 3)
    eventually(lambda: all(events.queued == 3 for events in subscriptions))
    Streams(server, basin).delete(TOPIC)
    for events in subscriptions:
        assert indices(events, 3) == [0, 1, 2]
        with pytest.raises(TopicGoneError):
            events.get(LONG)


@pytest.mark.slow
@pytest.mark.limit(120)
def test_beginning_near_the_tail(make_pubsub: MakePubSub, hasty: None) -> None:
    """While four threads of two clients publish as fast as they can, eight begin again and again at the tail, a little
    before and a little behind it: each gets its indices, and nobody takes the topic for deleted.
    """
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    pubsub, other = make_pubsub(), make_pubsub()
    stored = [pubsub.publish(TOPIC, type="chunk", data=0).index or 0]
    reading = list(range(8))

    def work(number: int) -> None:
        if number in reading:
            try:
                read(random.Random(seed + number))
            finally:
                reading.remove(number)
        else:
            publish((pubsub, other)[number % 2])

    def publish(client: S2PubSub) -> None:
        while reading:
            stored[0] = client.publish(TOPIC, type="chunk", data=0).index or 0

    def read(rng: random.Random) -> None:
        for _ in range(40):
            start = rng.choice(["latest", max(0, stored[0] + rng.randrange(-2, 5))])
            with pubsub.subscribe(TOPIC, start=start) as events:
                first, count = events.next_index, rng.choice([1, 3, 30])
                assert indices(events, count) == list(range(first, first + count))

    on_threads(12, work, 100)


@pytest.mark.limit(120)
@pytest.mark.parametrize("round_", range(2))
def test_coming_and_going(make_pubsub: MakePubSub, hasty: None, round_: int) -> None:
    """While a thread publishes without a pause, subscribers join from any index, stop taking, go on and leave: each
    has seen its indices without a gap and without a double.
    """
    seed = random.randrange(10**6)
    print(f"round {round_}, seed {seed}")
    rng = random.Random(seed)
    pubsub = make_pubsub(queue_size=50, queue_bytes=20_000)
    stop = threading.Event()
    published = threading.Semaphore(0)

    def publish() -> None:
        while not stop.is_set():
            pubsub.publish_many(TOPIC, [{"type": "chunk", "data": "x" * 3000}] * 20)
            published.release()

    publishing = threading.Thread(target=publish, daemon=True)
    publishing.start()
    reading: list[Subscription] = []
    called: list[list[int | None]] = []
    for _ in range(100):
        assert published.acquire(timeout=LONG)
        match rng.randrange(4):
            case 0:
                reading.append(pubsub.subscribe(TOPIC))
            case 1:
                reading.append(pubsub.subscribe_from_offset(TOPIC, rng.randrange(pubsub.tail(TOPIC) + 1)))
            case 2:
                seen: list[int | None] = []
                called.append(seen)
                pubsub.subscribe(TOPIC, lambda event, seen=seen: seen.append(event.index))
            case _ if reading:
                events = rng.choice(reading)
                first = events.next_index
                assert indices(events, 200) == list(range(first, first + 200))
                if rng.random() < 0.3:
                    reading.remove(events)
                    events.close()
    stop.set()
    publishing.join(LONG)
    tail = pubsub.tail(TOPIC)
    for events in reading:
        first = events.next_index
        assert indices(events, tail - first) == list(range(first, tail))
        with pytest.raises(TimeoutError):
            events.get(0)
    eventually(lambda: all(not seen or seen[-1] == tail - 1 for seen in called), LONG)
    for seen in called:
        assert not seen or seen == list(range(seen[0] or 0, tail))
    assert isinstance(pubsub.get_history(TOPIC, tail - 1)[0], Event)
    close(reading)
