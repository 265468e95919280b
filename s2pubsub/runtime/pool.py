"""A few threads for what blocks: name resolution and the making of clients, which may call the user's code.

Not a ``ThreadPoolExecutor``: the interpreter waits for all of its threads before it ends, so a name server that does
not answer, or a callable that never returns, would keep the process alive. These threads are daemons, and each ends
as soon as there is nothing to do.
"""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from s2pubsub.errors import ClosedError
from s2pubsub.runtime.deadline import Deadline
from s2pubsub.runtime.worker import Worker

T = TypeVar("T")


class Pool:
    """Runs actions on at most ``limit`` threads called ``name``. Thread-safe."""

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._lock = threading.Lock()
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._running = 0
        self._threads: set[Worker] = set()

    def submit(self, action: Callable[[], T]) -> Future[T]:
        """Run ``action``; its result or error is in the future.

        From Python 3.12 on none of these threads can be started once the interpreter is ending. What a publisher still
        has to store needs its connection then: ``action`` runs at once, on the calling thread, for which the exit waits
        no longer than for any other.

        Raises:
            OSError: none can be started now, as a connection cannot be made now: whoever asks tries again.
        """
        future: Future[T] = Future()
        job = (future, action)
        with self._lock:
            self._jobs.append(job)
            if self._running == self._limit:
                return future
            self._running += 1
        worker = Worker(self._name, self._work)
        try:
            self._threads.add(worker)
            worker.start()
        except BaseException as error:
            with self._lock:
                self._running -= 1
                self._threads.discard(worker)
                ours = job in self._jobs  # or another thread has taken it
                if ours:
                    self._jobs.remove(job)
            if not isinstance(error, ClosedError):
                raise
            if "shutdown" not in str(error):
                raise OSError(errno.EAGAIN, str(error)) from error
            if ours:
                _run(*job)
        return future

    def finish(self, deadline: Deadline) -> None:
        """Begin nothing more of what was submitted, and wait until ``deadline`` for what has begun.

        A thread that is inside OpenSSL when the interpreter ends crashes the process.
        """
        with self._lock:
            left = [future for future, _ in self._jobs]
            self._jobs.clear()
            threads = list(self._threads)
        for future in left:
            future.cancel()
        for thread in threads:
            thread.finish(deadline, quietly=True)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._running -= 1
                    self._threads.discard(threading.current_thread())
                    return
                future, action = self._jobs.popleft()
            _run(future, action)
            del future, action  # while this thread waits for its end, nothing of the job may live on


def _run(future: Future[Any], action: Callable[[], Any]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(action())
        except BaseException as error:  # noqa: BLE001  # whoever asked gets it
            future.set_exception(error)
