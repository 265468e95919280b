"""Every blocking call ends within its time, whatever the server does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from s2pubsub import (
    OperationTimeoutError,
    S2PubSub,
)
from tests.faults import FaultProxy
from tests.servers import ON_LITE
from tests.topics import MakePubSub, on_threads

TOPIC = "agent.stream.deadlines"

# C15: every blocking call ends within its time.

CALLS: dict[str, Callable[[S2PubSub, float], object]] = {
    "publish": lambda p, t: p.publish(TOPIC, type="t", data=1, timeout=t),
    "publish_many": lambda p, t: p.publish_many(TOPIC, [{"type": "t", "data": 1}], timeout=t),
    "history": lambda p, t: p.get_history(TOPIC, timeout=t),
    "iter_history": lambda p, t: list(p.iter_history(TOPIC, timeout=t)),
    "clear": lambda p, t: p.clear_topic(TOPIC, strict=True, timeout=t),
    "subscribe": lambda p, t: p.subscribe(TOPIC, timeout=t),
    "subscribe_from_offset": lambda p, t: p.subscribe_from_offset(TOPIC, 3, timeout=t),
    "subscribe_with_replay": lambda p, t: p.subscribe_with_replay(TOPIC, print, timeout=t),
    "tail": lambda p, t: p.tail(TOPIC, timeout=t),
    "exists": lambda p, t: p.exists(TOPIC, timeout=t),
    "topics": lambda p, t: p.topics(timeout=t),
    "check": lambda p, t: p.check(timeout=t),
    "ensure_basin": lambda p, t: p.ensure_basin(timeout=t),
}


@ON_LITE
@pytest.mark.slow
@pytest.mark.parametrize("fault", ["silent", "drip", "stall"])
def test_every_call_ends_in_time(make_pubsub: MakePubSub, proxy: FaultProxy, fault: str) -> None:
    """C15: against a server that accepts and never answers, one that sends a byte a second, and a connection that
    freezes in use, each call with a limit of 2 s raises the timeout error within 3 s, and close works after it. By as
    much as a plain wait of 2 s ends late on this machine, a call may be late, too.
    """
    if fault == "silent":
        proxy.silent()
    elif fault == "drip":
        proxy.drip(1.0, "to_client")
    clients = {name: make_pubsub(endpoints=proxy.url, access_token="test") for name in CALLS}
    if fault == "stall":
        for client in clients.values():
            client.publish(f"{TOPIC}-other", type="t", data=1)
        proxy.stall(scope="all")
    took: dict[str, float] = {}
    raised: dict[str, BaseException | None] = {}

    def call(name: str) -> None:
        started = time.monotonic()
        try:
            calls[name](2.0)
            raised[name] = None
        except BaseException as error:
            raised[name] = error
        took[name] = time.monotonic() - started

    calls: dict[str, Callable[[float], object]] = {"wait": threading.Event().wait}
    for name, act in CALLS.items():
        calls[name] = partial(act, clients[name])
    names = list(calls)
    on_threads(len(names), lambda number: call(names[number]))
    late = took.pop("wait") - 2
    assert raised.pop("wait") is None
    assert {name: type(error) for name, error in raised.items()} == dict.fromkeys(CALLS, OperationTimeoutError)
    assert {name: seconds for name, seconds in took.items() if not 1.9 <= seconds < 3 + late} == {}
    outcomes = {name: getattr(raised[name], "outcome", None) for name in ("publish", "publish_many")}
    assert set(outcomes.values()) <= {"unknown", "not_stored"}
    started = time.monotonic()
    for client in clients.values():
        client.close(timeout=2)
    assert time.monotonic() - started < 15


@ON_LITE
def test_clearing_a_silent_server_only_logs(
    make_pubsub: MakePubSub, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """C15: without ``strict`` a clear that could not be done in time returns and is in the log."""
    proxy.silent()
    pubsub = make_pubsub(endpoints=proxy.url, access_token="test")
    started = time.monotonic()
    pubsub.clear_topic(TOPIC, timeout=0.5)
    assert time.monotonic() - started < 1.5
    assert TOPIC in caplog.text


@ON_LITE
def test_calls_that_only_poll(through: S2PubSub) -> None:
    """C15: with a timeout of 0 every call raises the timeout error at once, and nothing is stored."""
    through.tail(TOPIC)
    for name, call in CALLS.items():
        started = time.monotonic()
        with pytest.raises(OperationTimeoutError) as caught:
            call(through, 0)
        assert time.monotonic() - started < 1, name
        if name.startswith("publish"):
            assert caught.value.outcome in ("not_stored", "unknown")
