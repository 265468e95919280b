"""Whatever way an event takes into a topic, it passes the same strict codec, and nothing of a refused one is stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from s2pubsub import EncodeError, Event, LocalPubSub, S2PubSub
from s2pubsub.runs import Runs
from tests.raw import Streams
from tests.topics import MakePubSub
from tests.waiting import LONG

TOPIC = "agent.stream.strict"
Send = Callable[[Any], object]
ENTRIES = ["publish", "publish_many", "publisher", "exactly_once", "local_only", "local", "run data", "run chunk"]


@pytest.fixture
def watched(pubsub: S2PubSub) -> Iterator[list[Event]]:
    """What subscribers of the process have been given."""
    seen: list[Event] = []
    with pubsub.subscribe_with_replay(TOPIC, seen.append), pubsub.subscribe("jobs", seen.append):
        yield seen


@pytest.fixture(params=ENTRIES)
def send(request: pytest.FixtureRequest, pubsub: S2PubSub, watched: list[Event]) -> Iterator[Send]:
    """One of the ways into a topic, with a good event before and behind the refused one."""

    def check(put: Send) -> Send:
        def refused(value: Any) -> None:
            before = pubsub.tail(TOPIC)
            try:
                put(value)
            finally:
                assert pubsub.tail(TOPIC) == before
                assert watched == []

        return refused

    match request.param:
        case "publish":
            yield check(lambda value: pubsub.publish(TOPIC, type="t", data=value))
        case "publish_many":
            good = {"type": "t", "data": 1}
            yield check(lambda value: pubsub.publish_many(TOPIC, [good, {"type": "t", "data": value}, good]))
        case "publisher" | "exactly_once":
            with pubsub.publisher(TOPIC, exactly_once=request.param == "exactly_once") as publisher:
                yield check(lambda value: publisher.publish(type="t", data=value))
        case "local_only":
            yield check(lambda value: pubsub.publish(TOPIC, type="t", data=value, local_only=True))
        case "local":
            yield check(lambda value: pubsub.publish("jobs", type="t", data=value))
        case _:
            with Runs(pubsub, cleanup_timeout=0).start("elsewhere") as run:
                put = run.data if request.param == "run data" else lambda name, value: run.chunk(name, {"v": value})
                before = len(pubsub.get_history(run.topic))
                yield check(lambda value: put("name", value))
                run.flush(LONG)
                assert len(pubsub.get_history(run.topic)) == before


def place_of(send: Send, value: Any) -> str:
    """Where the refused part stands, below the data that was given."""
    with pytest.raises(EncodeError) as caught:
        send(value)
    assert caught.value.outcome == "not_stored"
    return caught.value.path


@pytest.mark.parametrize("value", [{"a": [0.0, {"b": math.nan}]}, {"a": [0, {"b": -math.inf}]}])
def test_numbers_that_are_none(send: Send, value: Any) -> None:
    """C58: NaN and infinities are refused with their place by every way into a topic; nothing is stored."""
    assert place_of(send, value).endswith(".a[1].b")


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1, 10**5000], ids=["above", "below", "digits"])
def test_integers_that_javascript_changes(send: Send, value: int) -> None:
    """C59: integers beyond ±(2**53 - 1) are refused with their place by every way into a topic."""
    assert place_of(send, {"ids": [1, value]}).endswith(".ids[1]")


@pytest.mark.parametrize("keys", [{1: "a"}, {None: 1}, {(1, 2): 1}, {"1": "a", 1: "b"}])
def test_keys_that_are_no_text(send: Send, keys: Any) -> None:
    """C60: a mapping with keys that are not text is refused with its place by every way into a topic."""
    assert place_of(send, {"rows": [keys]}).endswith(".rows[0]")


class Name(str):
    """Text by inheritance: it would come back as plain text."""


@pytest.mark.parametrize("made", [{"n": 2**53}, [math.inf], {1: 1}, {Name("key"): 1}])
@pytest.mark.parametrize("local", [False, True], ids=["stored", "local"])
def test_what_the_hook_gives_is_no_exception(make_pubsub: MakePubSub, made: Any, local: bool) -> None:
    """C58, C59, C60: what ``default`` makes of a foreign value is judged as strictly, on stored and on local topics."""
    pubsub = make_pubsub(default=lambda value: made)
    topic = "jobs" if local else TOPIC
    with pytest.raises(EncodeError):
        pubsub.publish(topic, type="t", data={"foreign": object()})
    assert pubsub.tail(TOPIC) == 0


def test_a_transport_of_its_own() -> None:
    """C58, C59, C60: a LocalPubSub without any client refuses the same, before any subscriber sees anything."""
    with LocalPubSub() as local, local.subscribe("jobs") as events:
        for value in (math.nan, 2**53, {1: 1}):
            with pytest.raises(EncodeError):
                local.publish("jobs", type="t", data={"x": value})
        local.publish("jobs", type="t", data={"x": 1})
        assert events.get(LONG).data == {"x": 1}
        with pytest.raises(TimeoutError):
            events.get(0)


def test_a_foreign_writers_integers_are_read_as_they_stand(pubsub: S2PubSub, streams: Streams) -> None:
    """C59: an integer that another program stored is no error of the reader, and is exact; publishing it again is."""
    body = '{"type":"t","runId":"","data":%d,"id":"1","createdAt":"2026-03-01T12:00:00.123Z"}'
    streams.append(TOPIC, (body % (2**53 + 1)).encode())
    event = pubsub.get_history(TOPIC)[0]
    assert event.data == 2**53 + 1
    with pytest.raises(EncodeError):
        pubsub.publish_many("agent.stream.other", [event])
