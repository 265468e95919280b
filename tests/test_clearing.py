"""Publishing on a topic while it is cleared, by every way of publishing. More of C14."""

from __future__ import annotations

import threading

import pytest

from s2pubsub import S2PubSub, S2PubSubError, StoreError
from tests.faults import APPEND, APPEND_SESSION, FaultProxy
from tests.servers import ON_LITE
from tests.topics import MakePubSub, on_threads
from tests.waiting import LONG

TOPIC = "agent.stream.clearing"
PENDING = {"status": 409, "code": "stream_deletion_pending"}


@ON_LITE
@pytest.mark.parametrize("way", ["list", "publisher", "exactly once"])
def test_a_pending_deletion_by_other_ways(through: S2PubSub, proxy: FaultProxy, pubsub: S2PubSub, way: str) -> None:
    """C14: 'deletion pending' for a second: lists and publishers wait it out, each event is stored once, in order."""
    pubsub.tail(TOPIC)
    for kind in (APPEND, APPEND_SESSION):
        proxy.answer(kind, **PENDING, times=None, for_seconds=1)
    if way == "list":
        stored = through.publish_many(TOPIC, [{"type": "t", "data": n} for n in range(3)], timeout=LONG)
    else:
        with through.publisher(TOPIC, exactly_once=way == "exactly once") as publisher:
            futures = [publisher.publish(type="t", data=n) for n in range(3)]
            stored = [future.result(LONG) for future in futures]
    assert [event.index for event in stored] == [0, 1, 2]
    assert pubsub.get_history(TOPIC) == stored


@pytest.mark.limit(60)
def test_clearing_again_and_again_under_publishers(make_pubsub: MakePubSub) -> None:
    """C14: one client clears while four threads of another publish: each call returns an index or raises in time, and
    what was published after the last clearing is there, complete and from index 0 on.
    """
    writer, clearer = make_pubsub(), make_pubsub()
    done = threading.Event()
    errors: list[S2PubSubError] = []

    def act(number: int) -> None:
        if number == 4:
            for _ in range(6):
                clearer.clear_topic(TOPIC, strict=True)
                done.wait(0.05)
            done.set()
        while not done.is_set():
            try:
                assert writer.publish(TOPIC, type="t", data=number, timeout=LONG).index is not None
            except S2PubSubError as error:
                errors.append(error)

    on_threads(5, act)
    assert all(isinstance(error, StoreError) and error.outcome is not None for error in errors)
    clearer.clear_topic(TOPIC, strict=True)
    after = [writer.publish(TOPIC, type="t", data=f"after {n}", timeout=LONG) for n in range(5)]
    assert [event.index for event in after] == list(range(5))
    assert clearer.get_history(TOPIC) == after
