"""The hand-off between a worker and its consumers: order, bounds, positions, closing."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from s2pubsub.errors import ClosedError
from s2pubsub.runtime.channel import Channel, ChannelEnd
from s2pubsub.runtime.deadline import NEVER, Deadline
from tests.waiting import LONG, eventually


def channel(items: int = 1000, size: int = 1 << 30, start: int = 0) -> Channel[int]:
    """A channel of integers that are their own positions; negative ones have none."""
    return Channel(items, size, start, lambda item: item if item >= 0 else None)


def thread(action: Callable[[], object]) -> threading.Thread:
    started = threading.Thread(target=action, daemon=True)
    started.start()
    return started


def taken(source: Channel[int], count: int) -> list[int]:
    return [source.get(Deadline.after(LONG)) for _ in range(count)]


def test_items_come_in_order() -> None:
    """Across batches of any size, by ``get`` and by ``take``; ``take`` gives only what is opened."""
    source = channel()
    with pytest.raises(IndexError):
        source.take()
    source.put([0, 1, 2], 30, 3)
    with pytest.raises(IndexError):
        source.take()
    source.put([], 0, 4)
    source.put([4], 10, 5)
    assert taken(source, 1) == [0]
    assert [source.take(), source.take()] == [1, 2]
    with pytest.raises(IndexError):
        source.take()
    assert taken(source, 1) == [4]
    assert len(source) == 0


def test_get_waits_as_long_as_it_may() -> None:
    """It raises TimeoutError at its deadline, at once if that has passed, and returns as soon as something comes."""
    source = channel()
    for timeout in (0.0, 0.1):
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            source.get(Deadline.after(timeout))
        assert timeout <= time.monotonic() - started < timeout + 0.5
    timer = threading.Timer(0.05, lambda: source.put([7], 1, 8))
    timer.start()
    assert source.get(NEVER) == 7
    timer.join()


def test_position() -> None:
    """The position is that of the next item that has one; with none held, where the producer stands."""
    source = channel(start=5)
    assert source.position == 5
    source.put([5, 6], 2, 9)  # 7 and 8 held nothing for consumers
    source.put([-1], 0, None)
    assert source.position == 5
    taken(source, 1)
    assert source.position == 6
    taken(source, 1)
    assert source.position == 9
    source.put([9], 1, 10)
    assert source.position == 9
    assert taken(source, 1) == [-1]
    assert source.position == 9
    taken(source, 1)
    source.put([], 0, 12)
    assert source.position == 12


def test_room() -> None:
    """Full at either bound; then there is room again when half is gone; what is held never exceeds bound and batch."""
    source = channel(items=10, size=1000)
    assert source.room() == (10, 1000)
    source.put(list(range(8)), 80, 8)
    assert source.wait_for_room()
    assert source.room() == (2, 920)
    source.put(list(range(8, 14)), 60, 14)
    assert source.room() == (0, 860)
    ready = threading.Event()
    waiting = thread(lambda: source.wait_for_room() and ready.set())
    taken(source, 8)
    assert not ready.wait(0.1)
    taken(source, 3)  # what is taken is accounted for when the next item is asked for
    assert ready.wait(LONG)
    waiting.join(LONG)


def test_room_in_bytes() -> None:
    """One large item fills the channel by itself, and passes."""
    source = channel(items=10, size=1000)
    source.put([0], 50_000, 1)
    assert source.room() == (9, 0)
    ready = threading.Event()
    waiting = thread(lambda: source.wait_for_room() and ready.set())
    assert not ready.wait(0.05)
    taken(source, 1)
    source_ready = ready.wait(0.05)
    if not source_ready:  # the opened batch is accounted for when the next one is looked for
        with pytest.raises(TimeoutError):
            source.get(Deadline.after(0))
    assert ready.wait(LONG)
    waiting.join(LONG)


@pytest.mark.parametrize(
    ("bound", "batches", "waits_for"),
    [
        (10, [(10, 0)], 7),  # with four of ten items left, and not with five
        (100, [(1, 100)] * 10, 7),  # with 400 bytes of a thousand left, and not with 500
        (100, [(1, 101)] * 4 + [(1, 97)] + [(1, 100)] * 4 + [(1, 99)], 6),  # 499 are fewer than half as well
    ],
)
def test_half_is_gone(bound: int, batches: list[tuple[int, int]], waits_for: int) -> None:
    """A producer that waits goes on once fewer than half of the items and bytes are left, and not before."""
    source = channel(items=bound, size=1000)
    at = 0
    for count, size in batches:
        source.put(list(range(at, at + count)), size, at + count)
        at += count
    ready = threading.Event()
    waiting = thread(lambda: source.wait_for_room() and ready.set())
    eventually(lambda: source._producer_waits)
    taken(source, waits_for - 1)
    assert not ready.wait(0.05)
    taken(source, 1)
    assert ready.wait(LONG)
    waiting.join(LONG)


@pytest.mark.parametrize("bound", [1, 2, 3, 1000])
def test_a_producer_never_waits_for_nothing(bound: int) -> None:
    """Producer and consumer of a small channel never block each other for ever, whatever the sizes of batches."""
    source = channel(items=bound)

    def produce() -> None:
        at = 0
        for size in [1, 2, 5, 1, 1, 7] * 50:
            source.put(list(range(at, at + size)), size, at + size)
            at += size
            assert source.wait_for_room()
        source.finish()

    producer = thread(produce)
    found: list[int] = []
    with pytest.raises(ChannelEnd):
        while True:
            found.append(source.get(Deadline.after(LONG)))
    producer.join(LONG)
    assert found == list(range(17 * 50))


def test_many_consumers() -> None:
    """Each item goes to one of them, none is lost, and all end; by ``take`` first, as the iterator does."""
    source = channel(items=50)
    found: list[list[int]] = [[] for _ in range(6)]

    def consume(number: int) -> None:
        while True:
            try:
                item = source.take()
            except IndexError:
                try:
                    item = source.get(NEVER)
                except ChannelEnd:
                    return
            found[number].append(item)

    threads = [thread(lambda number=number: consume(number)) for number in range(6)]
    at = 0
    for size in [1, 1, 1, 30, 2, 100] * 40:
        source.put(list(range(at, at + size)), size, at + size)
        at += size
        assert source.wait_for_room()
    source.finish()
    for consumer in threads:
        consumer.join(LONG)
        assert not consumer.is_alive()
    assert sorted(item for items in found for item in items) == list(range(at))
    assert all(items == sorted(items) for items in found)


def test_no_more_consumers_are_woken_than_there_are_items() -> None:
    """An event wakes one of many consumers; one that goes while there are more items wakes another one."""
    source = channel()
    found: list[int] = []
    threads = [thread(lambda: found.append(source.get(NEVER))) for _ in range(5)]
    eventually(lambda: len(source._takers) == 5)
    with source._lock:  # those that were woken do not come in yet
        source.put([0, 1], 2, 2)
        assert len(source._takers) == 3
        assert source.get(NEVER) == 0
        assert len(source._takers) == 2
    source.put([2, 3, 4, 5], 4, 6)
    for consumer in threads:
        consumer.join(LONG)
    assert sorted(found) == [1, 2, 3, 4, 5]


def test_a_consumer_that_is_interrupted() -> None:
    """If it had been woken for an item, another consumer is woken in its place."""

    class Interrupt(Exception):
        pass

    for _ in range(20):  # which one of two is woken is left to chance
        source = channel()

        def interrupt(*_: Any, source: Channel[int] = source) -> None:
            source.put([7], 1, 8)
            raise Interrupt

        def interrupt_main(source: Channel[int] = source) -> None:
            eventually(lambda: len(source._takers) == 2)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, interrupt)
        try:
            found: list[int] = []
            other = thread(lambda source=source, found=found: found.append(source.get(NEVER)))
            sender = thread(interrupt_main)
            with pytest.raises(Interrupt):
                source.get(Deadline.after(LONG))
        finally:
            signal.signal(signal.SIGUSR1, before)
        sender.join(LONG)
        other.join(LONG)
        source.close()
        assert found == [7]


def test_an_item_that_another_consumer_takes_first() -> None:
    """Taking needs no lock: the one that opens a batch may find it empty again, and goes on with the next one."""
    source = channel()

    class Raced(list[int]):
        def __iter__(self) -> Iterator[int]:
            yield from super().__iter__()
            source.take()  # in the moment when the batch has been opened

    source.put(Raced([0]), 1, 1)
    source.put([1], 1, 2)
    assert source.get(NEVER) == 1


def test_finish() -> None:
    """What is held comes first, then the end with its error, a fresh one each time; only the first call counts."""
    source = channel()
    source.put([1, 2], 2, 3)
    error = ValueError("reason")
    error.__cause__ = KeyError("cause")
    source.finish(error)
    source.finish(RuntimeError("too late"))
    assert taken(source, 2) == [1, 2]
    ends = []
    for _ in range(3):
        with pytest.raises(ChannelEnd) as caught:
            source.get(NEVER)
        ends.append(caught.value.error)
    assert [str(end) for end in ends] == ["reason"] * 3
    assert all(isinstance(end, ValueError) and isinstance(end.__cause__, KeyError) for end in ends)
    assert len({id(end) for end in ends}) == 3


def test_close() -> None:
    """It discards what is held, wakes everybody on both sides, keeps the position, and can be called again."""
    source = channel(items=2)
    source.put([5, 6, 7], 3, 8)
    taken(source, 1)
    ended: list[Any] = []
    producer = thread(lambda: ended.append(source.wait_for_room()))
    empty = channel()

    def consume() -> None:
        try:
            empty.get(NEVER)
        except ChannelEnd as end:
            ended.append(end.error)

    consumers = [thread(consume) for _ in range(3)]
    source.close()
    empty.close()
    for waiting in (producer, *consumers):
        waiting.join(LONG)
        assert not waiting.is_alive()
    assert sorted(ended, key=str) == [False, None, None, None]
    assert len(source) == 0
    assert source.position == 6
    assert not source.put([8], 1, 9)
    assert not source.wait_for_room()
    with pytest.raises(IndexError):
        source.take()
    source.close()
    source.finish(ValueError("too late"))
    with pytest.raises(ChannelEnd) as caught:
        source.get(NEVER)
    assert caught.value.error is None


def test_close_with_an_error() -> None:
    """Who waits for an item, now or later, gets it in place of the ordinary end; the first call counts."""
    source = channel()
    source.put([1], 1, 2)
    source.close(ValueError("reason"))
    source.close(RuntimeError("too late"))
    for _ in range(2):
        with pytest.raises(ChannelEnd, match="reason") as caught:
            source.get(NEVER)
        assert isinstance(caught.value.error, ValueError)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_nothing_of_it() -> None:
    """C41: There it is closed and empty, and says why; the parent's goes on."""
    source = channel()
    source.put([1, 2], 2, 3)
    child = os.fork()
    if child == 0:
        found = (len(source), source.put([3], 1, 4))
        try:
            source.get(Deadline.after(0))
        except ChannelEnd as end:
            os._exit(0 if found == (0, False) and isinstance(end.error, ClosedError) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert taken(source, 2) == [1, 2]


def test_close_while_everybody_is_busy() -> None:
    """Closing in the middle of traffic ends producer and consumers within a moment, round after round."""
    for _ in range(100):
        source = channel(items=5)
        produced = threading.Event()

        def produce(source: Channel[int] = source, produced: threading.Event = produced) -> None:
            at = 0
            while source.put(list(range(at, at + 3)), 3, at + 3) and source.wait_for_room():
                at += 3
                produced.set()

        def consume(source: Channel[int] = source) -> None:
            try:
                while True:
                    source.get(NEVER)
            except ChannelEnd:
                pass

        threads = [thread(produce), thread(consume), thread(consume)]
        assert produced.wait(LONG)
        source.close()
        for busy in threads:
            busy.join(LONG)
            assert not busy.is_alive()
        assert len(source) == 0


def test_consumers_that_give_up_lose_nothing() -> None:
    """An item that comes at the moment of somebody's deadline goes to him or to another one."""
    source = channel()
    found: list[int] = []
    stop = threading.Event()

    def consume() -> None:
        while not stop.is_set():
            try:
                found.append(source.get(Deadline.after(0.0005)))
            except TimeoutError:
                pass

    threads = [thread(consume) for _ in range(4)]
    for number in range(400):
        source.put([number], 1, number + 1)
    eventually(lambda: len(found) == 400)
    stop.set()
    for consumer in threads:
        consumer.join(LONG)
    assert sorted(found) == list(range(400))
