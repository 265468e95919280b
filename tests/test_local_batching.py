"""Batches of local events: when they are due, what is left out, and what a full buffer does."""

from __future__ import annotations

import logging
import math
import random
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from s2pubsub import BatchOptions, Event, LocalPubSub
from s2pubsub.local.batching import Buffer
from s2pubsub.local.delivery import Delivery
from tests.waiting import LONG, eventually

HERE = "jobs"
NEVER = 1e6
"""A wait that no test waits for, in seconds."""


@pytest.fixture
def local() -> Iterator[LocalPubSub]:
    with LocalPubSub(retry_pause=0.01) as pubsub:
        yield pubsub


def publish(pubsub: LocalPubSub, numbers: Any) -> None:
    for n in numbers:
        pubsub.publish(HERE, type="job", data=n)


class Gathering:
    """A buffer on a clock that the test moves."""

    def __init__(self, **options: Any) -> None:
        self.now = 100.0
        self.errors: list[tuple[str, str]] = []
        self.buffer = Buffer(BatchOptions(**options), lambda e, what: self.errors.append((what, str(e))), self.clock)

    def clock(self) -> float:
        return self.now

    def add(self, *numbers: int) -> None:
        for n in numbers:
            event = Event(topic=HERE, type="job", data=n, id=str(n), created_at=datetime.now(UTC))
            self.buffer.add(Delivery(str(n), b"", self.now), event)

    def take(self) -> tuple[list[int], list[int], int]:
        kept, left_out, overflowed = self.buffer.take()
        self.buffer.delivered()
        return [event.data for _, event in kept], [event.data for _, event in left_out], overflowed


# When.


def test_max_size():
    """A batch is due when as many are gathered as ``max_size`` says, and never before without another reason."""
    gathering = Gathering(max_size=3)
    gathering.add(1, 2)
    gathering.now += NEVER
    assert gathering.buffer.due() == math.inf
    gathering.add(3)
    assert gathering.buffer.is_due()
    assert gathering.take() == ([1, 2, 3], [], 0)
    assert gathering.buffer.due() == math.inf


def test_max_wait_counts_from_the_oldest():
    """A batch is due ``max_wait`` after its oldest event came."""
    gathering = Gathering(max_wait=5)
    gathering.add(1)
    gathering.now += 3
    gathering.add(2)
    assert gathering.buffer.due() == 105
    gathering.now += 2
    assert gathering.buffer.is_due()
    assert gathering.take()[0] == [1, 2]
    gathering.add(3)
    assert gathering.buffer.due() == 110


def test_min_interval_is_a_floor():
    """Neither size, wait nor an immediate event brings a batch forward before ``min_interval`` is over."""
    gathering = Gathering(max_size=2, max_wait=1, min_interval=10, is_immediate=lambda event: event.data == 9)
    gathering.add(1, 2)
    assert gathering.buffer.is_due()
    gathering.take()
    gathering.add(3, 4)
    assert gathering.buffer.due() == 110
    gathering.add(9)
    assert gathering.buffer.due() == 110
    gathering.now = 110
    assert gathering.buffer.is_due()
    assert gathering.take()[0] == [3, 4, 9]
    gathering.add(5)
    assert gathering.buffer.due() == 120
    gathering.now = 125
    gathering.take()
    gathering.now = 140
    gathering.add(6)
    assert gathering.buffer.due() == 141


def test_a_full_buffer_is_due_whatever_the_floor():
    """At ``max_buffer_size`` a batch is due, also below the floor and without any other reason."""
    gathering = Gathering(max_wait=NEVER, min_interval=NEVER, max_buffer_size=3)
    gathering.add(1)
    gathering.take()
    gathering.add(2, 3)
    assert not gathering.buffer.is_due()
    assert gathering.buffer.room == 1
    gathering.add(4)
    assert gathering.buffer.is_due()


def test_an_immediate_event_stays_immediate():
    """An ordinary event behind an immediate one does not put it off."""
    gathering = Gathering(max_wait=NEVER, min_interval=10, is_immediate=lambda event: event.data == 9)
    gathering.add(1)
    gathering.take()
    gathering.add(9, 2)
    assert gathering.buffer.due() == 110


def test_an_error_of_is_immediate_is_reported():
    """An event whose ``is_immediate`` raises is an ordinary one."""
    gathering = Gathering(max_size=2, is_immediate=lambda event: 1 / 0)
    gathering.add(1)
    assert not gathering.buffer.is_due()
    assert gathering.errors == [("is_immediate", "division by zero")]


# What.


