"""The attempts of one publish: whose policy tries again, and what is known when they end, after all that they met."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import s2_sdk

from s2pubsub import OperationTimeoutError, S2PubSub
from tests.faults import APPEND, FaultProxy
from tests.servers import ON_LITE
from tests.topics import MakePubSub, failed
from tests.waiting import LONG, eventually

TOPIC = "agent.stream.attempts"

pytestmark = ON_LITE


@pytest.fixture(params=["publish", "publish_many"])
def publish(request: pytest.FixtureRequest) -> Callable[..., int | None]:
    """Publish one event, by either way; its index."""

    def publish(pubsub: S2PubSub, data: object, timeout: float = LONG) -> int | None:
        if request.param == "publish":
            return pubsub.publish(TOPIC, type="t", data=data, timeout=timeout).index
        return pubsub.publish_many(TOPIC, [{"type": "t", "data": data}], timeout=timeout)[0].index

    return publish


@pytest.fixture(params=["callable", "ready-made"])
def at_most_once(request: pytest.FixtureRequest, make_pubsub: MakePubSub, proxy: FaultProxy) -> S2PubSub:
    """A client whose user has said that only what had no effect is sent again."""

    def make() -> s2_sdk.S2:
        policy = s2_sdk.AppendRetryPolicy.NO_SIDE_EFFECTS
        endpoints = s2_sdk.Endpoints(account=proxy.url, basin=proxy.url)
        return s2_sdk.S2("test", endpoints=endpoints, retry=s2_sdk.Retry(append_retry_policy=policy))

    return make_pubsub(client=make if request.param == "callable" else make())


def stored(pubsub: S2PubSub) -> list[Any]:
    return [event.data for event in pubsub.get_history(TOPIC)]


CERTAIN = [
    (400, "bad_header"),
    (403, "permission_denied"),
    (404, "stream_not_found"),
    (404, "basin_not_found"),
    (409, "stream_deletion_pending"),
    (409, "transaction_conflict"),
    (412, "condition"),
    (429, "rate_limited"),
    (502, "hot_server"),
]


@pytest.mark.parametrize(("status", "code"), CERTAIN)
def test_certainty_does_not_come_back(
    through: S2PubSub, proxy: FaultProxy, publish: Callable[..., int | None], status: int, code: str
) -> None:
    """Design 4: an answer which proves that its own attempt stored nothing does not prove it of the attempt before it,
    whose answer was lost: the outcome is unknown, and here it was stored.
    """
    publish(through, "first")
    proxy.lose_response(APPEND)
    proxy.answer(APPEND, status=status, code=code, body=b"{}" if status == 412 else None, times=None)
    error = failed(lambda: publish(through, "second"))
    assert (error.status, error.outcome) == (status, "unknown")
    proxy.clear()
    assert stored(through) == ["first", "second"]


def test_a_refused_connection_after_a_lost_answer(
    through: S2PubSub, proxy: FaultProxy, publish: Callable[..., int | None]
) -> None:
    """Design 4: the same for a connection that is refused after one that broke."""
    publish(through, "first")
    proxy.lose_response(APPEND)
    with proxy.refusing():  # the open connection goes on until its answer is lost
        error = failed(lambda: publish(through, "second"))
    assert (error.code, error.outcome) == ("connection", "unknown")
    assert stored(through) == ["first", "second"]


def test_at_most_once_through_what_stores_nothing(
    at_most_once: S2PubSub, proxy: FaultProxy, publish: Callable[..., int | None]
) -> None:
    """Design 4: whatever policy the user has set, an event is sent until it is stored, once, as long as it is sure that
    nothing was stored before.
    """
    results: list[int | None] = []
    thread = threading.Thread(target=lambda: results.append(publish(at_most_once, "refused")))
    with proxy.refusing():
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
    thread.join(LONG)
    for status, code in ((429, "rate_limited"), (409, "transaction_conflict"), (404, "stream_not_found")):
        proxy.answer(APPEND, status=status, code=code, times=2)
        results.append(publish(at_most_once, code))
    assert results == [0, 1, 2, 3]
    assert stored(at_most_once) == ["refused", "rate_limited", "transaction_conflict", "stream_not_found"]


@pytest.mark.parametrize("status", [408, 500, 503, 504, None])
def test_at_most_once_sends_once_what_may_be_stored(
    at_most_once: S2PubSub, proxy: FaultProxy, publish: Callable[..., int | None], status: int | None
) -> None:
    """Design 4: with that policy nothing is sent after an attempt that may have been stored, also not by us."""
    publish(at_most_once, "first")
    before = len(proxy.seen(APPEND))
    proxy.answer(APPEND, status=429, code="rate_limited")
    if status is None:
        proxy.lose_response(APPEND)
    else:
        proxy.answer(APPEND, status=status)
    error = failed(lambda: publish(at_most_once, "second"))
    assert (error.status, error.outcome) == (status, "unknown")
    assert len(proxy.seen(APPEND)) == before + 2
    assert stored(at_most_once) == ["first"] + ["second"] * (status is None)


def test_a_time_that_is_up_among_certain_failures(through: S2PubSub, proxy: FaultProxy) -> None:
    """Design 4: of events that are refused together, each one whose time is up is not stored and says why; the others
    are stored without it.
    """
    through.tail(TOPIC)
    proxy.answer(APPEND, status=429, code="rate_limited", times=None)
    results: list[int | None] = []
    patient = threading.Thread(target=lambda: results.append(through.publish(TOPIC, type="t", data="kept").index))
    patient.start()
    proxy.wait_for(APPEND, 1)
    for _ in range(3):
        error = failed(lambda: through.publish(TOPIC, type="t", data="late", timeout=0.7))
        assert (error.status, error.outcome) == (429, "not_stored")
    proxy.clear()
    patient.join(LONG)
    assert results == [0]
    assert stored(through) == ["kept"]


def test_a_time_that_is_up_before_there_is_a_client(
    make_pubsub: MakePubSub, proxy: FaultProxy, publish: Callable[..., int | None]
) -> None:
    """Design 4: an event whose time is up while the user's callable makes the client is not stored, then and later."""
    go = threading.Event()

    def make() -> s2_sdk.S2:
        go.wait(LONG)
        return s2_sdk.S2("test", endpoints=s2_sdk.Endpoints(account=proxy.url, basin=proxy.url))

    pubsub = make_pubsub(client=make)
    error = failed(lambda: publish(pubsub, "late", 0.2), OperationTimeoutError)
    assert error.outcome == "not_stored"
    go.set()
    assert publish(pubsub, "next") == 0
    assert stored(pubsub) == ["next"]


def test_a_time_that_is_up_after_a_lost_answer(
    through: S2PubSub, proxy: FaultProxy, publish: Callable[..., int | None]
) -> None:
    """Design 4: once an answer was lost the outcome is unknown, whenever the time is up."""
    publish(through, "first")
    proxy.lose_response(APPEND)
    hold = proxy.hold_response(APPEND)
    error = failed(lambda: publish(through, "second", 1), OperationTimeoutError)
    assert error.outcome == "unknown"
    proxy.remove(hold)
    eventually(lambda: "second" in stored(through))


def test_a_server_that_asks_to_wait(through: S2PubSub, proxy: FaultProxy, publish: Callable[..., int | None]) -> None:
    """A server that answers 429 with a time to wait is not asked again before that."""
    proxy.answer(APPEND, status=429, code="rate_limited", headers=(("retry-after-ms", "700"),))
    assert publish(through, "first") == 0
    first, second = (seen.at for seen in proxy.seen(APPEND))
    assert second - first >= 0.7
