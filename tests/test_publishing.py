"""Publishing: what a returned publish has stored, and in which order, on real servers behind faults."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import s2_sdk

from s2pubsub import (
    EncodeError,
    S2PubSub,
)
from s2pubsub.codec import encode
from tests.faults import APPEND, FaultProxy, Request
from tests.servers import ON_LITE, Server
from tests.topics import MakePubSub, failed, on_threads
from tests.waiting import LONG

TOPIC = "agent.stream.publishing"

# C10: the first events of a topic.


def test_concurrent_first_publishes(make_pubsub: MakePubSub, server: Server) -> None:
    """C10: sixteen threads' first publishes on fresh topics all succeed, each index once."""
    pubsub = make_pubsub()
    for number in range(10):
        topic = f"{TOPIC}-{number}"
        on_threads(16, lambda i, topic=topic: pubsub.publish(topic, type="t", data=i))
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
        on_threads(16, lambda i, topic=topic: through.publish(topic, type="t", data=i))
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

    on_threads(8, publish)
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
    assert len(proxy.seen(APPEND)) == 3
    pubsub.ensure_basin()
    assert pubsub.publish(TOPIC, type="t", data=1).index == 0


# C11: sizes.


def test_an_event_above_the_record_limit(pubsub: S2PubSub, server: Server) -> None:
    """C11: one byte too many in UTF-8 is refused with size and limit; the largest and a small one are stored."""
    room = 2**20 - 8 - len(encode(TOPIC, type="t", data="")[1])
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

    on_threads(4, publish)
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

    on_threads(3, publish)
    seen: dict[int, list[int]] = {thread: [] for thread in range(3)}
    for event in pubsub.iter_history(TOPIC):
        seen[event.data[0]].append(event.data[1])
    assert all(numbers == list(range(2307)) for numbers in seen.values())


@ON_LITE
def test_the_order_behind_a_slow_answer(through: S2PubSub, proxy: FaultProxy) -> None:
    """C13: while one append's answer is held back, other threads' go on, and each publish returns its own index."""
    through.publish(TOPIC, type="t", data="first")
    rule = proxy.hold_response(APPEND, 1.0)
    late: list[Any] = []
    thread = threading.Thread(target=lambda: late.append(through.publish(TOPIC, type="t", data="late")))
    thread.start()
    proxy.wait_for(APPEND, 2)
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
    proxy.answer(APPEND, status=409, code="stream_deletion_pending", times=None, for_seconds=2)
    started = time.monotonic()
    event = through.publish(TOPIC, type="t", data="new", timeout=10)
    assert 2 <= time.monotonic() - started < 10
    assert event.index == 0
    assert len(through.get_history(TOPIC)) == 1
    assert len(proxy.seen(APPEND)) < 20


@ON_LITE
@pytest.mark.parametrize("many", [False, True], ids=["publish", "publish_many"])
def test_publishing_while_the_deletion_never_ends(through: S2PubSub, proxy: FaultProxy, many: bool) -> None:
    """C14: 'deletion pending' for ever: raised with that reason within the timeout; nothing was stored, as it says."""
    rule = proxy.answer(APPEND, status=409, code="stream_deletion_pending", times=None)
    started = time.monotonic()
    if many:
        error = failed(lambda: through.publish_many(TOPIC, [{"type": "t", "data": 1}], timeout=1.5))
    else:
        error = failed(lambda: through.publish(TOPIC, type="t", data=1, timeout=1.5))
    assert time.monotonic() - started < 2.5
    assert (error.code, error.status, error.outcome) == ("stream_deletion_pending", 409, "not_stored")
    proxy.remove(rule)
    assert through.get_history(TOPIC) == []


# Arguments.


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
