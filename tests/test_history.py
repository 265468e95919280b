"""Reading what is stored: pages, positions, cuts, trimming and absence."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import s2_sdk

from s2pubsub import Event, OperationTimeoutError, ReplayGapError, S2PubSub, StoreError, TopicGoneError
from tests.faults import READ_SESSION, TAIL, After, FaultProxy, Request
from tests.raw import Streams
from tests.servers import ON_LITE, Server
from tests.topics import MakePubSub, sessions
from tests.waiting import LONG, eventually

TOPIC = "agent.stream.history"
READ = Request(kind="read")


def fill(pubsub: S2PubSub, count: int, first: int = 0, size: int = 0) -> None:
    filling = "x" * size
    pubsub.publish_many(TOPIC, [{"type": "chunk", "data": [n, filling]} for n in range(first, first + count)])


def collect(history: Iterator[Event], found: list[int | None]) -> None:
    """Append the indices of what is left, as far as it comes."""
    while True:
        found.append(next(history).index)


def test_at_the_end_and_beyond(pubsub: S2PubSub) -> None:
    """C04: from the tail and from beyond it history is empty, so is that of a topic never written; a subscriber from
    the tail gets what comes next.
    """
    fill(pubsub, 3)
    assert pubsub.get_history(TOPIC, 3) == []
    assert pubsub.get_history(TOPIC, 50) == []
    assert pubsub.get_history(f"{TOPIC}-unwritten") == []
    assert pubsub.get_history(f"{TOPIC}-unwritten", 7) == []
    assert list(pubsub.iter_history(TOPIC, 3)) == []
    with pubsub.subscribe_from_offset(TOPIC, 3) as events:
        fill(pubsub, 1, first=3)
        assert events.get(LONG).index == 3
        with pytest.raises(TimeoutError):
            events.get(0.1)


def test_absence_on_a_basin_without_create_on_read(
    make_pubsub: MakePubSub, make_basin: Callable[..., str], server: Server
) -> None:
    """C04: an absent topic is empty there too, and asking makes no stream."""
    basin = make_basin(create_stream_on_append=True)
    pubsub = make_pubsub(basin=basin)
    assert pubsub.get_history(TOPIC) == []
    assert pubsub.tail(TOPIC) == 0
    assert not pubsub.exists(TOPIC)
    assert Streams(server, basin).names() == []
    fill(pubsub, 1)
    assert pubsub.tail(TOPIC) == 1
    assert pubsub.exists(TOPIC)


@pytest.mark.parametrize("count", [1, 999, 1000, 1001, 2500])
def test_pages(pubsub: S2PubSub, count: int) -> None:
    """Every event from every offset, around the size of a page, as a list and one at a time."""
    fill(pubsub, count)
    for offset in (0, 1, count // 2, count - 1, -3):
        expected = list(range(max(0, offset), count))
        assert [event.index for event in pubsub.get_history(TOPIC, offset)] == expected
        assert [event.data[0] for event in pubsub.iter_history(TOPIC, offset)] == expected


def test_large_events(pubsub: S2PubSub) -> None:
    """Pages that are bounded by bytes and not by number."""
    fill(pubsub, 12, size=700_000)
    assert [event.data[0] for event in pubsub.iter_history(TOPIC)] == list(range(12))


def test_it_ends_at_the_tail_of_the_call(pubsub: S2PubSub) -> None:
    """What is published after the call is not part of it, even if that is while it is being read."""
    fill(pubsub, 2500)
    history = pubsub.iter_history(TOPIC)
    found = [next(history).index]
    fill(pubsub, 700, first=2500)
    found += [event.index for event in history]
    assert found == list(range(2500))


def test_trimmed(pubsub: S2PubSub, streams: Streams) -> None:
    """C05: from a trimmed index the replay-gap error before any event; from the first that remains, the rest."""
    fill(pubsub, 20)
    streams.trim(TOPIC, 10)
    eventually(lambda: streams.first(TOPIC) == 10)
    for offset in (0, 9):
        for read in (pubsub.get_history, lambda topic, at: next(pubsub.iter_history(topic, at))):
            with pytest.raises(ReplayGapError) as caught:
                read(TOPIC, offset)
            assert (caught.value.topic, caught.value.expected, caught.value.actual) == (TOPIC, offset, 10)
    assert [event.index for event in pubsub.get_history(TOPIC, 10)] == list(range(10, 20))


def test_trimmed_as_a_whole(pubsub: S2PubSub, streams: Streams) -> None:
    """C05: nothing is retained though the tail is ahead: the replay-gap error, never an empty answer."""
    fill(pubsub, 20)
    streams.trim(TOPIC, 21)
    eventually(lambda: streams.first(TOPIC) is None)
    for offset in (0, 20):
        with pytest.raises(ReplayGapError) as caught:
            pubsub.get_history(TOPIC, offset)
        assert (caught.value.expected, caught.value.actual) == (offset, 21)
    assert pubsub.get_history(TOPIC, 21) == []


def test_trimmed_while_it_is_read(pubsub: S2PubSub, streams: Streams) -> None:
    """C05: what is trimmed between two pages is a gap behind the events that were given."""
    fill(pubsub, 5000)
    history = pubsub.iter_history(TOPIC)
    found = [next(history).index]
    streams.trim(TOPIC, 4000)
    eventually(lambda: streams.first(TOPIC) == 4000)
    with pytest.raises(ReplayGapError) as caught:
        collect(history, found)
    assert found == list(range(len(found)))
    assert caught.value.expected == len(found)
    assert caught.value.actual == 4000


@ON_LITE
def test_cuts(through: S2PubSub, proxy: FaultProxy) -> None:
    """C03: a history whose connection is cut goes on at the exact next index."""
    fill(through, 6000)
    proxy.cut_on(READ_SESSION, after=After(index=1499))
    proxy.finish_session(READ_SESSION, after=After(index=2999))
    proxy.end_session(READ_SESSION, after=After(index=3999))
    found = [event.index for event in through.iter_history(TOPIC)]
    assert found == list(range(6000))
    asked = sessions(proxy)
    assert asked[:2] == [1000, 1500]
    assert asked[2:] in ([3000, 4000], [4000, 4000])  # an orderly end is followed by one unary page


@ON_LITE
def test_a_deleted_topic(through: S2PubSub, proxy: FaultProxy, streams: Streams) -> None:
    """Deleted between two pages: TopicGoneError behind what was given; and it is not made anew."""
    fill(through, 3000)
    history = through.iter_history(TOPIC)
    found = [next(history).index]
    streams.delete(TOPIC)
    eventually(lambda: streams.names() == [])
    with pytest.raises(TopicGoneError):
        collect(history, found)
    assert found == list(range(1000))
    assert streams.names() == []


@ON_LITE
@pytest.mark.parametrize("where", ["tail", "read", "session"])
@pytest.mark.parametrize(("status", "code"), [(403, "permission_denied"), (404, "basin_not_found")])
def test_refusals(through: S2PubSub, proxy: FaultProxy, where: str, status: int, code: str) -> None:
    """C09: A refusal at any step is raised; a basin that does not exist never looks like an empty topic."""
    fill(through, 1500)
    match = {"tail": TAIL, "read": READ, "session": READ_SESSION}[where]
    rule = proxy.answer(match, status=status, code=code, times=None)
    with pytest.raises(StoreError) as caught:
        through.get_history(TOPIC)
    assert (caught.value.status, caught.value.code) == (status, code)
    assert isinstance(caught.value.__cause__, s2_sdk.S2ServerError)
    assert rule.hits == 1


@ON_LITE
def test_silence(through: S2PubSub, proxy: FaultProxy) -> None:
    """C15: the limit holds for each page; what was given before counts, and the session is closed."""
    fill(through, 2500)
    proxy.silence(READ_SESSION, times=None, after=After(records=500))
    history = through.iter_history(TOPIC, timeout=1)
    found = []
    started = time.monotonic()
    with pytest.raises(OperationTimeoutError):
        collect(history, found)
    assert 0.9 < time.monotonic() - started < 3
    assert found == list(range(1500))
    eventually(lambda: all(seen.finished for seen in proxy.seen(READ_SESSION)))


@ON_LITE
def test_an_outage_between_pages(through: S2PubSub, proxy: FaultProxy) -> None:
    """It goes on when the server is back in time, and raises the outage's own error when it is not."""
    fill(through, 2500)
    for back in (True, False):
        history = through.iter_history(TOPIC, timeout=2)
        found = [next(history).index for _ in range(1000)]
        with proxy.refusing():
            proxy.cut()
            if back:
                timer = threading.Timer(0.5, proxy.accept)
                timer.start()
                found += [event.index for event in history]
                timer.join()
            else:
                started = time.monotonic()
                with pytest.raises(StoreError) as caught:
                    next(history)
                assert time.monotonic() - started < 3
                assert (caught.value.code, caught.value.status) == ("connection", None)
        assert found == list(range(2500 if back else 1000))


@ON_LITE
def test_an_iterator_that_is_left_closes_its_session(through: S2PubSub, proxy: FaultProxy) -> None:
    """C32: Leaving the loop early, by break or by closing the generator, ends the session at the server."""
    fill(through, 15_000, size=850)
    history = through.iter_history(TOPIC)
    for event in history:
        if event.index == 1200:
            break
    history.close()  # type: ignore[attr-defined]
    eventually(lambda: [seen.finished for seen in proxy.seen(READ_SESSION)] == ["client reset"])


def test_arguments_are_checked_at_the_call(pubsub: S2PubSub) -> None:
    """Not at the first event."""
    with pytest.raises(TypeError):
        pubsub.iter_history(TOPIC, "1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="topic"):
        pubsub.iter_history("")
