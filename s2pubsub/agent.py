"""An agent whose answers are durable: a plain generator of chunks, run on a bounded pool of threads."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from s2pubsub.errors import ClosedError, RunEndedError, S2PubSubError
from s2pubsub.observation import Observation
from s2pubsub.run_writer import Run
from s2pubsub.runs import Adapter, Runs, write_items
from s2pubsub.runtime.closing import Closing
from s2pubsub.runtime.deadline import Deadline
from s2pubsub.runtime.fork import reset_in_child
from s2pubsub.runtime.worker import Worker
from s2pubsub.topic import thread_name

DEFAULT_WORKERS = 16


class DurableAgent(Closing):
    """Runs ``generate(*args, **kwargs)`` as a durable run. Thread-safe.

    Args:
        generate: called on a worker thread; yields strings, chunks, or objects for ``adapter``.
        runs: where its runs are written.
        workers: how many run at a time; more wait for their turn, their ``start`` stored already.
        adapter: turns what ``generate`` yields into text or chunks.
    """

    def __init__(
        self,
        generate: Callable[..., Iterable[Any]],
        runs: Runs,
        *,
        workers: int = DEFAULT_WORKERS,
        adapter: Adapter | None = None,
    ) -> None:
        if isinstance(workers, bool) or not isinstance(workers, int):
            raise TypeError(f"workers must be an int, not {workers!r}")
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self.runs = runs
        self._generate = generate
        self._adapter = adapter
        self._limit = workers
        self._reset()
        reset_in_child(self)
        runs.pubsub.close_with(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Run, tuple[Any, ...], dict[str, Any]]] = deque()
        self._workers: set[Worker] = set()
        self._runs: set[Run] = set()  # begun and not ended
        self._closed = False

    def stream(self, *args: Any, run_id: str | None = None, **kwargs: Any) -> Observation:
        """Start a run and return at once: an iterator over its events, which knows its ``run_id``.

        The run goes on when the iterator is closed or the caller's request ends.

        Raises:
            RunExistsError: the id is taken.
            ClosedError: the agent is closed, or no thread can be started.
        """
        self._check_open()
        run = self.runs.start(run_id)
        try:
            self._hand_over(run, args, kwargs)
        except ClosedError as error:
            with contextlib.suppress(S2PubSubError):
                run.error(error)
            raise
        return self.runs.observe(run.id)

    def observe(self, run_id: str, offset: int = 0, **options: Any) -> Observation:
        """Join a run from any process; see ``Runs.observe``."""
        return self.runs.observe(run_id, offset, **options)

    def abort(self, run_id: str) -> None:
        """Ask a run to abort, wherever it is executed."""
        self.runs.request_abort(run_id)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the agent is closed")

    def _hand_over(self, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with self._lock:
            self._check_open()
            if len(self._workers) < self._limit:
                worker = Worker(thread_name("run", run.id), self._work)
                try:
                    worker.start()
                    self._workers.add(worker)
                except ClosedError:
                    if not self._workers:  # else one of them takes the run when it is free
                        raise
            self._runs.add(run)
            self._waiting.append((run, args, kwargs))

    def _work(self) -> None:
        while (job := self._next_job()) is not None:
            run, args, kwargs = job
            try:
                write_items(run, self._items(args, kwargs), self._adapter)
            except BaseException as error:  # the run has it as its end; the log has the traceback
                if not (self._closed and isinstance(error, RunEndedError)):  # that was ``close``
                    self.runs.pubsub.logger.error("run %r has failed", run.id, exc_info=error)
            with self._lock:
                self._runs.discard(run)

    def _items(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[Any]:
        # A generator of its own, so that an error of the call itself ends the run like one of the iteration.
        yield from self._generate(*args, **kwargs)

    def _next_job(self) -> tuple[Run, tuple[Any, ...], dict[str, Any]] | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._workers.discard(threading.current_thread())
            return None

    def close(self, timeout: float | None = 5.0) -> None:
        """Take no more runs and wait for those that go on; end what is left after half of ``timeout`` as failed.

        So no observer waits for a run whose process has ended in an orderly way. The client calls this when it is
        closed, also at the end of the process. Idempotent.
        """
        deadline = Deadline.after(timeout)
        patience = Deadline.after(None if timeout is None else timeout / 2)
        with self._lock:
            self._closed = True
            workers = list(self._workers)
        for worker in workers:
            worker.finish(patience, quietly=True)
        with self._lock:
            left, self._waiting = list(self._runs), deque()
        for run in left:
            with contextlib.suppress(S2PubSubError):  # it has ended meanwhile, or the server is not there
                run.error("the process that wrote this run is ending", timeout=deadline.remaining())
        for worker in workers:
            worker.finish(deadline)

    def _reset_in_child(self) -> None:
        closed = self._closed
        self._reset()
        self._closed = closed
