"""What a failed publish has stored, who tries it again, and what its error says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import s2_sdk

from s2pubsub import (
    ClosedError,
    OperationTimeoutError,
    S2PubSub,
)
from tests.faults import APPEND, FaultProxy
from tests.servers import CREATE_STREAMS, ON_LITE, LiteServer
from tests.topics import MakePubSub, failed
from tests.waiting import LONG, eventually

TOPIC = "agent.stream.outcomes"

PUBLISHING: dict[str, Callable[[S2PubSub], object]] = {
    "publish": lambda p: p.publish(TOPIC, type="t", data=1),
    "publish_many": lambda p: p.publish_many(TOPIC, [{"type": "t", "data": 1}]),
}

# What a failed publish has stored.


@ON_LITE
def test_a_lost_answer_is_sent_again_with_the_same_id(through: S2PubSub, proxy: FaultProxy) -> None:
    """Design 4: by default an ambiguous failure is resent by the SDK: stored at least once, the same id in both."""
    through.publish(TOPIC, type="t", data="first")
    proxy.lose_response(APPEND)
    event = through.publish(TOPIC, type="t", data="second")
    stored = through.get_history(TOPIC)
    assert [found.data for found in stored] == ["first", "second", "second"]
    assert stored[1].id == stored[2].id == event.id
    assert event.index == 2


@ON_LITE
def test_at_most_once(make_pubsub: MakePubSub, proxy: FaultProxy) -> None:
    """Design 4: a client that retries only what had no side effects sends once and says that the outcome is unknown."""

    def make() -> s2_sdk.S2:
        policy = s2_sdk.AppendRetryPolicy.NO_SIDE_EFFECTS
        endpoints = s2_sdk.Endpoints(account=proxy.url, basin=proxy.url)
        return s2_sdk.S2("test", endpoints=endpoints, retry=s2_sdk.Retry(append_retry_policy=policy))

    pubsub = make_pubsub(client=make)
    pubsub.publish(TOPIC, type="t", data="first")
    proxy.lose_response(APPEND)
    error = failed(lambda: pubsub.publish(TOPIC, type="t", data="second"))
    assert (error.code, error.status, error.outcome) == ("connection", None, "unknown")
    assert isinstance(error.__cause__, s2_sdk.S2ClientError)
    assert [found.data for found in pubsub.get_history(TOPIC)] == ["first", "second"]
    proxy.answer(APPEND, status=503)
    assert failed(lambda: pubsub.publish(TOPIC, type="t", data="third")).outcome == "unknown"
    proxy.answer(APPEND, status=429, code="rate_limited")
    assert pubsub.publish(TOPIC, type="t", data="fourth").index == 2
    assert len(proxy.seen(APPEND)) == 5


REFUSALS = [
    (400, "bad_header", "not_stored"),
    (401, "authn", "not_stored"),
    (403, "permission_denied", "not_stored"),
    (404, "basin_not_found", "not_stored"),
    (422, "invalid", "not_stored"),
]


@ON_LITE
@pytest.mark.parametrize(("status", "code", "outcome"), REFUSALS)
@pytest.mark.parametrize("many", [False, True], ids=["publish", "publish_many"])
def test_refusals_are_final(
    through: S2PubSub, proxy: FaultProxy, status: int, code: str, outcome: str, many: bool
) -> None:
    """C71: a refusal is raised after one request, with status, code and the SDK's error; nothing was stored."""
    rule = proxy.answer(APPEND, status=status, code=code, message="no", times=None)

    def publish() -> object:
        if many:
            return through.publish_many(TOPIC, [{"type": "t", "data": 1}, {"type": "t", "data": 2}])
        return through.publish(TOPIC, type="t", data=1)

    error = failed(publish)
    assert (error.status, error.code, error.outcome) == (status, code, outcome)
    assert "no" in str(error)
    assert isinstance(error.__cause__, s2_sdk.S2ServerError)
    assert rule.hits == 1


PASSING = [
    (503, "unavailable"),
    (500, "storage"),
    (504, "upstream_timeout"),
    (408, "request_timeout"),
    (502, "other"),
]


