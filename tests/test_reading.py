"""Following a topic: positions, resuming after every kind of interruption, and what ends a subscription."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import s2_sdk

from s2pubsub import ClosedError, Event, ReplayGapError, S2PubSub, StoreError, Subscription, TopicGoneError
from tests.faults import READ_SESSION, After, FaultProxy, Request
from tests.raw import Streams
from tests.servers import CREATE_STREAMS, ON_LITE, Server
from tests.waiting import LONG, eventually

MakePubSub = Callable[..., S2PubSub]
TOPIC = "agent.stream.reading"


def fill(pubsub: S2PubSub, count: int, topic: str = TOPIC, first: int = 0) -> None:
    """Publish events whose data is the number they have in order."""
    pubsub.publish_many(topic, [{"type": "chunk", "data": n} for n in range(first, first + count)])


def take(events: Subscription, count: int) -> list[int | None]:
    """The indices of the next ``count`` events."""
    return [events.get(LONG).index for _ in range(count)]


def sessions(proxy: FaultProxy) -> list[int | None]:
    """What each read session asked for."""
    return [seen.seq_num for seen in proxy.seen(READ_SESSION)]


def worker_of(topic: str = TOPIC) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == f"s2pubsub-sub-{topic}"]


@pytest.fixture
def through(make_pubsub: MakePubSub, proxy: FaultProxy) -> S2PubSub:
    """A client whose requests go through the proxy."""
    return make_pubsub(endpoints=proxy.url, access_token="test")


@pytest.fixture
def streams(server: Server, basin: str) -> Streams:
    return Streams(server, basin)


# C01: sessions that the server ends.


@ON_LITE
@pytest.mark.slow
@pytest.mark.limit(60)
def test_idle_sessions_that_are_ended_again_and_again(through: S2PubSub, proxy: FaultProxy) -> None:
    """C01: six times in a row the idle session ends with 503; the next event comes once, and the waits grow."""
    fill(through, 5)
    rule = proxy.end_session(READ_SESSION, status=503, times=6, after=After(seconds=0.3))
    with through.subscribe(TOPIC, start=5) as events:
        rule.wait(6, timeout=30)
        proxy.wait_for(READ_SESSION, 7)
        index = through.publish(TOPIC, type="chunk", data=5).index
        assert index == 5
        assert take(events, 1) == [5]
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
    fill(through, 5)
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
        assert take(events, 5) == [0, 1, 2, 3, 4]
        expected = 5 if how.isdigit() else 3
        proxy.wait_for(READ_SESSION, expected)
        fill(through, 2, first=5)
        assert take(events, 2) == [5, 6]
        asked = sessions(proxy)
        if how == "rst":  # it may overtake what was sent before it
            assert asked == sorted(asked, key=int)
        else:
            assert asked == ([0, 3, 3, 5, 5] if how.isdigit() else [0, 3, 5])


# C02: one increasing sequence from each offset.


def test_offsets_in_the_middle_of_traffic(pubsub: S2PubSub) -> None:
    """C02: subscribers from 0, 4, 9, 10 and 25 see offset, offset + 1, …, 49, while one thread publishes."""
    fill(pubsub, 10)
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
            assert take(events, 1) == [number]


# C03: the position that is asked for.


@ON_LITE
def test_the_next_position_until_it_was_delivered(through: S2PubSub, proxy: FaultProxy) -> None:
    """C03: cut twice before anything arrives, every session asks for 7, also where that is the exact tail at the call;
    the event that was published meanwhile comes once.
    """
    fill(through, 7)
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
            assert take(events, 1) == [start]
            assert sessions(proxy) == [start] * 3
            with pytest.raises(TimeoutError):
                events.get(0.1)
        through.clear_topic(TOPIC, strict=True)
        fill(through, 7)


@ON_LITE
def test_a_later_position_after_delivery(through: S2PubSub, proxy: FaultProxy) -> None:
    """C03: cut after index 2 and again after index 5 the sessions ask for 0, 3 and 6; each index comes once."""
    fill(through, 7)
    proxy.cut_on(READ_SESSION, after=After(index=2))
    proxy.cut_on(READ_SESSION, after=After(index=5))
    with through.subscribe_with_replay(TOPIC) as events:
        assert take(events, 7) == list(range(7))
        assert sessions(proxy) == [0, 3, 6]


@ON_LITE
def test_positions_of_a_callback(through: S2PubSub, proxy: FaultProxy) -> None:
    """C03: a callback that is cut off in the middle of a batch gets each index once."""
    fill(through, 7)
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
    fill(pubsub, 20)
    streams.trim(TOPIC, 10)
    eventually(lambda: streams.first(TOPIC) == 10)
    with pubsub.subscribe_from_offset(TOPIC, 0) as events:
        for _ in range(2):  # a failure stays a failure
            with pytest.raises(ReplayGapError) as caught:
                events.get(LONG)
            assert (caught.value.topic, caught.value.expected, caught.value.actual) == (TOPIC, 0, 10)
    with pubsub.subscribe_from_offset(TOPIC, 10) as events:
        assert take(events, 10) == list(range(10, 20))
    with pubsub.subscribe(TOPIC) as events:
        pubsub.publish(TOPIC, type="chunk", data=1)
        assert take(events, 1) == [21]  # 20 is the trim command


def test_a_topic_that_was_trimmed_as_a_whole(pubsub: S2PubSub, streams: Streams) -> None:
    """C05: nothing is retained and the tail is at 21: a reader from 0 is told, one from the tail waits."""
    fill(pubsub, 20)
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
        assert take(events, 1) == [21]


@ON_LITE
def test_events_that_are_trimmed_during_an_outage(through: S2PubSub, proxy: FaultProxy, streams: Streams) -> None:
    """C05: what is trimmed while a reader is cut off is a gap at its reader, behind the events it had been given."""
    fill(through, 3)
    with through.subscribe_from_offset(TOPIC, 0) as events:
        assert take(events, 1) == [0]
        with proxy.refusing():
            proxy.cut()
            streams.append(TOPIC, b"{}", b"{}")
            streams.trim(TOPIC, 5)
            eventually(lambda: streams.first(TOPIC) == 5)
        assert take(events, 2) == [1, 2]
        with pytest.raises(ReplayGapError) as caught:
            events.get(LONG)
        assert (caught.value.expected, caught.value.actual) == (3, 5)


# C06: control records.


@ON_LITE
def test_control_records_are_counted(through: S2PubSub, proxy: FaultProxy, streams: Streams) -> None:
    """C06: fences at 2 and 3 are stepped over: 0, 1, 4; after a cut behind 1 only 4 follows; a reader from 2 gets 4."""
    topic = "agent.thread-stream.reading"
    fill(through, 2, topic)
    assert streams.fence(topic, "one") == 2
    assert streams.fence(topic, "two") == 3
    fill(through, 1, topic)
    assert [event.index for event in through.get_history(topic)] == [0, 1, 4]
    assert [event.index for event in through.get_history(topic, 2)] == [4]
    proxy.cut_on(READ_SESSION, after=After(index=1))
    with through.subscribe_from_offset(topic, 0) as events:
        assert take(events, 3) == [0, 1, 4]
        assert events.next_index == 5
        assert sessions(proxy) == [0, 2]
    with through.subscribe_from_offset(topic, 2) as events:
        assert take(events, 1) == [4]
        streams.fence(topic, "three")
        eventually(lambda: events.next_index == 6)
        fill(through, 1, topic)
        assert take(events, 1) == [6]


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
        fill(pubsub, 1, topic)
        assert take(events, 1) == [3]


# C07: silence.


def limit_silence(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """The SDK gives a session up after so long without a frame; its own limit is 20 s."""
    monkeypatch.setattr("s2_sdk._s2s._read_session._HEARTBEAT_TIMEOUT", seconds)


@ON_LITE
def test_a_session_that_goes_silent(
    through: S2PubSub, proxy: FaultProxy, server: Server, basin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C07: nothing comes after index 1; within the limit of silence plus 1 s a new session asks for 2."""
    limit_silence(monkeypatch, 1.0)
    fill(through, 2)
    rule = proxy.silence(READ_SESSION, after=After(index=1))
    with through.subscribe_from_offset(TOPIC, 0) as events:
        assert take(events, 2) == [0, 1]
        rule.wait()
        silent_since = time.monotonic()
        fill(through, 2, first=2)
        assert take(events, 2) == [2, 3]
        second = proxy.wait_for(READ_SESSION, 2)[1]
        assert second.seq_num == 2
        assert second.at - silent_since < 2.0


