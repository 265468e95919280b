"""When a batch of local events is due, what is left out, and what a full buffer does; on a clock that tests move."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from s2pubsub import BatchOptions, Event
from s2pubsub.local.batching import Buffer
from s2pubsub.local.delivery import Delivery
from tests.local_parts import HERE, NEVER


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
