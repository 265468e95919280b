"""The library's own threads: daemon, named, joined by whoever started them, and ended by a ``Stop``."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable
from typing import Any

from s2pubsub.errors import ClosedError
from s2pubsub.runtime.deadline import Deadline
from s2pubsub.runtime.fork import reset_in_child
from s2pubsub.runtime.wake import Flag

_LAST_LINES = 1.0
"""Seconds for what the interpreter itself does at the end of a thread."""


class Worker(threading.Thread):
    """A daemon thread of this library. Daemon, so that a forgotten ``close()`` cannot keep a process alive."""

    def __init__(self, name: str, target: Callable[..., None], *args: Any) -> None:
        super().__init__(name=name, target=target, args=args, daemon=True)
        self._finished = Flag()

    def run(self) -> None:
        """Run the target; called on the thread."""
        try:
            super().run()
        finally:
            self._finished.set()

    def start(self) -> None:
        """Start the thread; raise ClosedError when the interpreter is ending."""
        try:
            super().start()
        except RuntimeError as error:
            raise ClosedError(f"cannot start the thread {self.name}: {error}") from error

    def finish(self, deadline: Deadline, *, quietly: bool = False) -> bool:
        """Join within ``deadline`` and say whether the thread has ended; warn with its name if it has not, unless
        ``quietly``.

        On any worker thread of this library it returns at once: two workers that wait for each other never end.
        """
        if not self.is_alive() or on_worker_thread():
            return not self.is_alive()
        # Not by ``join``: interrupted by Ctrl-C, that of Python 3.11 and 3.12 takes the thread for ended ever after.
        if self._finished.wait(deadline.remaining()):
            self.join(_LAST_LINES)
        elif not quietly:
            warnings.warn(f"the thread {self.name} has not ended in time", ResourceWarning, stacklevel=3)
        return not self.is_alive()


def on_worker_thread() -> bool:
    """Whether the caller runs on one of this library's threads, for example inside a callback."""
    return isinstance(threading.current_thread(), Worker)


class Stop:
    """A one-way signal that ends every wait of a worker. Thread-safe.

    ``wait`` serves plain waits and tenacity's sleep; an action registered with ``add`` is called by ``set``, which
    is how a call in flight on the I/O loop is cancelled.

    There is no lock: a finalizer or a signal handler may call ``set`` in the middle of any of these methods.
    """

    def __init__(self) -> None:
        self._flag = Flag()
        self._actions: list[Callable[[], object]] = []
        reset_in_child(self)

    def set(self) -> None:
        """Signal; run each registered action once, on this thread."""
        self._flag.set()
        while self._actions:
            try:
                action = self._actions.pop(0)
            except IndexError:
                return  # another thread took the last one
            action()

    def is_set(self) -> bool:
        """Whether the signal was given."""
        return self._flag.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to ``timeout`` seconds for the signal and say whether it was given."""
        return self._flag.wait(timeout)

    def add(self, action: Callable[[], object]) -> None:
        """Have ``action`` called by ``set``; at once if that has happened already."""
        self._actions.append(action)
        if self._flag.is_set():
            # Either ``set`` saw it in the list or we do: whoever takes it out calls it.
            try:
                self._actions.remove(action)
            except ValueError:
                return
            action()

    def remove(self, action: Callable[[], object]) -> None:
        """Forget ``action``; nothing happens if it has been called."""
        with contextlib.suppress(ValueError):
            self._actions.remove(action)

    def _reset_in_child(self) -> None:
        # The worker that would obey is not in the child; whoever looks at the signal there must see the end.
        self._flag = Flag()
        self._flag.set()
        self._actions = []