def test_coalesce_leaves_out():
    """What ``coalesce`` leaves out is not delivered, the rest keeps its order."""
    gathering = Gathering(max_size=4, coalesce=lambda events: [e for e in events if e.data % 2])
    gathering.add(1, 2, 3, 4)
    assert gathering.take() == ([1, 3], [2, 4], 0)


@pytest.mark.parametrize(
    "coalesce",
    [
        lambda events: [*events[1:], events[0]],
        lambda events: [events[0], events[0]],
        lambda events: [
            Event(**{name: getattr(events[0], name) for name in ("topic", "type", "data", "id", "created_at")})
        ],
        lambda events: [1],
    ],
    ids=["another order", "twice", "a copy", "no event"],
)
def test_a_coalesce_that_makes_something_up_drops_the_batch(coalesce):
    """Anything but the same objects in the same order drops the whole batch, which is reported."""
    gathering = Gathering(max_size=3, coalesce=coalesce)
    gathering.add(1, 2, 3)
    assert gathering.take() == ([], [1, 2, 3], 0)
    assert gathering.errors[0][0] == "coalesce"
    assert "3 events" in gathering.errors[0][1]


@pytest.mark.parametrize("coalesce", [lambda events: 1 / 0, lambda events: None])
def test_a_coalesce_that_fails_leaves_nothing_out(coalesce):
    """A ``coalesce`` that raises, or returns nothing to iterate over, is reported and the batch delivered whole."""
    gathering = Gathering(max_size=3, coalesce=coalesce)
    gathering.add(1, 2, 3)
    assert gathering.take() == ([1, 2, 3], [], 0)
    assert gathering.errors[0][0] == "coalesce"


@pytest.mark.parametrize(
    ("overflow", "kept"),
    [("drop-oldest", [0, 5, 6]), ("coalesce-or-drop-oldest", [0, 5, 6]), ("drop-newest", [0, 1, 2])],
)
def test_overflow(overflow, kept):
    """More than ``max_buffer_size`` is cut to it from the end that the policy names; immediate events stay."""
    gathering = Gathering(max_size=3, max_buffer_size=3, overflow=overflow, is_immediate=lambda event: event.data == 0)
    gathering.add(0, 1, 2, 3, 4, 5, 6)
    delivered, left_out, dropped = gathering.take()
    assert delivered == kept
    assert sorted(delivered + left_out) == list(range(7))
    assert dropped == 4


def test_immediate_events_are_never_dropped():
    """When all events are immediate, more than the buffer holds are delivered."""
    gathering = Gathering(max_size=1, max_buffer_size=2, is_immediate=lambda event: True)
    gathering.add(1, 2, 3, 4)
    assert gathering.take() == ([1, 2, 3, 4], [], 0)


def test_coalesce_comes_before_overflow():
    """What ``coalesce`` leaves out makes room: nothing else is dropped."""
    gathering = Gathering(max_size=1, max_buffer_size=2, coalesce=lambda events: events[-2:])
    gathering.add(1, 2, 3, 4)
    assert gathering.take() == ([3, 4], [1, 2], 0)


@pytest.mark.parametrize(
    ("options", "error", "name"),
    [
        ({}, ValueError, "max_size, max_wait or is_immediate"),
        ({"min_interval": 1}, ValueError, "max_size, max_wait or is_immediate"),
        ({"max_size": 0}, ValueError, "max_size"),
        ({"max_size": True}, TypeError, "max_size"),
        ({"max_size": 1.5}, TypeError, "max_size"),
        ({"max_wait": -1}, ValueError, "max_wait"),
        ({"max_wait": math.inf}, ValueError, "max_wait"),
        ({"max_wait": "1"}, TypeError, "max_wait"),
        ({"max_size": 1, "min_interval": None}, TypeError, "min_interval"),
        ({"max_size": 1, "coalesce": 1}, TypeError, "coalesce"),
        ({"is_immediate": 1}, TypeError, "is_immediate"),
        ({"max_size": 1, "max_buffer_size": 0}, ValueError, "max_buffer_size"),
        ({"max_size": 1, "overflow": "drop"}, ValueError, "overflow"),
    ],
)
def test_options_are_checked(options, error, name):
    """C72: an option of a wrong type or value raises an error that names it."""
    with pytest.raises(error, match=name):
        BatchOptions(**options)


def test_options_are_values():
    """Options compare by value and cannot be changed."""
    assert BatchOptions(max_size=3) == BatchOptions(max_size=3)
    with pytest.raises(AttributeError):
        BatchOptions(max_size=3).max_size = 4


# On threads.


