"""The hand-off from one worker to its consumers: batches in, items out, bounded, closable from both sides.

One ``put`` per batch costs one lock; taking an item usually costs none, because an opened batch lies in a deque
whose ``popleft`` is atomic. ``queue.Queue`` with one ``put`` per event reached half of the speed.

The producer never blocks in ``put``: it asks ``wait_for_room`` before it fetches more, so that at most the bound
plus one batch is held here. Once full, there is room again when half of the items are gone.

A finalizer or a signal handler may close the channel in the middle of any call of its own thread. So the lock is
reentrant, and whoever waits enlists first and looks afterwards: a close between the two is not missed.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from s2pubsub.runtime.deadline import Deadline
from s2pubsub.runtime.fork import inherited, reset_in_child
from s2pubsub.runtime.wake import Wake

T = TypeVar("T")
E = TypeVar("E", bound=Exception | None)


class ChannelEnd(Exception):
    """No item will come any more. ``error`` says why, None is the ordinary end."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__(error)
        self.error = error


class Channel(Generic[T]):
    """A bounded queue of batches of items with a position each. Any number of consumers, one producer.

    Args:
        max_items: ``wait_for_room`` waits once this many items are held.
        max_bytes: the same for the sum of the batches' sizes.
        position: where the consumers are before the first item.
        position_of: gives an item's position, for ``position``; None for an item that has none.

    Attributes:
        take: takes an item of the opened batch without waiting or locking; IndexError when it is used up.
    """

    def __init__(self, max_items: int, max_bytes: int, position: int, position_of: Callable[[T], int | None]) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._position = position
        self._position_of = position_of
        self._open: deque[T] = deque()  # the batch being consumed; popleft without the lock
        self.take: Callable[[], T] = self._open.popleft
        self._open_bytes_each = 0.0
        self._batches: deque[tuple[Sequence[T], int]] = deque()
        self._items = 0  # in _batches
        self._bytes = 0  # in _batches
        self._end: ChannelEnd | None = None
        self._closed = False
        self._make_locks()
        reset_in_child(self)

    def _make_locks(self) -> None:
        self._lock = threading.RLock()
        self._takers: set[Wake] = set()  # consumers that found nothing
        self._emptied = Wake()  # for the producer
        self._producer_waits = False

    # -- the producer's side -------------------------------------------------------------------------------------

    def put(self, batch: Sequence[T], size: int, position: int | None) -> bool:
        """Add ``batch`` of ``size`` bytes, after which the producer stands at ``position``. False: closed, dropped.

        Any thread may add items without a position; that passes None for ``position``.
        """
        with self._lock:
            if self._closed:
                return False
            if position is not None:
                self._position = position
            if batch:
                self._batches.append((batch, size))
                self._items += len(batch)
                self._bytes += size
                self._wake_takers(len(batch))
            return True

    def wait_for_room(self) -> bool:
        """Return at once unless full; then wait until half is gone. False: closed."""
        with self._lock:
            if self._room(self._max_items, self._max_bytes):
                return not self._closed
        self._producer_waits = True
        try:
            while True:
                with self._lock:
                    if self._closed or self._room_again():
                        return not self._closed
                self._emptied.wait()
        finally:
            self._producer_waits = False

    def room(self) -> tuple[int, int]:
        """How many items and bytes fit before the bounds; never negative."""
        with self._lock:
            return max(0, self._max_items - self._held_items()), max(0, self._max_bytes - self._held_bytes())

    def finish(self, error: Exception | None = None) -> None:
        """Say that no batch follows: consumers get what is held, then ``error`` or the end. The first call counts."""
        with self._lock:
            if self._end is None:
                self._end = ChannelEnd(error)
            self._wake_takers()

    # -- the consumers' side -------------------------------------------------------------------------------------

    def get(self, deadline: Deadline) -> T:
        """Take the next item, waiting until ``deadline``.

        Raises:
            TimeoutError: nothing came in time.
            ChannelEnd: nothing will come.
        """
        wake = Wake()
        last = False
        try:
            while True:
                with self._lock:
                    self._takers.add(wake)
                    self._open_next_batch()
                    try:
                        return self._open.popleft()
                    except IndexError:
                        pass  # empty, or another consumer took the last item without the lock
                    if self._batches:
                        continue
                    if self._end is not None:
                        raise ChannelEnd(fresh(self._end.error))
                if last:
                    raise TimeoutError
                last = not wake.wait(deadline.remaining())
        finally:
            self._leave(wake)

    def close(self, error: Exception | None = None) -> None:
        """Discard what is held and wake both sides; consumers get ``error`` or the ordinary end."""
        with self._lock:
            if not self._closed:
                self._position = self._next_position()
                self._closed = True
                self._end = ChannelEnd(error)
            self._drop()
            self._wake_takers()
            self._emptied.set()

    @property
    def interrupted(self) -> bool:
        """Whether the caller is a signal handler or finalizer that has interrupted one of our calls on this thread.

        It must not wait for the producer, who may need the lock that the interrupted call holds.
        """
        return self._lock._is_owned()  # type: ignore[attr-defined,no-any-return]  # as threading.Condition does

    @property
    def position(self) -> int:
        """Position of the next item, or where the producer stands when none is held."""
        with self._lock:
            return self._next_position()

    def __len__(self) -> int:
        with self._lock:
            return self._held_items()

    # -- under the lock ------------------------------------------------------------------------------------------

    def _open_next_batch(self) -> None:
        if self._batches and not self._open:
            batch, size = self._batches.popleft()
            self._items -= len(batch)
            self._bytes -= size
            self._open_bytes_each = size / len(batch)
            self._open.extend(batch)
            if self._closed:  # by a signal handler, just now
                self._drop()
        if self._producer_waits and self._room_again():
            self._emptied.set()

    def _wake_takers(self, items: int | None = None) -> None:
        """Wake as many consumers as there are ``items``, or all."""
        while items != 0:
            try:
                self._takers.pop().set()
            except KeyError:
                return
            items = None if items is None else items - 1

    def _leave(self, wake: Wake) -> None:
        """A consumer goes. It may have been woken for an item that it has not taken, so another one looks for it."""
        with self._lock:
            self._takers.discard(wake)
            if self._open or self._batches:
                self._wake_takers(1)

    def _held_items(self) -> int:
        return self._items + len(self._open)

    def _held_bytes(self) -> int:
        return self._bytes + int(len(self._open) * self._open_bytes_each)

    def _room(self, items: int, size: int) -> bool:
        return self._held_items() < items and self._held_bytes() < size

    def _room_again(self) -> bool:
        return self._room((self._max_items + 1) // 2, (self._max_bytes + 1) // 2)

    def _next_position(self) -> int:
        for items in (tuple(self._open), *(batch for batch, _ in self._batches)):
            for item in items:
                position = self._position_of(item)
                if position is not None:
                    return position
        return self._position

    def _drop(self) -> None:
        self._open.clear()
        self._batches.clear()
        self._items = self._bytes = 0

    def _reset_in_child(self) -> None:
        self._make_locks()
        self._drop()
        self._closed = True
        self._end = ChannelEnd(inherited())


def fresh(error: E) -> E:
    """A copy of ``error`` for one more reader: raising one object from several threads mixes their tracebacks."""
    twin = copy.copy(error)
    if error is not None and twin is not None:
        twin.__cause__ = error.__cause__
    return twin