@ON_LITE
@pytest.mark.parametrize("publishing", [True, False], ids=["publishing", "reading only"])
def test_connections_that_freeze(
    through: S2PubSub,
    make_pubsub: MakePubSub,
    proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
    publishing: bool,
) -> None:
    """C07: all connections freeze while new ones work: reader and publishes go on over new ones, nothing is lost; the
    reader within the limit of silence plus 1 s, also where nobody publishes and the frozen connection of the write lane
    is not yet known to be dead.
    """
    limit_silence(monkeypatch, 1.0)
    fill(through, 2)
    other = make_pubsub()
    with through.subscribe_from_offset(TOPIC, 0) as events:
        assert take(events, 2) == [0, 1]
        proxy.wait_for(READ_SESSION, 1)
        proxy.stall()
        frozen_at = time.monotonic()
        if publishing:
            with pytest.raises(TimeoutError):
                through.publish(TOPIC, type="chunk", data="lost", timeout=0.5)
            through.publish(TOPIC, type="chunk", data=2)
        else:
            other.publish(TOPIC, type="chunk", data=2)
        assert take(events, 1) == [2]
        assert time.monotonic() - frozen_at < 2.5
        assert proxy.seen(READ_SESSION)[1].at - frozen_at < 2.0
        if not publishing:
            with pytest.raises(TimeoutError):
                through.publish(TOPIC, type="chunk", data="lost", timeout=0.5)
        through.publish(TOPIC, type="chunk", data=3)
        assert take(events, 1) == [3]


