"""Connections: one for each kind of work, replaced when it goes silent; and what shares an append."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import s2_sdk

from s2pubsub import (
    OperationTimeoutError,
    S2PubSub,
    S2PubSubError,
)
from tests.faults import APPEND, FaultProxy, Request
from tests.servers import ON_LITE, Server
from tests.topics import MakePubSub, failed, fill, indices, on_threads
from tests.waiting import LONG, eventually

TOPIC = "agent.stream.lanes"

# The lanes.


@ON_LITE
def test_publishes_go_on_after_one_timeout(through: S2PubSub, proxy: FaultProxy) -> None:
    """Design 2.3: with the connection frozen and the server healthy, one publish runs into its timeout and the next
    ones go through a new connection.
    """
    through.publish(TOPIC, type="t", data=0)
    assert proxy.accepted == 1
    proxy.stall()
    error = failed(lambda: through.publish(TOPIC, type="t", data=1, timeout=1), OperationTimeoutError)
    assert error.outcome == "unknown"
    started = time.monotonic()
    assert through.publish(TOPIC, type="t", data=2).index == 1
    assert time.monotonic() - started < 2
    assert proxy.accepted == 2
    assert through.stats().replaced_clients == 1


@ON_LITE
@pytest.mark.slow
@pytest.mark.limit(40)
def test_new_publishes_do_not_wait_for_a_silent_connection(through: S2PubSub, proxy: FaultProxy) -> None:
    """Design 2.3: while calls without a limit of their own hang on a frozen connection, new ones go round it after five
    seconds at most, the SDK's request timeout.
    """
    through.publish(TOPIC, type="t", data=0)
    proxy.stall()
    errors: list[Any] = []

    def stuck() -> None:
        errors.append(failed(lambda: through.publish(TOPIC, type="t", data=1, timeout=None), S2PubSubError))

    thread = threading.Thread(target=stuck)
    thread.start()
    proxy.wait_for(APPEND, 1)
    started = time.monotonic()
    eventually(lambda: through.stats().replaced_clients == 1, 8)
    assert through.publish(TOPIC, type="t", data=2).index == 1
    assert time.monotonic() - started < 7
    thread.join(25)
    assert [(error.code, error.outcome) for error in errors] == [("connection", "unknown")]


@ON_LITE
def test_a_slow_publish_does_not_replace_a_healthy_client(through: S2PubSub, proxy: FaultProxy) -> None:
    """Design 2.3: a call that is given up while others are answered says nothing about the connection."""
    through.publish(TOPIC, type="t", data=0)
    hold = proxy.hold_response(Request(kind="append", stream=f"mastra/durable/{TOPIC}-slow"))
    done = threading.Event()

    def slow() -> None:
        failed(lambda: through.publish(f"{TOPIC}-slow", type="t", data=1, timeout=1), OperationTimeoutError)
        done.set()

    threading.Thread(target=slow, daemon=True).start()
    eventually(lambda: hold.hits == 1)
    while not done.is_set():
        through.publish(TOPIC, type="t", data=0)
    assert done.wait(LONG)
    assert through.stats().replaced_clients == 0
    assert proxy.accepted == 1


@ON_LITE
def test_reads_and_writes_use_connections_of_their_own(through: S2PubSub, proxy: FaultProxy) -> None:
    """Design 2.1: no append travels on a connection that carries read sessions."""
    with through.subscribe(TOPIC) as events:
        for number in range(20):
            through.publish(TOPIC, type="t", data=number)
            assert events.get(LONG).data == number
        sessions = {seen.connection for seen in proxy.seen(Request(kind="read_session"))}
        appends = {seen.connection for seen in proxy.seen(APPEND)}
        assert sessions
        assert appends
        assert not sessions & appends


@ON_LITE
@pytest.mark.slow
def test_a_lone_publish_is_not_slowed_by_live_subscriptions(pubsub: S2PubSub) -> None:
    """Design 2.1: publishing takes as long with ten live subscriptions as with none: on a shared connection it would be
    44 ms and not 6.
    """

    def median() -> float:
        took = []
        for number in range(60):
            started = time.perf_counter()
            pubsub.publish(TOPIC, type="t", data=number)
            took.append(time.perf_counter() - started)
        return sorted(took)[30]

    alone = median()
    subscriptions = [pubsub.subscribe(f"{TOPIC}-{n}") for n in range(10)] + [pubsub.subscribe(TOPIC)]
    among = median()
    for subscription in subscriptions:
        subscription.close()
    assert among < 3 * alone + 0.005


@ON_LITE
def test_clients_of_the_sdk_are_per_lane(make_pubsub: MakePubSub, server: Server) -> None:
    """Design 2.5: a client costs 27 ms and 830 KiB; forty subscriptions, publishes and reads share one a lane."""

    def make() -> s2_sdk.S2:
        made.append(None)
        return s2_sdk.S2(server.token, endpoints=s2_sdk.Endpoints(account=server.url, basin=server.basin_url))

    made: list[None] = []
    pubsub = make_pubsub(client=make)
    fill(pubsub, TOPIC, 1500)
    subscriptions = [pubsub.subscribe_with_replay(TOPIC) for _ in range(40)]
    on_threads(8, lambda number: pubsub.publish(TOPIC, type="t", data=number))
    assert len(pubsub.get_history(TOPIC)) == 1508
    for events in subscriptions:
        indices(events, 1508)
        events.close()
    assert len(made) <= 3


@ON_LITE
def test_events_of_many_threads_share_appends(through: S2PubSub, proxy: FaultProxy) -> None:
    """Design 2.6: what arrives while four appends are in flight leaves with the next one."""
    through.publish(TOPIC, type="t", data="lone")
    assert len(proxy.seen(APPEND)) == 1
    hold = proxy.hold_response(APPEND, times=None)
    stored: list[int | None] = []
    begun = threading.Semaphore(0)

    def publish(number: int) -> None:
        begun.release()
        stored.append(through.publish(TOPIC, type="t", data=number).index)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(64)]
    for number, thread in enumerate(threads):
        thread.start()
        assert begun.acquire(timeout=LONG)
        if number < 4:  # each of these leaves alone
            proxy.wait_for(APPEND, number + 2)
    proxy.remove(hold)
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()
    assert sorted(index for index in stored if index is not None) == list(range(1, 65))
    assert 6 <= len(proxy.seen(APPEND)) <= 15
