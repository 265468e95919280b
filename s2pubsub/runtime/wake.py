"""Wake-ups that may be given from a finalizer or a signal handler, even in the middle of the wait they are for.

``threading.Event`` and ``Condition`` look at their flag first and enlist the waiter afterwards, under a lock that is
not reentrant. A finalizer or signal handler that runs on the waiting thread between these two steps either blocks
on that lock for ever, or notifies nobody and the thread then sleeps for ever. Here the wake-up is the state of one
lock, so there is nothing between.
"""

from __future__ import annotations

import threading


class Wake:
    """Wakes one waiter; a wake-up that comes before the wait is kept, several are one."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Let the present or the next ``wait`` return. From any thread, never blocks."""
        try:
            self._lock.release()
        except RuntimeError:
            pass  # it is set already

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to ``timeout`` seconds (None: for ever) and use the wake-up; False when none came."""
        return self._lock.acquire(timeout=-1 if timeout is None else timeout)


class Flag:
    """Goes up once and stays up; releases any number of waiters."""

    __slots__ = ("_gate", "_up")

    def __init__(self) -> None:
        self._gate = Wake()
        self._up = False

    def set(self) -> None:
        """Raise it. From any thread, never blocks."""
        self._up = True
        self._gate.set()

    def is_set(self) -> bool:
        """Whether it is up."""
        return self._up

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to ``timeout`` seconds (None: for ever) and say whether it is up."""
        if not self.is_set():
            try:
                self._gate.wait(timeout)
            finally:  # also when a signal interrupts us just after we were woken
                if self.is_set():
                    self._gate.set()  # for the next waiter
        return self.is_set()
