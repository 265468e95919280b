"""Following a topic: positions, exact resume, trimmed events and control records."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest

from s2pubsub import (
    Event,
    ReplayGapError,
    S2PubSub,
)
from tests.faults import READ_SESSION, After, FaultProxy
from tests.raw import Streams
from tests.servers import ON_LITE
from tests.topics import fill, indices, sessions
from tests.waiting import LONG, eventually

TOPIC = "agent.stream.reading"

# C01: sessions that the server ends.


@ON_LITE
@pytest.mark.slow
@pytest.mark.limit(60)
def test_idle_sessions_that_are_ended_again_and_again(through: S2PubSub, proxy: FaultProxy) -> None:
    """C01: six times in a row the idle session ends with 503; the next event comes once, and the waits grow."""
    fill(through, TOPIC, 5)
    rule = proxy.end_session(READ_SESSION, status=503, times=6, after=After(seconds=0.3))
    with through.subscribe(TOPIC, start=5) as events:
        rule.wait(6, timeout=30)
        proxy.wait_for(READ_SESSION, 7)
        index = through.publish(TOPIC, type="chunk", data=5).index
        assert index == 5
        assert indices(events, 1) == [5]
        began = [seen.at for seen in proxy.seen(READ_SESSION)]
        assert sessions(proxy) == [5] * 7
        gaps = [after - before for before, after in itertools.pairwise(began)]
        assert gaps[0] >= 0.5
        assert all(longer > shorter for shorter, longer in itertools.pairwise(gaps))
        assert gaps[5] < 0.3 + 5.25 + 1
        assert through.stats().reconnects == 6


@ON_LITE
@pytest.mark.parametrize("how", ["terminal 503", "orderly end", "reset", "fin", "rst", "goaway", "503", "429", "500"])
def test_every_kind_of_end(through: S2PubSub, proxy: FaultProxy, how: str) -> None:
    """C01: whatever ends a session twice, after index 2 and when idle, the reader sees the topic once, in order."""
    fill(through, TOPIC, 5)
    for after in (After(index=2), After(index=4)):
        match how:
            case "terminal 503":
                proxy.end_session(READ_SESSION, after=after)
            case "orderly end":
                proxy.finish_session(READ_SESSION, after=after)
            case "reset":
                proxy.reset_stream(READ_SESSION, after=after)
            case "fin" | "rst":
                proxy.cut_on(READ_SESSION, how=how, after=after)
            case "goaway":
                proxy.goaway_on(READ_SESSION, after=after)
            case _:
                proxy.finish_session(READ_SESSION, after=after)
                proxy.answer(READ_SESSION, status=int(how), code="other")
    with through.subscribe(TOPIC, start="earliest") as events:
        assert indices(events, 5) == [0, 1, 2, 3, 4]
        expected = 5 if how.isdigit() else 3
        proxy.wait_for(READ_SESSION, expected)
        fill(through, TOPIC, 2, first=5)
        assert indices(events, 2) == [5, 6]
        asked = sessions(proxy)
        if how == "rst":  # it may overtake what was sent before it
            assert asked == sorted(asked, key=int)
        else:
            assert asked == ([0, 3, 3, 5, 5] if how.isdigit() else [0, 3, 5])


# C02: one increasing sequence from each offset.


def test_offsets_in_the_middle_of_traffic(pubsub: S2PubSub) -> None:
    """C02: subscribers from 0, 4, 9, 10 and 25 see offset, offset + 1, …, 49, while one thread publishes."""
    fill(pubsub, TOPIC, 10)
    publishing = threading.Thread(
        target=lambda: [pubsub.publish(TOPIC, type="chunk", data=n) for n in range(10, 50)], daemon=True
    )
    publishing.start()
    offsets = (0, 4, 9, 10, 25)
    subscriptions = [pubsub.subscribe_from_offset(TOPIC, offset) for offset in offsets]
    for offset, events in zip(offsets, subscriptions, strict=True):
        found = [events.get(LONG) for _ in range(50 - offset)]
        assert [event.index for event in found] == list(range(offset, 50))
        assert [event.data for event in found] == list(range(offset, 50))
        with pytest.raises(TimeoutError):
            events.get(0)
        events.close()
    publishing.join(LONG)


def test_offsets_by_callback(pubsub: S2PubSub) -> None:
    """C02: the same by callbacks, with large events between small ones, so that batches differ in size."""
    sizes = [10, 300_000, 10, 10, 900_000, 10, 10, 10, 700_000, 10]
    pubsub.publish_many(TOPIC, [{"type": "chunk", "data": "x" * size} for size in sizes])
    offsets = (0, 3, 5, 12)
    seen: dict[int, list[int | None]] = {offset: [] for offset in offsets}
    complete = threading.Semaphore(0)

    def receiver(offset: int) -> Callable[[Event], None]:
        def receive(event: Event) -> None:
            seen[offset].append(event.index)
            if event.index == 19:
                complete.release()

        return receive

    subscriptions = [pubsub.subscribe_from_offset(TOPIC, offset, receiver(offset)) for offset in offsets]
    pubsub.publish_many(TOPIC, [{"type": "chunk", "data": "y" * size} for size in sizes])
    for _ in offsets:
        assert complete.acquire(timeout=LONG)
    for subscription in subscriptions:
        subscription.close()
    assert seen == {offset: list(range(offset, 20)) for offset in offsets}


def test_latest_is_exact(pubsub: S2PubSub) -> None:
    """Design 2.8: what is published after ``subscribe`` has returned is seen, all of it, and nothing from before."""
    for number in range(30):
        with pubsub.subscribe(TOPIC) as events:
            assert events.next_index == number
            pubsub.publish(TOPIC, type="chunk", data=number)
            assert indices(events, 1) == [number]


# C03: the position that is asked for.


@ON_LITE
def test_the_next_position_until_it_was_delivered(through: S2PubSub, proxy: FaultProxy) -> None:
    """C03: cut twice before anything arrives, every session asks for 7, also where that is the exact tail at the call;
    the event that was published meanwhile comes once.
    """
    fill(through, TOPIC, 7)
    for subscribe in (
        lambda: through.subscribe_from_offset(TOPIC, 7),
        lambda: through.subscribe(TOPIC),
    ):
        proxy.forget()
        rule = proxy.cut_on(READ_SESSION, times=2, after=After(frames=1))
        with subscribe() as events:
            rule.wait(2)
            through.publish(TOPIC, type="chunk", data="meanwhile")
            tail = through.tail(TOPIC)
            start = tail - 1
            assert indices(events, 1) == [start]
            assert sessions(proxy) == [start] * 3
            with pytest.raises(TimeoutError):
                events.get(0.1)
        through.clear_topic(TOPIC, strict=True)
        fill(through, TOPIC, 7)


@ON_LITE
def test_a_later_position_after_delivery(through: S2PubSub, proxy: FaultProxy) -> None:
    """C03: cut after index 2 and again after index 5 the sessions ask for 0, 3 and 6; each index comes once."""
    fill(through, TOPIC, 7)
    proxy.cut_on(READ_SESSION, after=After(index=2))
    proxy.cut_on(READ_SESSION, after=After(index=5))
    with through.subscribe_with_replay(TOPIC) as events:
        assert indices(events, 7) == list(range(7))
        assert sessions(proxy) == [0, 3, 6]


@ON_LITE
def test_positions_of_a_callback(through: S2PubSub, proxy: FaultProxy) -> None:
    """C03: a callback that is cut off in the middle of a batch gets each index once."""
    fill(through, TOPIC, 7)
    proxy.cut_on(READ_SESSION, after=After(index=1), how="rst")
    proxy.cut_on(READ_SESSION, after=After(index=4), how="rst")
    seen: list[int | None] = []
    done = threading.Event()

    def receive(event: Event) -> None:
        seen.append(event.index)
        if event.index == 6:
            done.set()

    with through.subscribe_with_replay(TOPIC, receive) as subscription:
        assert done.wait(LONG)
        assert seen == list(range(7))
        eventually(lambda: subscription.next_index == 7)


# C05: trimmed events.


def test_trimmed_events(pubsub: S2PubSub, streams: Streams) -> None:
    """C05: events 0 to 9 are trimmed: a reader from 0 gets the replay-gap error and no event, one from 10 the rest."""
    fill(pubsub, TOPIC, 20)
    streams.trim(TOPIC, 10)
    eventually(lambda: streams.first(TOPIC) == 10)
    with pubsub.subscribe_from_offset(TOPIC, 0) as events:
        for _ in range(2):  # a failure stays a failure
            with pytest.raises(ReplayGapError) as caught:
                events.get(LONG)
            assert (caught.value.topic, caught.value.expected, caught.value.actual) == (TOPIC, 0, 10)
    with pubsub.subscribe_from_offset(TOPIC, 10) as events:
        assert indices(events, 10) == list(range(10, 20))
    with pubsub.subscribe(TOPIC) as events:
        pubsub.publish(TOPIC, type="chunk", data=1)
        assert indices(events, 1) == [21]  # 20 is the trim command


def test_a_topic_that_was_trimmed_as_a_whole(pubsub: S2PubSub, streams: Streams) -> None:
    """C05: nothing is retained and the tail is at 21: a reader from 0 is told, one from the tail waits."""
    fill(pubsub, TOPIC, 20)
    streams.trim(TOPIC, 21)
    eventually(lambda: streams.first(TOPIC) is None)
    errors: list[BaseException] = []
    told = threading.Event()

    def hook(error: BaseException) -> None:
        errors.append(error)
        told.set()

    with pubsub.subscribe_with_replay(TOPIC, print, on_error=hook) as called:
        assert told.wait(LONG)
        assert [(type(error), getattr(error, "actual", None)) for error in errors] == [(ReplayGapError, 21)]
        with pytest.raises(ReplayGapError):
            called.wait(LONG)
    with pubsub.subscribe_from_offset(TOPIC, 0) as events, pytest.raises(ReplayGapError) as caught:
        next(events)
    assert (caught.value.expected, caught.value.actual) == (0, 21)
    with pubsub.subscribe_from_offset(TOPIC, 21) as events:
        pubsub.publish(TOPIC, type="chunk", data=1)
        assert indices(events, 1) == [21]


@ON_LITE
def test_events_that_are_trimmed_during_an_outage(through: S2PubSub, proxy: FaultProxy, streams: Streams) -> None:
    """C05: what is trimmed while a reader is cut off is a gap at its reader, behind the events it had been given."""
    fill(through, TOPIC, 3)
    with through.subscribe_from_offset(TOPIC, 0) as events:
        assert indices(events, 1) == [0]
        with proxy.refusing():
            proxy.cut()
            streams.append(TOPIC, b"{}", b"{}")
            streams.trim(TOPIC, 5)
            eventually(lambda: streams.first(TOPIC) == 5)
        assert indices(events, 2) == [1, 2]
        with pytest.raises(ReplayGapError) as caught:
            events.get(LONG)
        assert (caught.value.expected, caught.value.actual) == (3, 5)


# C06: control records.


@ON_LITE
def test_control_records_are_counted(through: S2PubSub, proxy: FaultProxy, streams: Streams) -> None:
    """C06: fences at 2 and 3 are stepped over: 0, 1, 4; after a cut behind 1 only 4 follows; a reader from 2 gets 4."""
    topic = "agent.thread-stream.reading"
    fill(through, topic, 2)
    assert streams.fence(topic, "one") == 2
    assert streams.fence(topic, "two") == 3
    fill(through, topic, 1)
    assert [event.index for event in through.get_history(topic)] == [0, 1, 4]
    assert [event.index for event in through.get_history(topic, 2)] == [4]
    proxy.cut_on(READ_SESSION, after=After(index=1))
    with through.subscribe_from_offset(topic, 0) as events:
        assert indices(events, 3) == [0, 1, 4]
        assert events.next_index == 5
        assert sessions(proxy) == [0, 2]
    with through.subscribe_from_offset(topic, 2) as events:
        assert indices(events, 1) == [4]
        streams.fence(topic, "three")
        eventually(lambda: events.next_index == 6)
        fill(through, topic, 1)
        assert indices(events, 1) == [6]


def test_a_topic_of_control_records_only(pubsub: S2PubSub, streams: Streams) -> None:
    """C06: where there are only control records nothing is delivered and nothing is wrong."""
    topic = "agent.thread-stream.reading"
    for number in range(3):
        streams.fence(topic, str(number))
    assert pubsub.get_history(topic) == []
    with pubsub.subscribe_with_replay(topic) as events:
        eventually(lambda: events.next_index == 3)
        with pytest.raises(TimeoutError):
            events.get(0)
        fill(pubsub, topic, 1)
        assert indices(events, 1) == [3]
