"""Things to do later, on one thread that lives only while something is pending."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable

from s2pubsub.errors import ClosedError
from s2pubsub.runtime.deadline import Deadline
from s2pubsub.runtime.fork import reset_in_child
from s2pubsub.runtime.loop import Log
from s2pubsub.runtime.worker import Worker


class Timer:
    """Calls actions after a delay, one at a time, on the thread ``s2pubsub-timer``. Thread-safe.

    An action that raises is logged. What is pending at ``close`` or at the end of the process is dropped.
    """

    def __init__(self, logger: Log) -> None:
        self._logger = logger
        self._reset()
        reset_in_child(self)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._pending: list[tuple[float, int, Callable[[], object]]] = []
        self._number = itertools.count()
        self._worker: Worker | None = None
        self._closed = False

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Call ``action`` in ``seconds``; does nothing when closed."""
        with self._changed:
            if self._closed:
                return
            heapq.heappush(self._pending, (time.monotonic() + seconds, next(self._number), action))
            if self._worker is None:
                worker = Worker("s2pubsub-timer", self._run)
                try:
                    worker.start()
                except ClosedError as error:  # no reason to fail whoever has something to do later
                    self._logger.warning("a delayed action waits for the next one: %s", error)
                    return
                self._worker = worker
            self._changed.notify()

    def _run(self) -> None:
        while (action := self._next()) is not None:
            try:
                action()
            except Exception as error:  # noqa: BLE001  # one failed clean-up must not end the others
                self._logger.warning("a delayed action failed: %s", error)

    def _next(self) -> Callable[[], object] | None:
        with self._changed:
            while self._pending and not self._closed:
                wait = self._pending[0][0] - time.monotonic()
                if wait <= 0:
                    return heapq.heappop(self._pending)[2]
                self._changed.wait(wait)
            self._worker = None
            return None

    def __len__(self) -> int:
        with self._changed:
            return len(self._pending)

    def close(self, deadline: Deadline) -> None:
        """Drop what is pending and end the thread."""
        with self._changed:
            self._closed = True
            self._pending.clear()
            worker = self._worker
            self._changed.notify_all()
        if worker is not None:
            worker.finish(deadline)

    def _reset_in_child(self) -> None:
        closed = self._closed
        self._reset()
        self._closed = closed
