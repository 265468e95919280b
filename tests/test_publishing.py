"""Publishing: what a returned, a failed and a late publish have stored, on real servers behind faults."""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import s2_sdk

from s2pubsub import ClosedError, EncodeError, OperationTimeoutError, S2PubSub, S2PubSubError, StoreError
from tests.faults import APPEND as ON_APPEND
from tests.faults import FaultProxy, Request
from tests.servers import CREATE_STREAMS, ON_LITE, LiteServer, Server
from tests.waiting import LONG, eventually

MakePubSub = Callable[..., S2PubSub]
TOPIC = "agent.stream.publishing"


def run_threads(count: int, action: Callable[[int], object]) -> None:
    """Call ``action(i)`` on ``count`` threads that begin together; the first error is raised here."""
    barrier = threading.Barrier(count)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            barrier.wait(LONG)
            action(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a publishing thread hangs"
    if errors:
        raise errors[0]


def failed(publish: Callable[[], object], kind: type[S2PubSubError] = StoreError) -> Any:
    """The error of a publish that must fail; it survives pickling with its outcome."""
    with pytest.raises(kind) as caught:
        publish()
    error = caught.value
    twin = pickle.loads(pickle.dumps(error))
    assert (type(twin), str(twin), twin.outcome, twin.stored) == (type(error), str(error), error.outcome, error.stored)
    for link in (error, error.__cause__):
        assert not isinstance(link, BaseExceptionGroup)
        assert type(link).__name__ not in ("RetryError", "TryAgain", "CancelledError")
    return error


@pytest.fixture
def through(make_pubsub: MakePubSub, proxy: FaultProxy) -> S2PubSub:
    """A client whose requests go through the proxy."""
    return make_pubsub(endpoints=proxy.url, access_token="test")


# C10: the first events of a topic.


def test_concurrent_first_publishes(make_pubsub: MakePubSub, server: Server) -> None:
    """C10: sixteen threads' first publishes on fresh topics all succeed, each index once."""
    pubsub = make_pubsub()
    for number in range(10):
        topic = f"{TOPIC}-{number}"
        run_threads(16, lambda i, topic=topic: pubsub.publish(topic, type="t", data=i))
        events = pubsub.get_history(topic)
        assert [event.index for event in events] == list(range(16))
        assert sorted(event.data for event in events) == list(range(16))


@ON_LITE
@pytest.mark.slow
@pytest.mark.limit(60)
def test_concurrent_first_publishes_with_404(through: S2PubSub, proxy: FaultProxy) -> None:
    """C10: a third of the first appends of 50 topics is answered 404 once; all are stored all the same."""
    count: Counter[str] = Counter()

    def third(seen: Any) -> bool:
        count[seen.stream] += 1
        return count[seen.stream] % 3 == 1

    proxy.answer(Request(kind="append", where=third), status=404, code="stream_not_found", times=None)
    for number in range(50):
        topic = f"{TOPIC}-{number}"
        run_threads(16, lambda i, topic=topic: through.publish(topic, type="t", data=i))
        events = through.get_history(topic)
        assert [event.index for event in events] == list(range(16))
        assert sorted(event.data for event in events) == list(range(16))


def test_concurrent_first_publishes_of_many_clients(make_pubsub: MakePubSub) -> None:
    """C10: eight clients make the same fresh topics at once, by single publishes and by lists."""
    clients = [make_pubsub() for _ in range(8)]

    def publish(number: int) -> None:
        client = clients[number]
        for topic_number in range(5):
            client.publish_many(f"{TOPIC}-{topic_number}", [{"type": "t", "data": [number, i]} for i in range(3)])

    run_threads(8, publish)
    for topic_number in range(5):
        events = clients[0].get_history(f"{TOPIC}-{topic_number}")
        assert [event.index for event in events] == list(range(24))
        for at in range(0, 24, 3):
            assert [event.data[1] for event in events[at : at + 3]] == [0, 1, 2]
            assert len({event.data[0] for event in events[at : at + 3]}) == 1


@ON_LITE
def test_a_topic_that_cannot_be_made_names_the_remedy(
    make_pubsub: MakePubSub, make_basin: Callable[..., str], proxy: FaultProxy
) -> None:
    """C10: on a basin without create-stream-on-append a publish gives up after three tries and names the remedy."""
    pubsub = make_pubsub(basin=make_basin(), endpoints=proxy.url, access_token="test")
    started = time.monotonic()
    error = failed(lambda: pubsub.publish(TOPIC, type="t", data=1))
    assert time.monotonic() - started < 3
    assert (error.code, error.status, error.outcome) == ("stream_not_found", 404, "not_stored")
    assert "create-stream-on-append" in str(error)
    assert "ensure_basin()" in str(error)
    assert len(proxy.seen(ON_APPEND)) == 3
    pubsub.ensure_basin()
    assert pubsub.publish(TOPIC, type="t", data=1).index == 0


# C11: sizes.


def test_an_event_above_the_record_limit(pubsub: S2PubSub, server: Server) -> None:
    """C11: one byte too many in UTF-8 is refused with size and limit; the largest and a small one are stored."""
    room = 2**20 - 8 - (len(_body_of(pubsub, "")) - 0)
    text = "€" * (room // 3) + "x" * (room % 3)
    with pytest.raises(EncodeError) as caught:
        pubsub.publish(TOPIC, type="t", data=text + "y")
    assert caught.value.outcome == "not_stored"
    assert str(2**20 + 1) in str(caught.value)
    assert str(2**20) in str(caught.value)
    with pytest.raises(EncodeError):
        pubsub.publish(TOPIC, type="t", data="€" * 2**20)
    assert not pubsub.exists(TOPIC)
    assert pubsub.publish(TOPIC, type="t", data=text).index == 0
    assert pubsub.publish(TOPIC, type="t", data="small").index == 1
    stored = pubsub.get_history(TOPIC)
    assert [event.data for event in stored] == [text, "small"]


def _body_of(pubsub: S2PubSub, data: Any) -> bytes:
    from s2pubsub.codec import encode

    return encode(TOPIC, type="t", data=data)[1]


def test_large_events_in_a_list(pubsub: S2PubSub) -> None:
    """C11: a list is split into appends that the server takes; one event too large refuses the list before any."""
    fits = [{"type": "t", "data": "x" * size} for size in (600_000, 600_000, 10, 1_040_000, 10, 10)]
    stored = pubsub.publish_many(TOPIC, fits)
    assert [event.index for event in stored] == list(range(6))
    with pytest.raises(EncodeError, match=r"events\[6\]|event"):
        pubsub.publish_many(TOPIC, [*fits, {"type": "t", "data": "x" * 2**20}])
    assert pubsub.tail(TOPIC) == 6
    assert [len(event.data) for event in pubsub.get_history(TOPIC)] == [len(event["data"]) for event in fits]


def test_more_events_than_an_append_takes(pubsub: S2PubSub) -> None:
    """C11: lists of more than a thousand events are stored in order; an empty list stores nothing."""
    assert pubsub.publish_many(TOPIC, []) == []
    stored = pubsub.publish_many(TOPIC, ({"type": "t", "data": n, "run_id": "r"} for n in range(2500)))
    assert [event.index for event in stored] == list(range(2500))
    found = pubsub.get_history(TOPIC)
    assert found == stored
    assert pubsub.publish_many(TOPIC, found[:2])[0].data == 0  # events may be published anew


# C12: what a publish that returned has stored.


@pytest.mark.limit(60)
def test_a_script_that_never_closes(server: Server, basin: str) -> None:
    """C12: a script publishes 100 events and falls off its end without closing; all are stored, stderr is empty."""
    script = """
        from s2pubsub import S2PubSub
        pubsub = S2PubSub()
        for n in range(100):
            pubsub.publish("agent.stream.script", type="t", data=n)
    """
    _run_script(script, server, basin)
    assert _stored(server, basin, "agent.stream.script") == list(range(100))


@pytest.mark.limit(60)
def test_threads_that_outlive_the_main_thread(server: Server, basin: str) -> None:
    """C12: what other threads publish before the interpreter ends is stored, too."""
    script = """
        import threading
        from s2pubsub import S2PubSub
        pubsub = S2PubSub()
        def work(first):
            for n in range(first, first + 25):
                pubsub.publish("agent.stream.script", type="t", data=n)
        for k in range(4):
            threading.Thread(target=work, args=(k * 25,)).start()
    """
    _run_script(script, server, basin)
    assert sorted(_stored(server, basin, "agent.stream.script")) == list(range(100))


def _run_script(script: str, server: Server, basin: str) -> None:
    env = {**os.environ, **server.endpoints_env(), "S2_BASIN": basin}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        env=env,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def _stored(server: Server, basin: str, topic: str) -> list[Any]:
    endpoints = s2_sdk.Endpoints(account=server.url, basin=server.basin_url)
    with S2PubSub(basin=basin, endpoints=endpoints, access_token=server.token) as pubsub:
        return [event.data for event in pubsub.get_history(topic)]


# C13: order.


@pytest.mark.slow
@pytest.mark.limit(120)
def test_the_order_of_each_threads_calls(pubsub: S2PubSub) -> None:
    """C13: four threads publish 200 events each, every tenth of 600 KB: each thread's come in its order, none lacks."""

    def publish(thread: int) -> None:
        for number in range(200):
            filling = "x" * (600_000 if number % 10 == 0 else 60)
            pubsub.publish(TOPIC, type="t", data=[thread, number, filling])

    run_threads(4, publish)
    seen: dict[int, list[int]] = {thread: [] for thread in range(4)}
    indices = []
    for event in pubsub.iter_history(TOPIC):
        seen[event.data[0]].append(event.data[1])
        indices.append(event.index)
    assert indices == list(range(800))
    assert all(numbers == list(range(200)) for numbers in seen.values())


def test_the_order_of_single_and_listed_events(pubsub: S2PubSub) -> None:
    """C13: a thread that mixes single publishes and lists of several appends finds them in the order of its calls."""

    def publish(thread: int) -> None:
        number = itertools.count()
        for size in (1, 1200, 1, 3, 1, 1100, 1):
            many = [{"type": "t", "data": [thread, next(number)]} for _ in range(size)]
            if size == 1:
                pubsub.publish(TOPIC, **many[0])
            else:
                pubsub.publish_many(TOPIC, many)

    run_threads(3, publish)
    seen: dict[int, list[int]] = {thread: [] for thread in range(3)}
    for event in pubsub.iter_history(TOPIC):
        seen[event.data[0]].append(event.data[1])
    assert all(numbers == list(range(2307)) for numbers in seen.values())


@ON_LITE
def test_the_order_behind_a_slow_answer(through: S2PubSub, proxy: FaultProxy) -> None:
    """C13: while one append's answer is held back, other threads' go on, and each publish returns its own index."""
    through.publish(TOPIC, type="t", data="first")
    rule = proxy.hold_response(ON_APPEND, 1.0)
    late: list[Any] = []
    thread = threading.Thread(target=lambda: late.append(through.publish(TOPIC, type="t", data="late")))
    thread.start()
    proxy.wait_for(ON_APPEND, 2)
    others = [through.publish(TOPIC, type="t", data=n) for n in range(20)]
    assert not late
    thread.join(LONG)
    assert rule.hits == 1
    stored = {event.index: event.data for event in through.get_history(TOPIC)}
    assert stored[late[0].index] == "late"
    assert [stored[event.index] for event in others] == list(range(20))
    indices = [event.index for event in others]
    assert indices == sorted(indices)


# C14: a topic that is being cleared.


def test_publishing_right_after_clearing(pubsub: S2PubSub) -> None:
    """C14: clear and publish at once, again and again: each publish returns index 0 of the new stream, alone in it."""
    for number in range(10):
        pubsub.publish(TOPIC, type="t", data="old")
        pubsub.clear_topic(TOPIC, strict=True)
        event = pubsub.publish(TOPIC, type="t", data=number, timeout=10)
        assert event.index == 0
        assert [found.data for found in pubsub.get_history(TOPIC)] == [number]


@ON_LITE
def test_publishing_while_the_deletion_is_pending(through: S2PubSub, proxy: FaultProxy) -> None:
    """C14: the server answers 'deletion pending' for two seconds; the publish succeeds within ten, once, index 0."""
    proxy.answer(ON_APPEND, status=409, code="stream_deletion_pending", times=None, for_seconds=2)
    started = time.monotonic()
    event = through.publish(TOPIC, type="t", data="new", timeout=10)
    assert 2 <= time.monotonic() - started < 10
    assert event.index == 0
    assert len(through.get_history(TOPIC)) == 1
    assert len(proxy.seen(ON_APPEND)) < 20


@ON_LITE
@pytest.mark.parametrize("many", [False, True], ids=["publish", "publish_many"])
def test_publishing_while_the_deletion_never_ends(through: S2PubSub, proxy: FaultProxy, many: bool) -> None:
    """C14: 'deletion pending' for ever: raised with that reason within the timeout; nothing was stored, as it says."""
    rule = proxy.answer(ON_APPEND, status=409, code="stream_deletion_pending", times=None)
    started = time.monotonic()
    if many:
        error = failed(lambda: through.publish_many(TOPIC, [{"type": "t", "data": 1}], timeout=1.5))
    else:
        error = failed(lambda: through.publish(TOPIC, type="t", data=1, timeout=1.5))
    assert time.monotonic() - started < 2.5
    assert (error.code, error.status, error.outcome) == ("stream_deletion_pending", 409, "not_stored")
    proxy.remove(rule)
    assert through.get_history(TOPIC) == []


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
    freezes in use, each call with a limit of 2 s raises the timeout error within 3 s, and close works after it.
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
            CALLS[name](clients[name], 2.0)
            raised[name] = None
        except BaseException as error:
            raised[name] = error
        took[name] = time.monotonic() - started

    names = list(CALLS)
    run_threads(len(names), lambda number: call(names[number]))
    assert {name: type(error) for name, error in raised.items()} == dict.fromkeys(names, OperationTimeoutError)
    assert {name: seconds for name, seconds in took.items() if not 1.9 <= seconds < 3} == {}
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


# What a failed publish has stored.


@ON_LITE
def test_a_lost_answer_is_sent_again_with_the_same_id(through: S2PubSub, proxy: FaultProxy) -> None:
    """Design 4: by default an ambiguous failure is resent by the SDK: stored at least once, the same id in both."""
    through.publish(TOPIC, type="t", data="first")
    proxy.lose_response(ON_APPEND)
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
    proxy.lose_response(ON_APPEND)
    error = failed(lambda: pubsub.publish(TOPIC, type="t", data="second"))
    assert (error.code, error.status, error.outcome) == ("connection", None, "unknown")
    assert isinstance(error.__cause__, s2_sdk.S2ClientError)
    assert [found.data for found in pubsub.get_history(TOPIC)] == ["first", "second"]
    proxy.answer(ON_APPEND, status=503)
    assert failed(lambda: pubsub.publish(TOPIC, type="t", data="third")).outcome == "unknown"
    proxy.answer(ON_APPEND, status=429, code="rate_limited")
    assert pubsub.publish(TOPIC, type="t", data="fourth").index == 2
    assert len(proxy.seen(ON_APPEND)) == 5


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
    rule = proxy.answer(ON_APPEND, status=status, code=code, message="no", times=None)

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
    rule = proxy.answer(ON_APPEND, status=status, code=code, times=None)
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
    """Design 4: these are tried again, beyond the SDK's three, until they pass, or until the time is up."""

    def publish(timeout: float) -> Any:
        if many:
            return through.publish_many(TOPIC, [{"type": "t", "data": 1}], timeout=timeout)[0]
        return through.publish(TOPIC, type="t", data=1, timeout=timeout)

    proxy.answer(ON_APPEND, status=status, code=code, times=5)
    assert publish(10).index == 0
    assert len(proxy.seen(ON_APPEND)) == 6
    proxy.answer(ON_APPEND, status=status, code=code, times=None)
    started = time.monotonic()
    error = failed(lambda: publish(2), S2PubSubError)
    assert time.monotonic() - started < 3
    if isinstance(error, OperationTimeoutError):  # it was up in the middle of the SDK's own attempts
        assert error.outcome == "unknown"
        error = error.__cause__
        assert code in str(error)
    assert (error.status, error.code, error.outcome) == (status, code, "not_stored")
    proxy.clear()
    assert through.tail(TOPIC) == 1


@ON_LITE
def test_a_refused_connection_is_tried_again(through: S2PubSub, proxy: FaultProxy) -> None:
    """Design 4: a refused connection is tried again until the server is back, or the time is up."""
    with proxy.refusing():
        error = failed(lambda: through.publish(TOPIC, type="t", data=1, timeout=1.5), S2PubSubError)
        if isinstance(error, OperationTimeoutError):  # it was up in the middle of the SDK's own attempts
            assert error.outcome == "unknown"
            error = error.__cause__
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
    proxy.answer(ON_APPEND, status=409, code="stream_deletion_pending")
    hold = proxy.hold_response(ON_APPEND)

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
    hold = proxy.hold_response(ON_APPEND, times=None)
    stored: list[Any] = []

    def publish(n: int) -> None:
        stored.append(through.publish(TOPIC, type="t", data=n))

    threads = [threading.Thread(target=publish, args=(n,)) for n in range(4)]
    for n, thread in enumerate(threads, 1):
        thread.start()
        proxy.wait_for(ON_APPEND, n)
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
    proxy.answer(ON_APPEND, status=403, code="permission_denied", skip=2)
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
        hold = proxy.hold_response(ON_APPEND)
        before = len(proxy.seen(ON_APPEND))
        errors: list[Any] = []

        def publish(pubsub: S2PubSub = pubsub, call: str = call, errors: list[Any] = errors) -> None:
            errors.append(failed(lambda: CALLS[call](pubsub, 30), ClosedError))

        thread = threading.Thread(target=publish)
        thread.start()
        proxy.wait_for(ON_APPEND, before + 1)
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
            error = failed(lambda call=call, pubsub=pubsub: CALLS[call](pubsub, 30), ClosedError)
            assert time.monotonic() - started < 0.5
            assert error.outcome == "not_stored"


@ON_LITE
def test_a_misspelt_basin(make_pubsub: MakePubSub, proxy: FaultProxy) -> None:
    """A publish into a basin that does not exist fails after one request and names the remedy."""
    pubsub = make_pubsub(basin="no-such-basin", endpoints=proxy.url, access_token="test")
    error = failed(lambda: pubsub.publish(TOPIC, type="t", data=1))
    assert (error.code, error.status, error.outcome) == ("basin_not_found", 404, "not_stored")
    assert "S2_BASIN" in str(error)
    assert len(proxy.seen(ON_APPEND)) == 1


@ON_LITE
def test_a_name_that_does_not_resolve(make_pubsub: MakePubSub) -> None:
    """A host name that does not resolve is reported, not waited for; nothing was stored."""
    pubsub = make_pubsub(endpoints="http://s2.invalid:1234", access_token="test")
    started = time.monotonic()
    error = failed(lambda: pubsub.publish(TOPIC, type="t", data=1))
    assert time.monotonic() - started < 8
    assert (error.code, error.status, error.outcome) == ("connection", None, "not_stored")
    assert "host name" in str(error)


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
    proxy.wait_for(ON_APPEND, 1)
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
        appends = {seen.connection for seen in proxy.seen(ON_APPEND)}
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


def test_local_validation_comes_first(make_pubsub: MakePubSub) -> None:
    """A wrong argument is a TypeError or ValueError before any connection is made."""
    pubsub = make_pubsub(endpoints="http://127.0.0.1:9", access_token="test")  # nothing listens there
    wrong: list[Callable[[], object]] = [
        lambda: pubsub.publish(TOPIC, type=5, data=1),  # type: ignore[arg-type]
        lambda: pubsub.publish(TOPIC, type="t", data={1: 2}),
        lambda: pubsub.publish(TOPIC, type="t", data=float("nan")),
        lambda: pubsub.publish(TOPIC, type="t", data=1, run_id=None),  # type: ignore[arg-type]
        lambda: pubsub.publish("", type="t", data=1),
        lambda: pubsub.publish(None, type="t", data=1),  # type: ignore[arg-type]
        lambda: pubsub.publish("agent.\ud800", type="t", data=1),
        lambda: pubsub.publish("agent." + "x" * 600, type="t", data=1),
        lambda: pubsub.publish(TOPIC, type="t", data=1, timeout=-1),
        lambda: pubsub.publish(TOPIC, type="t", data=1, timeout="5"),  # type: ignore[arg-type]
        lambda: pubsub.publish(TOPIC, type="t", data=1, timeout=True),
        lambda: pubsub.publish_many(TOPIC, [{"type": "t"}]),
        lambda: pubsub.publish_many(TOPIC, "text"),  # type: ignore[arg-type]
        lambda: pubsub.publish_many(TOPIC, [{"type": "t", "data": 1}, {"type": "t", "data": object()}]),
    ]
    for call in wrong:
        started = time.monotonic()
        with pytest.raises((TypeError, ValueError)):
            call()
        assert time.monotonic() - started < 0.5
    assert not any(thread.name == "s2pubsub-io" for thread in threading.enumerate())


@pytest.mark.lite
@pytest.mark.limit(60)
def test_a_server_that_restarts(tmp_path: Any) -> None:
    """Publishes that meet a restart of the server are stored or say what is known; those after it work."""
    with LiteServer(local_root=tmp_path) as server:
        basin = server.make_basin(**CREATE_STREAMS)
        with S2PubSub(basin=basin, endpoints=server.url, access_token="test") as pubsub:
            pubsub.publish(TOPIC, type="t", data="before")
            server.stop()
            error = failed(lambda: pubsub.publish(TOPIC, type="t", data="down", timeout=2), S2PubSubError)
            error = error.__cause__ if isinstance(error, OperationTimeoutError) else error
            assert (error.code, error.outcome) == ("connection", "not_stored")
            server.start()
            assert pubsub.publish(TOPIC, type="t", data="after").index == 1
            assert [event.data for event in pubsub.get_history(TOPIC)] == ["before", "after"]