# C08: waits.


@ON_LITE
def test_waits_grow_while_nothing_comes(through: S2PubSub, proxy: FaultProxy) -> None:
    """C08: the server drops each session at once for 4 s: at most 20 requests, in growing distances."""
    rule = proxy.cut_on(READ_SESSION, times=None)
    with through.subscribe(TOPIC) as events:
        eventually(lambda: rule.fired >= 4, 8)
        proxy.remove(rule)
        through.publish(TOPIC, type="chunk", data=0)
        assert take(events, 1) == [0]
        began = [seen.at for seen in proxy.seen(READ_SESSION)]
        assert 5 <= len(began) <= 20
        gaps = [after - before for before, after in itertools.pairwise(began)]
        assert gaps[0] >= 0.25
        assert gaps == sorted(gaps)
        assert gaps[-1] < 5.5


@ON_LITE
@pytest.mark.slow
@pytest.mark.limit(40)
def test_waits_begin_anew_after_delivery(through: S2PubSub, proxy: FaultProxy) -> None:
    """C08: dropped after each of ten events, every reconnect begins within 0.6 s: the waits do not grow."""
    with through.subscribe(TOPIC):
        pass
    proxy.forget()
    proxy.cut_on(READ_SESSION, times=10, after=After(records=1))
    waits = []
    with through.subscribe(TOPIC) as events:
        for number in range(10):
            through.publish(TOPIC, type="chunk", data=number)
            assert take(events, 1) == [number]
            dropped_at = time.monotonic()
            waits.append(proxy.wait_for(READ_SESSION, number + 2)[-1].at - dropped_at)
    assert sorted(waits)[4] < 0.55
    assert max(waits) < 0.75
    assert sessions(proxy) == list(range(11))


# C09: refusals.


