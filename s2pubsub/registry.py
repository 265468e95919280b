"""What is open: a client's subscriptions and publishers, and the process's clients that are closed at its exit."""

from __future__ import annotations

import atexit
import multiprocessing.util
import threading
import warnings
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Protocol

from s2pubsub.codec import decode
from s2pubsub.errors import S2PubSubError
from s2pubsub.publisher import Pipe
from s2pubsub.runtime.deadline import Deadline
from s2pubsub.subscription import Subscription

EXIT_BUDGET = 2.0
"""Seconds that closing everything may take when the interpreter ends."""

_FOR_THE_REST = 0.8
"""Seconds of a close, half of it at most, that remain for the threads when publishers have used up theirs: giving up
an append session takes up to half a second."""


class Registry:
    """What one client has open. Thread-safe.

    Subscriptions with callbacks are kept alive, the others only known. Publishers are known by their pipes, which stay
    until what they hold is stored, also when the handle was dropped.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._known: weakref.WeakSet[Subscription] = weakref.WeakSet()
        self._callbacks: dict[Hashable, Subscription] = {}
        self._making = threading.RLock()
        self._pipes: set[Pipe] = set()

    def add(self, subscription: Subscription) -> None:
        """Know ``subscription``."""
        with self._lock:
            self._known.add(subscription)

    def callback_subscription(self, key: Hashable, make: Callable[[], Subscription]) -> Subscription:
        """The open subscription for ``key``, made (without I/O) if there is none: one, whatever threads ask at once."""
        with self._making:
            self._forget_ended()
            found = self.find_callback(key)
            if found is None:
                found = make()
                with self._lock:
                    self._callbacks[key] = found
                if found.ended:  # before we kept it
                    self._forget_ended()
            return found

    def find_callback(self, key: Hashable) -> Subscription | None:
        """The open subscription for ``key``."""
        with self._lock:
            found = self._callbacks.get(key)
            return None if found is None or found.closed else found

    def forgetter(self) -> Callable[[], None]:
        """What a subscription's thread calls at its end: forget callbacks whose subscription has ended."""
        ref = weakref.ref(self)

        def forget() -> None:
            registry = ref()
            if registry is not None:
                registry._forget_ended()

        return forget

    def _forget_ended(self) -> None:
        # On a subscription's thread, which somebody may wait for who has interrupted, in a signal handler, a call that
        # holds the lock. Then it is done by the next one.
        if self._lock.acquire(timeout=1.0):
            try:
                for key in [key for key, subscription in self._callbacks.items() if subscription.ended]:
                    del self._callbacks[key]
            finally:
                self._lock.release()

    def subscriptions(self) -> list[Subscription]:
        """All that are open."""
        with self._lock:
            return [subscription for subscription in self._known if not subscription.closed]

    def offer_local(self, topic: str, body: bytes) -> None:
        """Give a local-only event to every subscription of its topic: to each its own copy, as from the store."""
        for subscription in self.subscriptions():
            if subscription.topic == topic:
                subscription.offer_local(decode(topic, None, body))

    def close(self, deadline: Deadline, topic: str | None = None) -> None:
        """Close every subscription (of ``topic``). All are told to stop before the first one is waited for.

        Those that were told before and still have a callback running are waited for as well.
        """
        with self._lock:
            running = [s for s in self._known if not s.ended and topic in (None, s.topic)]
        for subscription in running:
            subscription.stop()
        for subscription in running:
            subscription.close(deadline.remaining())

    def add_pipe(self, pipe: Pipe) -> None:
        """Know a publisher until it has ended."""
        with self._lock:
            self._pipes.add(pipe)
        pipe.on_end.append(self._forget_pipe)

    def _forget_pipe(self, pipe: Pipe) -> None:
        with self._lock:
            self._pipes.discard(pipe)

    def pipes(self) -> list[Pipe]:
        """Publishers that are open or have not ended yet."""
        with self._lock:
            return list(self._pipes)

    def flush(self, deadline: Deadline) -> None:
        """Wait until everything that publishers have taken is stored; raise what was not."""
        for pipe in self.pipes():
            pipe.flush(deadline)

    def close_publishers(self, deadline: Deadline) -> None:
        """Close every publisher. All are told to end before the first one is waited for; then the first error is
        raised, and the others' messages are added to it.
        """
        pipes = self.pipes()
        for pipe in pipes:
            pipe.finish()
        remaining = deadline.remaining()
        if remaining is not None:
            deadline = Deadline.after(remaining - min(_FOR_THE_REST, remaining / 2))
        first: S2PubSubError | None = None
        for pipe in pipes:
            try:
                pipe.close(deadline)
            except S2PubSubError as error:
                if first is None:
                    first = error
                else:
                    first.add_note(str(error))
        if first is not None:
            raise first


class Closable(Protocol):
    """Something that is closed at exit."""

    def close(self, timeout: float | None = ...) -> None: ...


_at_exit: weakref.WeakSet[Any] = weakref.WeakSet()


def close_at_exit(closable: Closable) -> None:
    """Close ``closable`` when the interpreter ends, if it is still there and open."""
    _at_exit.add(closable)


@atexit.register
def _close_all() -> None:
    deadline = Deadline.after(EXIT_BUDGET)
    for closable in list(_at_exit):
        try:
            closable.close(timeout=deadline.remaining())
        except Exception as error:  # noqa: BLE001  # nobody else would hear of it
            text = "; ".join([str(error), *getattr(error, "__notes__", ())])
            warnings.warn(f"s2pubsub, closing at exit: {text}", RuntimeWarning, stacklevel=1)


def _close_with_child(_: object = None) -> None:
    # Children of multiprocessing leave without exit handlers, but run these. Those that leave by os._exit run nothing.
    if multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, _close_all, exitpriority=0)


_close_with_child()  # imported by a child
multiprocessing.util.register_after_fork(_close_all, _close_with_child)  # a child of this process
