"""Groups, plain readers and local-only events keep out of each other's way. More of C67 and C69."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from s2pubsub import BatchOptions, Event, LocalPubSub, S2PubSub
from tests.faults import FaultProxy
from tests.topics import indices
from tests.waiting import LONG, eventually

HERE = "jobs"
TOPIC = "agent.stream.local-only"


@pytest.fixture
def local() -> Iterator[LocalPubSub]:
    with LocalPubSub(retry_pause=0.01) as pubsub:
        yield pubsub


def test_a_group_without_answers_holds_up_nobody(local: LocalPubSub) -> None:
    """C67: a group whose members take events and never answer, one that is only iterated, and one with batches: each
    other group and each plain reader gets all events with attempt 1, and a late group only what comes after it.
    """
    silent = [local.subscribe(HERE, group="silent") for _ in range(2)]
    batched: list[int] = []
    local.subscribe(HERE, lambda event: batched.append(event.data), group="batched", batch=BatchOptions(max_size=7))
    with local.subscribe(HERE, group="iterated") as iterated, local.subscribe(HERE) as plain:
        for number in range(50):
            local.publish(HERE, type="job", data=number)
        taken = [member.get(LONG).data for member in silent for _ in range(10)]
        assert sorted(taken) == list(range(20))
        late: list[int] = []
        local.subscribe(HERE, lambda event: late.append(event.data), group="late")
        local.publish(HERE, type="job", data=50)
        for reader in (iterated, plain):
            events = [reader.get(LONG) for _ in range(51)]
            assert [(event.data, event.delivery_attempt) for event in events] == [(n, 1) for n in range(51)]
            assert reader is plain or all(iterated.ack(event) for event in events)
        local.flush(LONG)
        assert batched == list(range(51))
        assert late == [50]
    for member in silent:
        member.close()


def test_members_and_readers_that_come_and_go(local: LocalPubSub) -> None:
    """C67: while plain readers subscribe and leave, and members of one group close with events in hand, another group
    handles each event once, in its order.
    """
    steady: list[int] = []
    local.subscribe(HERE, lambda event: steady.append(event.data), group="steady")
    handled: Counter[int] = Counter()
    done = threading.Event()

    def come_and_go() -> None:
        while not done.is_set():
            with local.subscribe(HERE, group="restless") as member, local.subscribe(HERE):
                try:
                    event = member.get(0.01)
                except TimeoutError:
                    continue
                if event.delivery_attempt > 1 and member.ack(event):
                    handled[event.data] += 1

    threads = [threading.Thread(target=come_and_go) for _ in range(3)]
    with local.subscribe(HERE, group="restless"):  # the group lives on between its members
        for thread in threads:
            thread.start()
        for number in range(100):
            local.publish(HERE, type="job", data=number)
        done.set()
        for thread in threads:
            thread.join(LONG)
        local.flush(LONG)
    assert steady == list(range(100))
    assert all(count == 1 for count in handled.values())


def test_local_only_events_during_an_outage(through: S2PubSub, make_pubsub: Any, proxy: FaultProxy) -> None:
    """C69: with the server away a local-only event still reaches this process's subscribers, callbacks too, and
    nobody else; afterwards the indices go on without a hole and the history knows nothing of it.
    """
    called: list[Event] = []
    with make_pubsub().subscribe(TOPIC) as other, through.subscribe(TOPIC) as events:
        through.subscribe(TOPIC, called.append)
        through.publish(TOPIC, type="t", data=0)
        assert indices(events, 1) == [0]
        eventually(lambda: [event.data for event in called] == [0])
        with proxy.refusing():
            proxy.cut()
            through.publish(TOPIC, type="t", data="local", local_only=True)
            event = events.get(LONG)
            assert (event.index, event.data) == (None, "local")
            eventually(lambda: [event.data for event in called] == [0, "local"])
        through.publish(TOPIC, type="t", data=1)
        assert indices(events, 1) == [1]
        assert indices(other, 2) == [0, 1]
        assert events.next_index == 2
    assert [event.data for event in through.get_history(TOPIC)] == [0, 1]