@ON_LITE
@pytest.mark.parametrize(("status", "code"), [(403, "permission_denied"), (401, "authn"), (400, "bad_header")])
def test_a_refused_reader(through: S2PubSub, proxy: FaultProxy, status: int, code: str) -> None:
    """C09: dropped at index 2 and then refused, the reader gets the server's error within 2 s and its thread ends."""
    fill(through, 2)
    rule = proxy.answer(READ_SESSION, status=status, code=code, message="not for you", times=None, skip=1)
    with through.subscribe_from_offset(TOPIC, 0) as events:
        assert take(events, 2) == [0, 1]
        dropped_at = time.monotonic()
        proxy.cut()
        with pytest.raises(StoreError) as caught:
            events.get(LONG)
        assert time.monotonic() - dropped_at < 2
        assert (caught.value.status, caught.value.code) == (status, code)
        assert isinstance(caught.value.__cause__, s2_sdk.S2ServerError)
        assert rule.hits <= 2
        eventually(lambda: not worker_of())
        assert events.closed
        with pytest.raises(StoreError):
            events.wait(0)
        with pytest.raises(StoreError):
            next(events)


@ON_LITE
@pytest.mark.parametrize("hooked", [True, False], ids=["hook", "log"])
def test_a_refused_callback(
    through: S2PubSub, proxy: FaultProxy, hooked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """C09: a callback's subscriber gets the refusal through its error hook; without one topic and status are logged."""
    fill(through, 2)
    proxy.answer(READ_SESSION, status=403, code="permission_denied", times=None, skip=1)
    seen = threading.Semaphore(0)
    errors: list[Any] = []
    hook = errors.append if hooked else None
    with through.subscribe_from_offset(TOPIC, 0, lambda _: seen.release(), on_error=hook) as subscription:
        assert seen.acquire(timeout=LONG)
        assert seen.acquire(timeout=LONG)
        proxy.cut()
        with pytest.raises(StoreError):
            subscription.wait(LONG)
    logged = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    if hooked:
        assert [error.status for error in errors] == [403]
        assert logged == []
    else:
        assert len(logged) == 1
        assert TOPIC in logged[0]
        assert "403" in logged[0]


@ON_LITE
def test_a_refused_look_up(through: S2PubSub, proxy: FaultProxy) -> None:
    """C09: a refusal of the look-up before a reopening ends the subscription just the same."""
    fill(through, 1)
    with through.subscribe_from_offset(TOPIC, 0) as events:
        assert take(events, 1) == [0]
        proxy.wait_for(Request(kind="streams"), 1)
        eventually(lambda: proxy.seen(Request(kind="streams"))[0].finished)
        proxy.answer(Request(kind="streams"), status=403, code="permission_denied", times=None)
        proxy.cut()
        with pytest.raises(StoreError) as caught:
            events.get(LONG)
        assert caught.value.status == 403
        assert len(proxy.seen(READ_SESSION)) == 1


# A topic that is deleted.


def test_a_topic_that_is_deleted_under_its_reader(pubsub: S2PubSub, streams: Streams) -> None:
    """Design 2.9: deleted under a live subscriber, by somebody else, a topic ends with TopicGoneError; what had come is
    delivered first; and reading it does not make it anew on a basin with create-on-read.
    """
    fill(pubsub, 3)
    with pubsub.subscribe_from_offset(TOPIC, 0) as events:
        eventually(lambda: events.queued == 3)
        streams.delete(TOPIC)
        assert take(events, 3) == [0, 1, 2]
        with pytest.raises(TopicGoneError) as caught:
            events.get(LONG)
        assert caught.value.topic == TOPIC
    eventually(lambda: not worker_of())
    assert streams.names() == []


@pytest.mark.parametrize("made", ["callable", "ready-made"])
def test_a_deleted_topic_with_a_client_that_retries(
    make_pubsub: MakePubSub, streams: Streams, server: Server, made: str
) -> None:
    """Design 2.9: it is not made anew either where the user made the SDK's client, which retries by default."""

    def make() -> s2_sdk.S2:
        return s2_sdk.S2(server.token, endpoints=s2_sdk.Endpoints(account=server.url, basin=server.basin_url))

    pubsub = make_pubsub(client=make if made == "callable" else make())
    fill(pubsub, 3)
    with pubsub.subscribe_from_offset(TOPIC, 0) as events:
        assert take(events, 3) == [0, 1, 2]
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
    fill(through, 3)
    with through.subscribe_from_offset(TOPIC, 0) as events:
        assert take(events, 3) == [0, 1, 2]
        proxy.wait_for(Request(kind="streams"), 1)
        eventually(lambda: proxy.seen(Request(kind="streams"))[0].finished)
        with proxy.refusing():
            proxy.cut()
            streams.delete(TOPIC)
            eventually(lambda: streams.names() == [])
            streams.append(TOPIC, *([b"{}"] * (9 if longer else 1)))
        with pytest.raises(TopicGoneError):
            events.get(LONG)
        assert sessions(proxy) == [0]


@ON_LITE
def test_a_position_behind_the_tail_means_gone(through: S2PubSub, proxy: FaultProxy) -> None:
    """Design 2.9: a 416 at a position that had been reached means that the topic is another one."""
    fill(through, 3)
    with through.subscribe_from_offset(TOPIC, 0) as events:
        assert take(events, 3) == [0, 1, 2]
        proxy.answer(READ_SESSION, status=416, body=b'{"tail": {"seq_num": 1, "timestamp": 5}}')
        proxy.cut()
        with pytest.raises(TopicGoneError):
            events.get(LONG)


def test_clearing_ends_this_processs_readers(make_pubsub: MakePubSub, streams: Streams) -> None:
    """``clear_topic`` just ends the iteration of its own process's readers; others' end with TopicGoneError."""
    pubsub, other = make_pubsub(), make_pubsub()
    fill(pubsub, 2)
    mine = pubsub.subscribe_from_offset(TOPIC, 0)
    theirs = other.subscribe_from_offset(TOPIC, 0)
    assert take(mine, 2) == take(theirs, 2) == [0, 1]
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
        fill(pubsub, 3)
        assert take(events, 3) == [0, 1, 2]


def test_a_reader_that_waits_for_a_topic_and_a_position(
    make_pubsub: MakePubSub, make_basin: Callable[..., str]
) -> None:
    """On a basin without create-on-read a reader from index 2 of an absent topic gets 2 and what follows, and can be
    closed while it waits.
    """
    pubsub = make_pubsub(basin=make_basin(create_stream_on_append=True))
    waiting = pubsub.subscribe_from_offset(f"{TOPIC}-never", 2)
    with pubsub.subscribe_from_offset(TOPIC, 2) as events:
        fill(pubsub, 4)
        assert take(events, 2) == [2, 3]
    started = time.monotonic()
    waiting.close()
    assert time.monotonic() - started < 1
    assert list(waiting) == []


@ON_LITE
def test_offsets_beyond_the_tail(through: S2PubSub, proxy: FaultProxy) -> None:
    """A position that does not exist yet waits without error and without delay, also over cuts, and drops what comes
    before it.
    """
    fill(through, 3)
    with through.subscribe_from_offset(TOPIC, 6) as events:
        proxy.wait_for(READ_SESSION, 1)
        fill(through, 2, first=3)
        assert events.next_index == 6
        proxy.cut()
        proxy.wait_for(READ_SESSION, 2)
        fill(through, 1, first=5)
        with pytest.raises(TimeoutError):
            events.get(0.1)
        published_at = time.monotonic()
        fill(through, 2, first=6)
        found = [events.get(LONG) for _ in range(2)]
        assert time.monotonic() - published_at < 0.5
        assert [(event.index, event.data) for event in found] == [(6, 6), (7, 7)]
        assert through.stats().reconnects == 1


def test_an_offset_that_is_far_away_and_one_below_zero(pubsub: S2PubSub) -> None:
    """A huge index just waits; a negative one means the beginning."""
    fill(pubsub, 2)
    with pubsub.subscribe_from_offset(TOPIC, 2**53) as far, pubsub.subscribe_from_offset(TOPIC, -5) as near:
        assert take(near, 2) == [0, 1]
        with pytest.raises(TimeoutError):
            far.get(0.2)
        assert not far.closed


# Outages.


@ON_LITE
def test_subscribing_during_an_outage(through: S2PubSub, proxy: FaultProxy) -> None:
    """Design 4: subscribe tries again until its timeout, then raises the original StoreError; in time it succeeds."""
    through.tail(TOPIC)
    with proxy.refusing():
        proxy.cut()
        started = time.monotonic()
        with pytest.raises(StoreError) as caught:
            through.subscribe(TOPIC, timeout=3)
        assert 1.5 < time.monotonic() - started < 3.5
        assert (caught.value.code, caught.value.status) == ("connection", None)
        assert isinstance(caught.value.__cause__, s2_sdk.S2ClientError)
        with pytest.raises(StoreError):
            through.subscribe(TOPIC, timeout=0.8)
        made: list[Any] = []
        thread = threading.Thread(target=lambda: made.append(through.subscribe(TOPIC)))
        thread.start()
        thread.join(1)
        assert thread.is_alive()
    thread.join(LONG)
    with made[0] as events:
        through.publish(TOPIC, type="chunk", data=0)
        assert take(events, 1) == [0]


@ON_LITE
def test_closing_during_a_subscribe(through: S2PubSub, proxy: FaultProxy) -> None:
    """A subscribe that waits for the server ends with ClosedError when the client is closed."""
    with proxy.refusing():
        errors: list[BaseException] = []

        def subscribe() -> None:
            try:
                through.subscribe(TOPIC)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=subscribe)
        thread.start()
        thread.join(1)
        assert thread.is_alive()
        through.close()
        thread.join(2)
    assert [type(error) for error in errors] == [ClosedError]


