"""Reading where nothing is: idle sessions that are ended, and history without events. More of C01 and C04."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from s2pubsub import Event, LocalPubSub, S2PubSub
from tests.faults import READ_SESSION, After, FaultProxy
from tests.raw import Streams
from tests.servers import ON_LITE
from tests.topics import fill, indices, sessions
from tests.waiting import LONG, eventually

TOPIC = "agent.stream.idle"


@ON_LITE
@pytest.mark.limit(40)
def test_a_callback_on_an_empty_topic(through: S2PubSub, proxy: FaultProxy) -> None:
    """C01: the idle session of a callback on a topic without events ends by four kinds of answers in a row; nothing is
    reported, every session asks for 0, and the first event comes once.
    """
    idle = After(seconds=0.1)
    rules = [
        proxy.finish_session(READ_SESSION, after=idle),
        proxy.end_session(READ_SESSION, status=500, code="other", after=idle),
        proxy.reset_stream(READ_SESSION, after=idle),
        proxy.goaway_on(READ_SESSION, after=idle),
    ]
    seen: list[int | None] = []
    errors: list[BaseException] = []
    came = threading.Event()

    def take(event: Event) -> None:
        seen.append(event.index)
        came.set()

    with through.subscribe(TOPIC, take, on_error=errors.append):
        for rule in rules:
            rule.wait(1, timeout=20)
        proxy.wait_for(READ_SESSION, 5)
        through.publish(TOPIC, type="chunk", data=0)
        assert came.wait(LONG)
    assert (seen, errors) == ([0], [])
    assert sessions(proxy) == [0] * 5


def test_history_behind_control_records_and_far_away(pubsub: S2PubSub, streams: Streams) -> None:
    """C04: the tail behind a control record, the last index there can be, an emptied topic and one that was made anew
    are all just empty, as a list and one by one.
    """
    fill(pubsub, TOPIC, 2)
    assert streams.fence(TOPIC, "token") == 2
    for offset in (2, 3, 4, 2**53, 2**63 - 1):
        assert pubsub.get_history(TOPIC, offset) == []
        assert list(pubsub.iter_history(TOPIC, offset)) == []
    pubsub.clear_topic(TOPIC, strict=True)
    eventually(lambda: not pubsub.exists(TOPIC))
    assert pubsub.get_history(TOPIC) == []
    with pubsub.subscribe_from_offset(TOPIC, 0) as events:
        fill(pubsub, TOPIC, 1)
        assert indices(events, 1) == [0]
        assert pubsub.get_history(TOPIC, 1) == []


@pytest.mark.parametrize("offset", [0, 3, 10**9])
def test_history_of_local_topics(pubsub: S2PubSub, offset: int) -> None:
    """C04: local topics have no history, whatever was published and whatever is asked for; they are read live."""
    with LocalPubSub() as local, local.subscribe_from_offset("jobs", offset) as events:
        readers: list[Any] = [local, pubsub]
        for reader in readers:
            reader.publish("jobs", type="job", data=1)
            assert reader.get_history("jobs", offset) == []
        assert events.get(LONG).index is None
    assert list(pubsub.iter_history("jobs", offset)) == []