def test_a_batch_is_a_row_of_single_calls(local):
    """Nothing is delivered before the batch is due; then each event in its own call, in order."""
    calls: list[Event] = []
    local.subscribe(HERE, calls.append, batch=BatchOptions(max_size=3))
    publish(local, range(2))
    eventually(lambda: len(next(iter(local._topics.all()))) == 0)
    assert calls == []
    publish(local, [2])
    eventually(lambda: len(calls) == 3)
    assert [event.data for event in calls] == [0, 1, 2]


def test_max_wait_on_a_thread(local):
    """A batch that does not fill up is delivered when its oldest event has waited long enough."""
    calls: list[Event] = []
    local.subscribe(HERE, calls.append, batch=BatchOptions(max_size=100, max_wait=0.02))
    publish(local, range(2))
    eventually(lambda: len(calls) == 2)


def test_an_immediate_event_takes_the_others_along(local):
    """An immediate event delivers what was gathered before it, in order."""
    calls: list[Any] = []
    options = BatchOptions(max_wait=NEVER, is_immediate=lambda event: event.data == "now")
    local.subscribe(HERE, lambda event: calls.append(event.data), batch=options)
    publish(local, [1, 2, "now"])
    eventually(lambda: len(calls) == 3)
    assert calls == [1, 2, "now"]


@pytest.mark.parametrize("group", [None, "g"])
def test_flush_delivers_before_the_time(local, group):
    """``flush`` drains buffers, whatever the options say about when."""
    calls: list[Any] = []
    options = BatchOptions(max_wait=NEVER, min_interval=NEVER)
    local.subscribe(HERE, lambda event: calls.append(event.data), group=group, batch=options)
    for n in range(3):
        publish(local, [n, n + 10])
        local.flush(LONG)
        assert calls[-2:] == [n, n + 10]


def test_what_comes_during_a_batch_is_the_next_batch(local):
    """Events that come while the callback runs are gathered and coalesced together: a slow reader skips what is old."""
    release, entered = threading.Event(), threading.Event()
    calls: list[Any] = []

    def slow(event: Event) -> None:
        calls.append(event.data)
        entered.set()
        release.wait(LONG)

    local.subscribe(HERE, slow, batch=BatchOptions(max_wait=0, coalesce=lambda events: events[-1:]))
    publish(local, [0])
    assert entered.wait(LONG)
    publish(local, range(1, 100))
    release.set()
    local.flush(LONG)
    assert calls == [0, 99]


def test_overflow_behind_a_slow_callback_is_logged(local, caplog):
    """What a full buffer costs is said, and the newest are delivered."""
    release, entered = threading.Event(), threading.Event()
    calls: list[Any] = []

    def slow(event: Event) -> None:
        calls.append(event.data)
        entered.set()
        release.wait(LONG)

    local.subscribe(HERE, slow, batch=BatchOptions(max_size=1, max_buffer_size=10))
    publish(local, [0])
    assert entered.wait(LONG)
    publish(local, range(1, 101))
    release.set()
    local.flush(LONG)
    assert calls == [0, *range(91, 101)]
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "90 events were dropped" in record.getMessage()


def test_a_group_drops_nothing(local):
    """In a group what does not fit into one member's buffer stays with the group: every event is handled once."""
    release, entered = threading.Event(), threading.Event()
    calls: list[Any] = []

    def slow(event: Event) -> None:
        entered.set()
        release.wait(LONG)
        calls.append(event.data)

    local.subscribe(HERE, slow, group="g", batch=BatchOptions(max_size=1, max_buffer_size=10))
    publish(local, [0])
    assert entered.wait(LONG)
    publish(local, range(1, 101))
    release.set()
    local.flush(LONG)
    assert calls == list(range(101))


def test_dropped_and_coalesced_events_count_as_handled(local):
    """In a group, what ``coalesce`` leaves out is acknowledged: nobody gets it again."""
    calls: list[Any] = []
    options = BatchOptions(max_size=5, coalesce=lambda events: events[-1:])
    local.subscribe(HERE, lambda event: calls.append(event.data), group="g", batch=options)
    publish(local, range(5))
    local.flush(LONG)
    assert 4 in calls
    before = list(calls)
    local.close()
    assert calls == before


def test_a_refused_event_of_a_batch_comes_again(local):
    """A callback that raises in the middle of a batch gets the others, and the refused one again."""
    calls: list[tuple[int, int]] = []

    def refuse(event: Event) -> None:
        calls.append((event.data, event.delivery_attempt))
        if event.data == 1 and event.delivery_attempt == 1:
            raise ValueError("no")

    options = BatchOptions(max_size=3, max_wait=0.01)
    local.subscribe(HERE, refuse, group="g", batch=options, on_error=lambda error: None)
    publish(local, range(3))
    local.flush(LONG)
    assert calls == [(0, 1), (1, 1), (2, 1), (1, 2)]