@ON_LITE
@pytest.mark.parametrize(("status", "code"), PASSING)
def test_ambiguous_answers_belong_to_the_sdk(through: S2PubSub, proxy: FaultProxy, status: int, code: str) -> None:
    """C71: an answer that may hide a stored record is tried three times by the SDK and not once by us."""
    rule = proxy.answer(APPEND, status=status, code=code, times=None)
    error = failed(lambda: through.publish(TOPIC, type="t", data=1))
    assert (error.status, error.code, error.outcome) == (status, code, "unknown")
    assert isinstance(error.__cause__, s2_sdk.S2ServerError)
    assert rule.hits == 3


HARMLESS = [(429, "rate_limited"), (502, "hot_server"), (409, "transaction_conflict")]


@ON_LITE
@pytest.mark.parametrize(("status", "code"), HARMLESS)
@pytest.mark.parametrize("many", [False, True], ids=["publish", "publish_many"])
def test_answers_that_prove_that_nothing_was_stored(
    through: S2PubSub, proxy: FaultProxy, status: int, code: str, many: bool
) -> None:
    """Design 4: these are tried again until they pass, or until the time is up; then the last one is raised."""

    def publish(timeout: float) -> Any:
        if many:
            return through.publish_many(TOPIC, [{"type": "t", "data": 1}], timeout=timeout)[0]
        return through.publish(TOPIC, type="t", data=1, timeout=timeout)

    proxy.answer(APPEND, status=status, code=code, times=5)
    assert publish(10).index == 0
    assert len(proxy.seen(APPEND)) == 6
    proxy.answer(APPEND, status=status, code=code, times=None)
    error = failed(lambda: publish(2))
    assert (error.status, error.code, error.outcome) == (status, code, "not_stored")
    proxy.clear()
    assert through.tail(TOPIC) == 1


@ON_LITE
def test_a_refused_connection_is_tried_again(through: S2PubSub, proxy: FaultProxy) -> None:
    """Design 4: a refused connection is tried again until the server is back, or the time is up."""
    with proxy.refusing():
        error = failed(lambda: through.publish(TOPIC, type="t", data=1, timeout=1.5))
        assert (error.code, error.status, error.outcome) == ("connection", None, "not_stored")
        assert any(isinstance(cause, ConnectionRefusedError) for cause in _chain(error))
        stored: list[Any] = []
        thread = threading.Thread(target=lambda: stored.append(through.publish(TOPIC, type="t", data=2)))
        thread.start()
        thread.join(1.5)
        assert thread.is_alive()
    thread.join(LONG)
    assert [event.index for event in stored] == [0]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@ON_LITE
@pytest.mark.parametrize("many", [False, True], ids=["publish", "publish_many"])
def test_a_timeout_during_an_append_is_unknown(through: S2PubSub, proxy: FaultProxy, many: bool) -> None:
    """Design 4: when the time is up while an append is on its way the outcome is unknown, also after answers before it
    that proved the contrary.
    """
    through.tail(TOPIC)
    proxy.answer(APPEND, status=409, code="stream_deletion_pending")
    hold = proxy.hold_response(APPEND)

    def publish() -> object:
        if many:
            return through.publish_many(TOPIC, [{"type": "t", "data": 1}], timeout=1)
        return through.publish(TOPIC, type="t", data=1, timeout=1)

    error = failed(publish, OperationTimeoutError)
    assert hold.hits == 1
    assert error.outcome == "unknown"
    eventually(lambda: through.tail(TOPIC) == 1)


@ON_LITE
def test_an_event_that_waits_behind_others_leaves_the_batch(through: S2PubSub, proxy: FaultProxy) -> None:
    """Design 4: an event whose time is up before it was sent is not stored, and says so; the others go on."""
    through.tail(TOPIC)
    hold = proxy.hold_response(APPEND, times=None)
    stored: list[Any] = []

    def publish(n: int) -> None:
        stored.append(through.publish(TOPIC, type="t", data=n))

    threads = [threading.Thread(target=publish, args=(n,)) for n in range(4)]
    for n, thread in enumerate(threads, 1):
        thread.start()
        proxy.wait_for(APPEND, n)
    error = failed(lambda: through.publish(TOPIC, type="t", data="late", timeout=0.3), OperationTimeoutError)
    assert error.outcome == "not_stored"
    proxy.remove(hold)
    for thread in threads:
        thread.join(LONG)
    assert sorted(event.index for event in stored) == [0, 1, 2, 3]
    assert sorted(event.data for event in through.get_history(TOPIC)) == [0, 1, 2, 3]


