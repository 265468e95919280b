"""Following a topic through silence, outages and refusals."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from typing import Any

import pytest
import s2_sdk

from s2pubsub import (
    ClosedError,
    S2PubSub,
    StoreError,
)
from s2pubsub.store.sessions import _read_events
from tests.faults import READ_SESSION, After, Effect, FaultProxy, Request
from tests.servers import ON_LITE, Server
from tests.topics import MakePubSub, fill, indices, sessions, workers
from tests.waiting import LONG, eventually

TOPIC = "agent.stream.outages"

# C07: silence.


def limit_silence(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """The SDK gives a session up after so long without a frame; its own limit is 20 s."""
    monkeypatch.setitem(_read_events.__globals__, "_HEARTBEAT_TIMEOUT", seconds)


@ON_LITE
def test_a_session_that_goes_silent(
    through: S2PubSub, proxy: FaultProxy, server: Server, basin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C07: nothing comes after index 1; within the limit of silence plus 1 s a new session asks for 2."""
    limit_silence(monkeypatch, 1.0)
    fill(through, TOPIC, 2)
    rule = proxy.silence(READ_SESSION, after=After(index=1))
    with through.subscribe_from_offset(TOPIC, 0) as events:
        assert indices(events, 2) == [0, 1]
        rule.wait()
        silent_since = time.monotonic()
        fill(through, TOPIC, 2, first=2)
        assert indices(events, 2) == [2, 3]
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
    fill(through, TOPIC, 2)
    other = make_pubsub()
    with through.subscribe_from_offset(TOPIC, 0) as events:
        assert indices(events, 2) == [0, 1]
        proxy.wait_for(READ_SESSION, 1)
        proxy.stall()
        frozen_at = time.monotonic()
        if publishing:
            with pytest.raises(TimeoutError):
                through.publish(TOPIC, type="chunk", data="lost", timeout=0.5)
            through.publish(TOPIC, type="chunk", data=2)
        else:
            other.publish(TOPIC, type="chunk", data=2)
        assert indices(events, 1) == [2]
        assert proxy.seen(READ_SESSION)[1].at - frozen_at < 2.0
        if not publishing:
            with pytest.raises(TimeoutError):
                through.publish(TOPIC, type="chunk", data="lost", timeout=0.5)
        through.publish(TOPIC, type="chunk", data=3)
        assert indices(events, 1) == [3]


# C08: waits.


@ON_LITE
def test_waits_grow_while_nothing_comes(through: S2PubSub, proxy: FaultProxy) -> None:
    """C08: the server drops each session at once for 4 s: at most 20 requests, in growing distances."""
    rule = proxy.cut_on(READ_SESSION, times=None)
    with through.subscribe(TOPIC) as events:
        eventually(lambda: rule.fired >= 4, 8)
        proxy.remove(rule)
        through.publish(TOPIC, type="chunk", data=0)
        assert indices(events, 1) == [0]
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
            assert indices(events, 1) == [number]
            dropped_at = time.monotonic()
            waits.append(proxy.wait_for(READ_SESSION, number + 2)[-1].at - dropped_at)
    assert sorted(waits)[4] < 0.55
    assert max(waits) < 0.75
    assert sessions(proxy) == list(range(11))


@ON_LITE
def test_a_draining_server_is_not_stormed(through: S2PubSub, proxy: FaultProxy) -> None:
    """C08: the SDK reconnects without any wait while a server says that it is draining; a subscriber waits."""
    fill(through, TOPIC, 2)
    rule = proxy.answer(READ_SESSION, status=503, code="server_draining", times=None, for_seconds=2)
    with through.subscribe_from_offset(TOPIC, 0) as events:
        assert indices(events, 2) == [0, 1]
        assert rule.hits <= 6
        proxy.end_session(READ_SESSION, status=503, code="server_draining", times=2, after=After(request=True))
        assert proxy.strike(READ_SESSION, Effect(do="end", status=503, code="server_draining")) == 1
        fill(through, TOPIC, 2, first=2)
        assert indices(events, 2) == [2, 3]
        assert len(proxy.seen(READ_SESSION)) <= rule.hits + 5


# C09: refusals.


@ON_LITE
@pytest.mark.parametrize(("status", "code"), [(403, "permission_denied"), (401, "authn"), (400, "bad_header")])
def test_a_refused_reader(through: S2PubSub, proxy: FaultProxy, status: int, code: str) -> None:
    """C09: dropped at index 2 and then refused, the reader gets the server's error within 2 s and its thread ends."""
    fill(through, TOPIC, 2)
    rule = proxy.answer(READ_SESSION, status=status, code=code, message="not for you", times=None, skip=1)
    with through.subscribe_from_offset(TOPIC, 0) as events:
        assert indices(events, 2) == [0, 1]
        dropped_at = time.monotonic()
        proxy.cut()
        with pytest.raises(StoreError) as caught:
            events.get(LONG)
        assert time.monotonic() - dropped_at < 2
        assert (caught.value.status, caught.value.code) == (status, code)
        assert isinstance(caught.value.__cause__, s2_sdk.S2ServerError)
        assert rule.hits <= 2
        eventually(lambda: not workers(TOPIC))
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
    fill(through, TOPIC, 2)
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
    fill(through, TOPIC, 1)
    with through.subscribe_from_offset(TOPIC, 0) as events:
        assert indices(events, 1) == [0]
        proxy.wait_for(Request(kind="streams"), 1)
        eventually(lambda: proxy.seen(Request(kind="streams"))[0].finished)
        proxy.answer(Request(kind="streams"), status=403, code="permission_denied", times=None)
        proxy.cut()
        with pytest.raises(StoreError) as caught:
            events.get(LONG)
        assert caught.value.status == 403
        assert len(proxy.seen(READ_SESSION)) == 1


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
        assert indices(events, 1) == [0]


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
    fill(through, TOPIC, 1)
    with through.subscribe_from_offset(TOPIC, 0) as events:
        assert indices(events, 1) == [0]
        with proxy.refusing():
            proxy.cut()
            eventually(lambda: through.stats().reconnects >= 4, 15)
        fill(through, TOPIC, 2, first=1)
        assert indices(events, 2) == [1, 2]
        lines = [record for record in caplog.records if TOPIC in record.getMessage()]
        assert [record.levelno for record in lines] == [logging.WARNING, logging.INFO]
        assert "interrupted" in lines[0].getMessage()
        assert "goes on" in lines[1].getMessage()


@ON_LITE
def test_closing_while_everything_is_stalled(through: S2PubSub, proxy: FaultProxy) -> None:
    """With every connection frozen and a full send buffer, closing subscription and client ends within its budget."""
    fill(through, TOPIC, 3)
    subscriptions = [through.subscribe_from_offset(TOPIC, 0) for _ in range(5)]
    for events in subscriptions:
        assert indices(events, 3) == [0, 1, 2]
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
    assert not workers(TOPIC)


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
        fill(writer, TOPIC, 100, first=first)
        if first % 300 == 0:
            proxy.cut("random")
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()
    assert all(indices == list(range(3000)) for indices in seen)