def test_errors_of_functions_reach_the_hook(local):
    """What ``coalesce`` or ``is_immediate`` raises goes to ``on_error``."""
    errors: list[BaseException] = []
    calls: list[Any] = []
    options = BatchOptions(max_size=2, coalesce=lambda events: 1 / 0)
    local.subscribe(HERE, lambda event: calls.append(event.data), batch=options, on_error=errors.append)
    publish(local, range(2))
    local.flush(LONG)
    assert calls == [0, 1]
    assert {type(error) for error in errors} == {ZeroDivisionError}  # one a batch


def test_closing_inside_a_batch_stops_it(local):
    """C36: a callback that closes its subscription in the middle of a batch of 50 is not called again."""
    calls: list[Any] = []

    def callback(event: Event) -> None:
        calls.append(event.data)
        if event.data == 20:
            subscription.close()

    subscription = local.subscribe(HERE, callback, batch=BatchOptions(max_size=50))
    publish(local, range(50))
    subscription.wait(LONG)
    assert calls == list(range(21))


def test_a_closing_member_gives_its_buffer_back(local):
    """What lies in the buffer of a group's member that closes goes to the others as the same attempt, in order."""
    gathering = local.subscribe(HERE, lambda event: None, group="g", batch=BatchOptions(max_wait=NEVER))
    publish(local, range(5))
    eventually(lambda: len(gathering._line) == 0)
    with local.subscribe(HERE, group="g") as other:
        gathering.close()
        got = [other.get(LONG) for _ in range(5)]
        assert [(event.data, event.delivery_attempt) for event in got] == [(n, 1) for n in range(5)]
        for event in got:
            other.ack(event)


def test_a_stuck_member_loses_its_buffer_too():
    """When a handler of a batch runs into the limit, the events behind it go to others as their first attempt."""
    release, entered = threading.Event(), threading.Event()
    stuck_calls: list[Any] = []

    def stuck(event: Event) -> None:
        stuck_calls.append(event.data)
        entered.set()
        release.wait(LONG)

    with LocalPubSub(handling_limit=0.05) as local:
        local.subscribe(HERE, stuck, group="g", batch=BatchOptions(max_size=3))
        publish(local, range(3))
        assert entered.wait(LONG)
        with local.subscribe(HERE, group="g") as other:
            got = [other.get(LONG) for _ in range(3)]
            assert sorted((event.data, event.delivery_attempt) for event in got) == [(0, 2), (1, 1), (2, 1)]
            assert all(other.ack(event) for event in got)
        release.set()
    assert stuck_calls == [0]


def test_a_publisher_in_need_of_room_gets_it_from_a_buffer():
    """A buffer that waits for more than the queue may hold is delivered when a publisher waits for room."""
    calls: list[Any] = []
    with LocalPubSub(queue_size=5) as local:
        local.subscribe(HERE, lambda event: calls.append(event.data), batch=BatchOptions(max_size=100))
        publish(local, range(12))
        local.flush(LONG)
    assert calls == list(range(12))


def test_batches_need_a_callback(local):
    """``batch`` without a callback is refused and names ``batches()``."""
    with pytest.raises(ValueError, match="batches"):
        local.subscribe(HERE, batch=BatchOptions(max_size=2))


@pytest.mark.stress
@pytest.mark.limit(120)
@pytest.mark.parametrize("group", [None, "g"])
def test_batches_under_load(group):
    """Whatever the options, without overflow each event is delivered once, in the order of each publisher."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(15):
            options = BatchOptions(
                max_size=rng.choice([None, 1, 2, 7, 50]),
                max_wait=rng.choice([0, 0.001, 0.01]),
                min_interval=rng.choice([0, 0.001]),
                is_immediate=rng.choice([None, lambda event: event.data[1] % 7 == 0]),
                max_buffer_size=10_000,
            )
            calls: list[tuple[int, int]] = []
            with LocalPubSub(queue_size=rng.choice([3, 1000])) as local:
                for _ in range(1 if group is None else 2):
                    local.subscribe(
                        HERE, lambda e, calls=calls: calls.append(tuple(e.data)), group=group, batch=options
                    )

                def work(thread: int, local: LocalPubSub = local) -> None:
                    publish(local, [[thread, n] for n in range(100)])

                threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
                for thread in threads:
                    thread.start()
                for _ in range(3):
                    local.flush(LONG)
                for thread in threads:
                    thread.join(LONG)
                local.flush(LONG)
            assert sorted(calls) == [(thread, n) for thread in range(3) for n in range(100)]
            if group is None:
                for thread in range(3):
                    assert [n for t, n in calls if t == thread] == list(range(100))
    finally:
        sys.setswitchinterval(before)
