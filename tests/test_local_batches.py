"""Batches of local events on threads: delivery, flush, groups, closing, errors."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from s2pubsub import BatchOptions, Event, LocalPubSub
from tests.local_parts import HERE, NEVER, publish_numbers
from tests.waiting import LONG, eventually


def test_a_batch_is_a_row_of_single_calls(local):
    """Nothing is delivered before the batch is due; then each event in its own call, in order."""
    calls: list[Event] = []
    local.subscribe(HERE, calls.append, batch=BatchOptions(max_size=3))
    publish_numbers(local, range(2))
    eventually(lambda: len(next(iter(local._topics.all()))) == 0)
    assert calls == []
    publish_numbers(local, [2])
    eventually(lambda: len(calls) == 3)
    assert [event.data for event in calls] == [0, 1, 2]


def test_max_wait_on_a_thread(local):
    """A batch that does not fill up is delivered when its oldest event has waited long enough."""
    calls: list[Event] = []
    local.subscribe(HERE, calls.append, batch=BatchOptions(max_size=100, max_wait=0.02))
    publish_numbers(local, range(2))
    eventually(lambda: len(calls) == 2)


def test_an_immediate_event_takes_the_others_along(local):
    """An immediate event delivers what was gathered before it, in order."""
    calls: list[Any] = []
    options = BatchOptions(max_wait=NEVER, is_immediate=lambda event: event.data == "now")
    local.subscribe(HERE, lambda event: calls.append(event.data), batch=options)
    publish_numbers(local, [1, 2, "now"])
    eventually(lambda: len(calls) == 3)
    assert calls == [1, 2, "now"]


@pytest.mark.parametrize("group", [None, "g"])
def test_flush_delivers_before_the_time(local, group):
    """``flush`` drains buffers, whatever the options say about when."""
    calls: list[Any] = []
    options = BatchOptions(max_wait=NEVER, min_interval=NEVER)
    local.subscribe(HERE, lambda event: calls.append(event.data), group=group, batch=options)
    for n in range(3):
        publish_numbers(local, [n, n + 10])
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
    publish_numbers(local, [0])
    assert entered.wait(LONG)
    publish_numbers(local, range(1, 100))
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
    publish_numbers(local, [0])
    assert entered.wait(LONG)
    publish_numbers(local, range(1, 101))
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
    publish_numbers(local, [0])
    assert entered.wait(LONG)
    publish_numbers(local, range(1, 101))
    release.set()
    local.flush(LONG)
    assert calls == list(range(101))


def test_dropped_and_coalesced_events_count_as_handled(local):
    """In a group, what ``coalesce`` leaves out is acknowledged: nobody gets it again."""
    calls: list[Any] = []
    options = BatchOptions(max_size=5, coalesce=lambda events: events[-1:])
    local.subscribe(HERE, lambda event: calls.append(event.data), group="g", batch=options)
    publish_numbers(local, range(5))
    local.flush(LONG)
    assert 4 in calls
    before = list(calls)
    local.close()
    assert calls == before


def test_a_refused_event_of_a_batch_comes_again(local):
    """C65: A callback that raises in the middle of a batch gets the others, and the refused one again."""
    calls: list[tuple[int, int]] = []

    def refuse(event: Event) -> None:
        calls.append((event.data, event.delivery_attempt))
        if event.data == 1 and event.delivery_attempt == 1:
            raise ValueError("no")

    options = BatchOptions(max_size=3, max_wait=0.01)
    local.subscribe(HERE, refuse, group="g", batch=options, on_error=lambda error: None)
    publish_numbers(local, range(3))
    local.flush(LONG)
    assert calls == [(0, 1), (1, 1), (2, 1), (1, 2)]


def test_errors_of_functions_reach_the_hook(local):
    """What ``coalesce`` or ``is_immediate`` raises goes to ``on_error``."""
    errors: list[BaseException] = []
    calls: list[Any] = []
    options = BatchOptions(max_size=2, coalesce=lambda events: 1 / 0)
    local.subscribe(HERE, lambda event: calls.append(event.data), batch=options, on_error=errors.append)
    publish_numbers(local, range(2))
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
    publish_numbers(local, range(50))
    subscription.wait(LONG)
    assert calls == list(range(21))


def test_a_closing_member_gives_its_buffer_back(local):
    """What lies in the buffer of a group's member that closes goes to the others as the same attempt, in order."""
    gathering = local.subscribe(HERE, lambda event: None, group="g", batch=BatchOptions(max_wait=NEVER))
    publish_numbers(local, range(5))
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
        publish_numbers(local, range(3))
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
        publish_numbers(local, range(12))
        local.flush(LONG)
    assert calls == list(range(12))


def test_batches_need_a_callback(local):
    """``batch`` without a callback is refused and names ``batches()``."""
    with pytest.raises(ValueError, match="batches"):
        local.subscribe(HERE, batch=BatchOptions(max_size=2))
