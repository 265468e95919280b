"""What is open: a client's subscriptions, and the process's clients that have to be closed at its exit."""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Protocol

from s2pubsub.event import Event
from s2pubsub.runtime.deadline import Deadline
from s2pubsub.subscription import Subscription

EXIT_BUDGET = 2.0
"""Seconds that closing everything may take when the interpreter ends."""


class Registry:
    """The open subscriptions of one client. Those with callbacks are kept alive, the others only known. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._known: weakref.WeakSet[Subscription] = weakref.WeakSet()
        self._callbacks: dict[Hashable, Subscription] = {}
        self._making = threading.RLock()

    def add(self, subscription: Subscription) -> None:
        """Know ``subscription``."""
        with self._lock:
            self._known.add(subscription)

    def callback_subscription(self, key: Hashable, make: Callable[[], Subscription]) -> Subscription:
        """The open subscription for ``key``, made (without I/O) if there is none: one, whatever threads ask at once."""
        with self._making:
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
        with self._lock:
            for key in [key for key, subscription in self._callbacks.items() if subscription.ended]:
                del self._callbacks[key]

    def subscriptions(self) -> list[Subscription]:
        """All that are open."""
        with self._lock:
            return [subscription for subscription in self._known if not subscription.closed]

    def offer_local(self, event: Event) -> None:
        """Give a local-only event to every subscription of its topic."""
        for subscription in self.subscriptions():
            if subscription.topic == event.topic:
                subscription.offer_local(event)

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
        with contextlib.suppress(Exception):
            closable.close(timeout=deadline.remaining())
