"""The hand-off from many threads to the one consumer on the I/O loop: in order, bounded, woken only when idle.

An item counts against the bounds from ``put`` until ``complete``. A thread that finds no room queues up, and its item
enters in its turn, put there by whoever makes room: so nobody is overtaken, and no crowd wakes up for one place.
Waking the loop costs a system call, hence only when the consumer has said, by an empty ``take``, that it waits, and
for how many items. A thread that does nothing but publish gives way to it now and then: otherwise it would keep the
interpreter for 5 ms each time the loop has let go of it for a system call.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from s2pubsub.errors import S2PubSubError
from s2pubsub.runtime.deadline import Deadline
from s2pubsub.runtime.fork import inherited, reset_in_child
from s2pubsub.runtime.wake import Wake

T = TypeVar("T")

_GIVE_WAY = 256
"""At so many items, and again so many, which the consumer has not taken, a producer waits for it."""

_AT_MOST = 0.005
"""Seconds of that, since the consumer may be waiting, too: for an answer, or for the server to come back."""


class Outbox(Generic[T]):
    """A bounded queue of items with a size each. Any number of producers, one consumer. Thread-safe.

    Args:
        max_items: so many items may be in it or unfinished.
        max_bytes: the same for the sum of their sizes; one item that is larger goes alone.
        exempt: whether the calling thread must not wait, because it is the one that makes room.

    Attributes:
        wake: tells the consumer, which waits, that there is something to take or that the outbox has ended. Set by the
            consumer before it begins; must not raise.
    """

    def __init__(self, max_items: int, max_bytes: int, exempt: Callable[[], bool] = lambda: False) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._exempt = exempt
        self.wake: Callable[[], object] = _nothing
        self._queue: deque[tuple[T, int]] = deque()
        self._waiters: deque[_Waiter[T]] = deque()
        self._items = 0  # not complete
        self._bytes = 0  # not complete
        self._accepted = 0
        self._completed = 0
        self._idle = True  # the consumer waits
        self._wanted = 1  # for so many items
        self._refusal: S2PubSubError | None = None
        self._refused = False  # by the consumer, which is gone
        self.is_inherited = False  # by a forked child: what it held is the parent's to do
        self._make_locks()
        reset_in_child(self)

    def _make_locks(self) -> None:
        # Reentrant, since a finalizer may close the outbox in the middle of one of its own calls.
        self._lock = threading.RLock()
        self._taken = Wake()
        self._watchers: list[tuple[int, Wake]] = []  # who waits until so many items are complete

    # -- the producers' side -------------------------------------------------------------------------------------

    def put(self, item: T, size: int, timeout: float | None, *, urgent: bool = False) -> None:
        """Add ``item``; wait up to ``timeout`` seconds while there is no room.

        One that is ``urgent`` does not wait, and is accepted although the producers have finished.

        Raises:
            TimeoutError: no room in time; the item was not added.
            S2PubSubError: closed or refused, with outcome ``'not_stored'``; the item was not added.
        """
        waiter: _Waiter[T] | None = None
        gives_way = False
        with self._lock:
            if self._refusal is not None and (self._refused or not urgent):
                raise fresh(self._refusal)
            if (not self._waiters and self._fits(size)) or urgent or self._exempt():
                self._accept(item, size)
                if not len(self._queue) % _GIVE_WAY:
                    gives_way = not urgent and not self._exempt()
                    self._taken.wait(0)  # use up what an earlier take has left
            else:
                waiter = _Waiter(item, size)
                self._waiters.append(waiter)
            wake = self._must_wake()
        if wake:
            self.wake()
        if waiter is not None:
            self._wait(waiter, Deadline.after(timeout))
        elif gives_way:
            self._taken.wait(_AT_MOST if timeout is None else min(timeout, _AT_MOST))

    def _wait(self, waiter: _Waiter[T], deadline: Deadline) -> None:
        try:
            waiter.wait(deadline.remaining())
        finally:  # also when Ctrl-C or a signal handler's exception ends the wait
            with self._lock:
                if not waiter.settled:
                    self._waiters.remove(waiter)
                    waiter.settled = True
                    waiter.error = TimeoutError()
                    self._admit()  # those behind it may be smaller
                wake = self._must_wake()
            if wake:
                self.wake()
        if waiter.error is not None:
            raise waiter.error

    def withdraw(self, item: T) -> bool:
        """Take ``item`` back, if the consumer has not taken it; say whether."""
        with self._lock:
            for entry in self._queue:
                if entry[0] is item:
                    self._queue.remove(entry)
                    self.complete(1, entry[1])
                    return True
            return False

    def finish(self, error: S2PubSubError) -> None:
        """Accept nothing more: from now on ``put`` raises ``error``, also where it waits. What is held stays."""
        with self._lock:
            self._refuse(error)
            wake, self._idle = self._idle, False
        if wake:
            self.wake()

    def wait_completed(self, target: int, deadline: Deadline) -> bool:
        """Wait until ``target`` items, counted from the first, are complete; say whether they are."""
        watcher = (target, Wake())
        try:
            with self._lock:
                self._watchers.append(watcher)
                if self._completed >= target:
                    return True
            return watcher[1].wait(deadline.remaining()) or self._completed >= target
        finally:
            with self._lock:
                if watcher in self._watchers:
                    self._watchers.remove(watcher)

    @property
    def accepted(self) -> int:
        """How many items were ever added."""
        return self._accepted

    @property
    def unfinished(self) -> int:
        """How many items are not complete."""
        return self._items

    # -- the consumer's side -------------------------------------------------------------------------------------

    def take(self, max_items: int, max_bytes: int, at_least: int = 1) -> list[T]:
        """The next items within these limits. Empty: there are fewer than ``at_least``, and ``wake`` tells of them."""
        with self._lock:
            queue = self._queue
            if len(queue) < at_least:
                self._idle = True
                self._wanted = at_least
                return []
            taken: list[T] = []
            room = max_bytes
            while queue and len(taken) < max_items:
                room -= queue[0][1]
                if room < 0 and taken:
                    break
                taken.append(queue.popleft()[0])
            self._taken.set()
            return taken

    def expect_one(self) -> None:
        """Whatever the last ``take`` asked for, ``wake`` tells of the next item."""
        with self._lock:
            self._wanted = 1

    def fitting(self, size: int) -> int:
        """How many items of the present average size fit into ``size``."""
        with self._lock:
            return size * self._items // max(1, self._bytes)

    @property
    def queued(self) -> int:
        """How many items can be taken."""
        return len(self._queue)

    @property
    def finished(self) -> bool:
        """Whether it accepts nothing more."""
        return self._refusal is not None

    @property
    def ended(self) -> bool:
        """Whether nothing is queued and nothing will be."""
        return self._refusal is not None and not self._queue

    def complete(self, items: int, size: int) -> None:
        """``items`` of ``size`` bytes altogether, taken before, are done with; there is room for others."""
        with self._lock:
            self._items -= items
            self._bytes -= size
            self._completed += items
            for target, wake_up in self._watchers:
                if self._completed >= target:
                    wake_up.set()
            self._admit()
            wake = self._must_wake()
        if wake:
            self.wake()

    def refuse(self, error: S2PubSubError) -> list[T]:
        """``finish(error)`` by the consumer: also give it what it has not taken."""
        with self._lock:
            self._refuse(error)
            self._refused = True
            left = [item for item, _ in self._queue]
            self._queue.clear()
            return left

    # -- under the lock ------------------------------------------------------------------------------------------

    def _fits(self, size: int) -> bool:
        return self._items < self._max_items and (self._bytes + size <= self._max_bytes or not self._items)

    def _accept(self, item: T, size: int) -> None:
        self._queue.append((item, size))
        self._items += 1
        self._bytes += size
        self._accepted += 1

    def _admit(self) -> None:
        while self._waiters and self._fits(self._waiters[0].size):
            waiter = self._waiters.popleft()
            self._accept(waiter.item, waiter.size)
            waiter.settle(None)

    def _must_wake(self) -> bool:
        if self._idle and len(self._queue) >= self._wanted:
            self._idle = False
            return True
        return False

    def _refuse(self, error: S2PubSubError) -> None:
        if self._refusal is None:
            self._refusal = error
        while self._waiters:
            self._waiters.popleft().settle(fresh(self._refusal))

    def _reset_in_child(self) -> None:
        self._make_locks()
        self._queue.clear()
        self._waiters.clear()
        self._completed = self._accepted
        self._items = self._bytes = 0
        self.wake = _nothing
        self._refused = True
        self._refusal = inherited()
        self._refusal.outcome = "not_stored"
        self.is_inherited = True


class _Waiter(Generic[T]):
    """A producer that waits for room: its item is accepted for it, or it is told why not."""

    __slots__ = ("_turn", "error", "item", "settled", "size")

    def __init__(self, item: T, size: int) -> None:
        self.item = item
        self.size = size
        self.settled = False
        self.error: Exception | None = None
        self._turn = Wake()

    def wait(self, timeout: float | None) -> None:
        self._turn.wait(timeout)

    def settle(self, error: Exception | None) -> None:
        self.error = error
        self.settled = True
        self._turn.set()


def fresh(error: S2PubSubError) -> S2PubSubError:
    """A copy of ``error`` for one more caller: raising one object from several threads mixes their tracebacks."""
    twin = copy.copy(error)
    twin.__cause__ = error.__cause__
    return twin


def _nothing() -> None:
    pass