@ON_LITE
def test_a_list_that_fails_half_way_tells_what_is_stored(through: S2PubSub, proxy: FaultProxy) -> None:
    """The error of a list lists what the server has acknowledged, in order and with indices."""
    events = [{"type": "t", "data": n} for n in range(2500)]
    proxy.answer(APPEND, status=403, code="permission_denied", skip=2)
    error = failed(lambda: through.publish_many(TOPIC, events))
    assert [(event.index, event.data) for event in error.stored] == [(n, n) for n in range(2000)]
    assert error.outcome == "not_stored"
    assert through.tail(TOPIC) == 2000


@ON_LITE
def test_closing_during_a_publish(make_pubsub: MakePubSub, proxy: FaultProxy) -> None:
    """A publish that the closing of the client ends raises ClosedError with outcome 'unknown' if it had been sent."""
    for call in ("publish", "publish_many"):
        pubsub = make_pubsub(endpoints=proxy.url, access_token="test")
        pubsub.tail(TOPIC)
        hold = proxy.hold_response(APPEND)
        before = len(proxy.seen(APPEND))
        errors: list[Any] = []

        def publish(pubsub: S2PubSub = pubsub, call: str = call, errors: list[Any] = errors) -> None:
            errors.append(failed(lambda: PUBLISHING[call](pubsub), ClosedError))

        thread = threading.Thread(target=publish)
        thread.start()
        proxy.wait_for(APPEND, before + 1)
        pubsub.close()
        thread.join(LONG)
        assert [error.outcome for error in errors] == ["unknown"]
        proxy.remove(hold)


def test_publishing_on_a_closed_client(make_pubsub: MakePubSub) -> None:
    """C39: after close a publish raises ClosedError at once and says that nothing was stored."""
    for used in (False, True):
        pubsub = make_pubsub()
        if used:
            pubsub.publish(TOPIC, type="t", data=1)
        pubsub.close()
        for call in ("publish", "publish_many"):
            started = time.monotonic()
            error = failed(lambda call=call, pubsub=pubsub: PUBLISHING[call](pubsub), ClosedError)
            assert time.monotonic() - started < 0.5
            assert error.outcome == "not_stored"


@ON_LITE
def test_a_misspelt_basin(make_pubsub: MakePubSub, proxy: FaultProxy) -> None:
    """A publish into a basin that does not exist fails after one request and names the remedy."""
    pubsub = make_pubsub(basin="no-such-basin", endpoints=proxy.url, access_token="test")
    error = failed(lambda: pubsub.publish(TOPIC, type="t", data=1))
    assert (error.code, error.status, error.outcome) == ("basin_not_found", 404, "not_stored")
    assert "S2_BASIN" in str(error)
    assert len(proxy.seen(APPEND)) == 1


@ON_LITE
def test_a_name_that_does_not_resolve(make_pubsub: MakePubSub) -> None:
    """A host name that does not resolve is reported, not waited for; nothing was stored."""
    pubsub = make_pubsub(endpoints="http://s2.invalid:1234", access_token="test")
    started = time.monotonic()
    error = failed(lambda: pubsub.publish(TOPIC, type="t", data=1))
    assert time.monotonic() - started < 8
    assert (error.code, error.status, error.outcome) == ("connection", None, "not_stored")
    assert "host name" in str(error)


@pytest.mark.lite
@pytest.mark.limit(60)
def test_a_server_that_restarts(tmp_path: Any) -> None:
    """Publishes that meet a restart of the server are stored or say what is known; those after it work."""
    with LiteServer(local_root=tmp_path) as server:
        basin = server.make_basin(**CREATE_STREAMS)
        with S2PubSub(basin=basin, endpoints=server.url, access_token="test") as pubsub:
            pubsub.publish(TOPIC, type="t", data="before")
            server.stop()
            error = failed(lambda: pubsub.publish(TOPIC, type="t", data="down", timeout=2))
            assert (error.code, error.outcome) == ("connection", "not_stored")
            server.start()
            assert pubsub.publish(TOPIC, type="t", data="after").index == 1
            assert [event.data for event in pubsub.get_history(TOPIC)] == ["before", "after"]
