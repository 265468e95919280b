"""One thread that completes futures, so that their done-callbacks never run on the I/O thread.

Actions run in the order in which they were handed over. One that raises, whatever it raises, is logged and the next
one runs. Not for work that waits: every future of the client is completed behind it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from s2pubsub.runtime.deadline import Deadline
from s2pubsub.runtime.fork import reset_in_child
from s2pubsub.runtime.loop import Log
from s2pubsub.runtime.worker import Worker

Action = Callable[[], object]


class Completer:
    """The thread ``s2pubsub-done``, started by ``start``. Thread-safe."""

    def __init__(self, logger: Log) -> None:
        self._logger = logger
        self._reset()
        reset_in_child(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._queue: SimpleQueue[Action | None] = SimpleQueue()
        self._thread: Worker | None = None

    def start(self) -> None:
        """Start the thread, if it does not run; ClosedError when the interpreter is ending."""
        with self._lock:
            if self._thread is None:
                thread = Worker("s2pubsub-done", _run, self._queue, self._logger)
                thread.start()
                self._thread = thread

    def soon(self, action: Action) -> None:
        """Have ``action`` called on the thread."""
        self._queue.put(action)

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on the thread, that is, in a done-callback."""
        return self._thread is not None and self._thread.ident == threading.get_ident()

    def close(self, deadline: Deadline) -> bool:
        """Run what was handed over, end the thread within ``deadline`` and say whether it has ended."""
        with self._lock:
            thread = self._thread
        if thread is None:
            return True
        self._queue.put(None)
        return thread.finish(deadline)

    def signal_close(self) -> None:
        """Tell the thread to end without waiting: for finalizers."""
        self._queue.put(None)

    def _reset_in_child(self) -> None:
        self._reset()


def _run(queue: SimpleQueue[Action | None], logger: Log) -> None:
    while (action := queue.get()) is not None:
        try:
            action()
        except BaseException:  # a callback's SystemExit must not end the thread either
            logger.exception("while completing futures")
        del action  # nothing of the last batch is kept alive while the thread waits for the next one
