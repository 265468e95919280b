"""The library's own threads: daemon, named, joined by whoever started them, and ended by a ``Stop``."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

from s2pubsub.errors import ClosedError
from s2pubsub.runtime.deadline import Deadline
from s2pubsub.runtime.fork import reset_in_child


class Worker(threading.Thread):
    """A daemon thread of this library. Daemon, so that a forgotten ``close()`` cannot keep a process alive."""

    def __init__(self, name: str, target: Callable[..., None], *args: Any) -> None:
        super().__init__(name=name, target=target, args=args, daemon=True)

    def start(self) -> None:
        """Start the thread; raise ClosedError when the interpreter is ending."""
        try:
            super().start()
        except RuntimeError as error:
            raise ClosedError(f"cannot start the thread {self.name}: {error}") from error

    def finish(self, deadline: Deadline) -> bool:
        """Join within ``deadline`` and say whether the thread has ended; warn with its name if it has not.

        On any worker thread of this library it returns at once: two workers that wait for each other never end.
        """
        if not self.is_alive() or on_worker_thread():
            return not self.is_alive()
        self.join(deadline.remaining())
        if self.is_alive():
            warnings.warn(f"the thread {self.name} has not ended in time", ResourceWarning, stacklevel=3)
        return not self.is_alive()


def on_worker_thread() -> bool:
    """Whether the caller runs on one of this library's threads, for example inside a callback."""
    return isinstance(threading.current_thread(), Worker)


class Stop:
    """A one-way signal that ends every wait of a worker. Thread-safe.

    ``wait`` serves plain waits and tenacity's sleep; an action registered with ``add`` is called by ``set``, which
    is how a call in flight on the I/O loop is cancelled.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        # Reentrant, since a finalizer may set it in the middle of one of its own calls.
        self._lock = threading.RLock()
        self._actions: list[Callable[[], object]] = []
        reset_in_child(self)

    def set(self) -> None:
        """Signal; run each registered action once, on this thread."""
        with self._lock:
            self._event.set()
            actions, self._actions = self._actions, []
        for action in actions:
            action()

    def is_set(self) -> bool:
        """Whether the signal was given."""
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to ``timeout`` seconds for the signal and say whether it was given."""
        return self._event.wait(timeout)

    def add(self, action: Callable[[], object]) -> None:
        """Have ``action`` called by ``set``; at once if that has happened already."""
        with self._lock:
            if not self._event.is_set():
                self._actions.append(action)
                return
        action()

    def remove(self, action: Callable[[], object]) -> None:
        """Forget ``action``; nothing happens if it has been called."""
        with self._lock:
            if action in self._actions:
                self._actions.remove(action)

    def _reset_in_child(self) -> None:
        # The worker that would obey is not in the child; whoever looks at the signal there must see the end.
        self._lock = threading.RLock()
        self._event = threading.Event()
        self._event.set()
        self._actions = []