@ON_LITE
@pytest.mark.slow
@pytest.mark.limit(40)
def test_an_outage_is_logged_at_a_bounded_rate(
    through: S2PubSub, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """Design 4: one line when an outage begins, none for each attempt, one when it ends; the reader loses nothing."""
    caplog.set_level(logging.INFO, "s2pubsub")
    fill(through, 1)
    with through.subscribe_from_offset(TOPIC, 0) as events:
        assert take(events, 1) == [0]
        with proxy.refusing():
            proxy.cut()
            eventually(lambda: through.stats().reconnects >= 4, 15)
        fill(through, 2, first=1)
        assert take(events, 2) == [1, 2]
        lines = [record for record in caplog.records if TOPIC in record.getMessage()]
        assert [record.levelno for record in lines] == [logging.WARNING, logging.INFO]
        assert "interrupted" in lines[0].getMessage()
        assert "goes on" in lines[1].getMessage()


@ON_LITE
def test_closing_while_everything_is_stalled(through: S2PubSub, proxy: FaultProxy) -> None:
    """With every connection frozen and a full send buffer, closing subscription and client ends within its budget."""
    fill(through, 3)
    subscriptions = [through.subscribe_from_offset(TOPIC, 0) for _ in range(5)]
    for events in subscriptions:
        assert take(events, 3) == [0, 1, 2]
    proxy.stall(scope="all")
    with pytest.raises(TimeoutError):
        through.publish(TOPIC, type="chunk", data="x" * 900_000, timeout=0.2)
    started = time.monotonic()
    subscriptions[0].close()
    assert time.monotonic() - started < 1
    assert list(subscriptions[0]) == []
    through.close()
    assert time.monotonic() - started < 5.5
    assert all(list(events) == [] for events in subscriptions)
    assert not worker_of()


# Many.


@ON_LITE
def test_cuts_in_the_middle_of_heavy_traffic(through: S2PubSub, make_pubsub: MakePubSub, proxy: FaultProxy) -> None:
    """Random cuts while four readers follow 3,000 events: each index once, in order, for each."""
    writer = make_pubsub()
    seen: list[list[int | None]] = [[] for _ in range(4)]

    def read(number: int) -> None:
        with through.subscribe_with_replay(TOPIC) as events:
            for event in events:
                seen[number].append(event.index)
                if event.index == 2999:
                    return

    threads = [threading.Thread(target=read, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for first in range(0, 3000, 100):
        fill(writer, 100, first=first)
        if first % 300 == 0:
            proxy.cut("random")
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()
    assert all(indices == list(range(3000)) for indices in seen)


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
