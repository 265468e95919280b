"""The outbox between producers and the I/O loop, with threads and no network."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from s2pubsub import ClosedError
from s2pubsub.runtime.deadline import Deadline
from s2pubsub.runtime.outbox import Outbox
from tests.waiting import LONG, eventually


def closed() -> ClosedError:
    error = ClosedError("closed")
    error.outcome = "not_stored"
    return error


def put_in_thread(outbox: Outbox[Any], item: Any, size: int = 1) -> tuple[threading.Thread, list[Any]]:
    outcome: list[Any] = []

    def work() -> None:
        try:
            outbox.put(item, size, LONG)
            outcome.append("accepted")
        except Exception as error:
            outcome.append(error)

    waiting = len(outbox._waiters)
    thread = threading.Thread(target=work)
    thread.start()
    eventually(lambda: outcome or len(outbox._waiters) > waiting)
    return thread, outcome


def test_the_consumer_is_woken_only_when_it_waits() -> None:
    """A wake-up comes for the first item after an empty take, and for no other one."""
    wakes: list[None] = []
    outbox: Outbox[int] = Outbox(100, 100)
    outbox.wake = lambda: wakes.append(None)
    for item in range(3):
        outbox.put(item, 1, 0)
    assert len(wakes) == 1
    assert outbox.take(2, 100) == [0, 1]
    outbox.put(3, 1, 0)
    assert len(wakes) == 1
    assert outbox.take(10, 100) == [2, 3]
    assert outbox.take(10, 100) == []
    outbox.put(4, 1, 0)
    assert len(wakes) == 2


def test_the_consumer_is_woken_when_there_are_enough() -> None:
    """A consumer that takes no fewer than three items is given none and woken at the third; the end wakes it, too."""
    wakes: list[None] = []
    outbox: Outbox[int] = Outbox(100, 100)
    outbox.wake = lambda: wakes.append(None)
    outbox.put(0, 1, 0)
    del wakes[:]
    assert outbox.take(10, 100, 3) == []
    outbox.put(1, 1, 0)
    assert wakes == []
    outbox.put(2, 1, 0)
    assert len(wakes) == 1
    assert outbox.take(10, 100, 3) == [0, 1, 2]
    assert outbox.take(10, 100, 3) == []
    outbox.put(3, 1, 0)
    outbox.finish(closed())
    assert len(wakes) == 2
    assert outbox.take(10, 100) == [3]


def test_a_consumer_may_be_content_with_one() -> None:
    """One that waited for fifty items is woken at the next one once it is told to expect one; it can ask what fits."""
    wakes: list[None] = []
    outbox: Outbox[int] = Outbox(100, 1000)
    outbox.wake = lambda: wakes.append(None)
    assert outbox.fitting(100) == 0
    outbox.put(0, 30, 0)
    outbox.put(1, 10, 0)
    assert outbox.fitting(100) == 5
    del wakes[:]
    assert outbox.take(100, 1000, 50) == []
    outbox.put(2, 20, 0)
    assert wakes == []
    outbox.expect_one()
    outbox.put(3, 20, 0)
    outbox.put(4, 20, 0)
    assert len(wakes) == 1


@pytest.mark.parametrize("timeout", [0, LONG, None])
def test_who_puts_much_gives_way(timeout: float | None) -> None:
    """Many items in a row are accepted although nobody takes them: giving way to the consumer has an end."""
    outbox: Outbox[int] = Outbox(10_000, 10_000)
    for item in range(2000):
        outbox.put(item, 1, timeout)
    assert outbox.take(10_000, 10_000) == list(range(2000))


def test_take_keeps_to_its_limits_but_gives_one() -> None:
    """At most so many items and bytes; an item above the byte limit goes alone."""
    outbox: Outbox[str] = Outbox(100, 1000)
    for item, size in (("a", 5), ("b", 5), ("c", 50), ("d", 1)):
        outbox.put(item, size, 0)
    assert outbox.take(10, 10) == ["a", "b"]
    assert outbox.take(10, 10) == ["c"]
    assert outbox.take(10, 10) == ["d"]


def test_who_waits_enters_in_turn_and_nobody_overtakes() -> None:
    """With a large item at the head of the queue smaller ones wait behind it, also those that would fit."""
    outbox: Outbox[str] = Outbox(100, 10)
    outbox.put("first", 9, 0)
    threads = [put_in_thread(outbox, "large", 8), put_in_thread(outbox, "small", 1)]
    with pytest.raises(TimeoutError):
        outbox.put("tiny", 1, 0)
    assert outbox.take(10, 100) == ["first"]
    outbox.complete(1, 9)
    for thread, outcome in threads:
        thread.join(LONG)
        assert outcome == ["accepted"]
    assert outbox.take(10, 100) == ["large", "small"]


def test_who_gives_up_lets_those_behind_it_in() -> None:
    """When the head of the queue gives up, a smaller one behind it may fit."""
    outbox: Outbox[str] = Outbox(100, 10)
    outbox.put("first", 9, 0)
    gate = threading.Event()

    def give_up() -> None:
        with pytest.raises(TimeoutError):
            outbox.put("large", 8, 0.1)
        gate.set()

    thread = threading.Thread(target=give_up)
    thread.start()
    eventually(lambda: outbox._waiters or gate.is_set())
    behind, outcome = put_in_thread(outbox, "small", 1)
    thread.join(LONG)
    behind.join(LONG)
    assert outcome == ["accepted"]


@pytest.mark.parametrize("end", [Outbox.finish, Outbox.refuse])
def test_an_end_refuses_those_who_wait(end: Callable[[Outbox[str], ClosedError], object]) -> None:
    """Finish and refuse raise in waiting and later puts; refuse hands back what was not taken."""
    outbox: Outbox[str] = Outbox(1, 100)
    outbox.put("held", 1, 0)
    thread, outcome = put_in_thread(outbox, "waiting")
    left = end(outbox, closed())
    thread.join(LONG)
    assert isinstance(outcome[0], ClosedError)
    with pytest.raises(ClosedError):
        outbox.put("late", 1, 0)
    assert outbox.finished
    if left is None:
        assert not outbox.ended
        outbox.put("urgent", 1, 0, urgent=True)
        assert outbox.take(10, 100) == ["held", "urgent"]
        assert outbox.ended
    else:
        assert left == ["held"]
        with pytest.raises(ClosedError):
            outbox.put("urgent", 1, 0, urgent=True)


def test_an_item_can_be_withdrawn_until_it_is_taken() -> None:
    """Withdrawing makes room; what was taken stays."""
    outbox: Outbox[str] = Outbox(1, 100)
    outbox.put("a", 1, 0)
    assert outbox.withdraw("a")
    outbox.put("b", 1, 0)
    assert outbox.take(10, 100) == ["b"]
    assert not outbox.withdraw("b")
    assert outbox.unfinished == 1


def test_watchers_wait_for_a_number_of_completions() -> None:
    """wait_completed returns when so many items are complete, and False when the time is up."""
    outbox: Outbox[int] = Outbox(100, 100)
    for item in range(3):
        outbox.put(item, 1, 0)
    assert not outbox.wait_completed(outbox.accepted, Deadline.after(0))
    thread = threading.Thread(target=lambda: (outbox.take(3, 100), outbox.complete(2, 2), outbox.complete(1, 1)))
    thread.start()
    assert outbox.wait_completed(3, Deadline.after(LONG))
    thread.join(LONG)
    assert outbox.unfinished == 0
