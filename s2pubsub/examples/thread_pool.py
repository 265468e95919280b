"""Runs written by a ``ThreadPoolExecutor``: ``python -m s2pubsub.examples.thread_pool 'a question' 'another one'``.

The simplest pool, for one process: no broker, and what is queued dies with it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from s2pubsub import S2PubSub
from s2pubsub.examples.writing import write_answer
from s2pubsub.runs import Runs

_log = logging.getLogger(__name__)


class Pool:
    """Writes runs on threads. Thread-safe; close it before the client."""

    def __init__(self, runs: Runs, workers: int = 8) -> None:
        self._runs = runs
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="answer")

    def submit(self, run_id: str, question: str) -> None:
        """Hand a run to the workers."""
        self._executor.submit(write_answer, self._runs, run_id, question).add_done_callback(_report)

    def close(self) -> None:
        """Wait for the runs that are being written; those that still wait are left to their observers' patience."""
        self._executor.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _report(future: Future[None]) -> None:
    # Nobody asks for the future's result, so that an error would be lost; the run's observers have it as its end.
    if not future.cancelled() and (error := future.exception()) is not None:
        _log.error("an answer has failed", exc_info=error)


def main(questions: Sequence[str]) -> None:
    """Answer some questions at the same time, and print each answer when it is complete."""
    with S2PubSub() as pubsub, Runs(pubsub) as runs, Pool(runs) as pool:
        pubsub.ensure_basin()
        started = []
        for question in questions:
            run = runs.start()
            pool.submit(run.id, question)
            run.hand_over()
            started.append((question, run.id))
        for question, run_id in started:
            with runs.observe(run_id, idle_timeout=30) as observation:
                print(f"{question}\n{observation.result().text}\n")


if __name__ == "__main__":
    main(sys.argv[1:] or ["What burns in the lamp?", "Who reads the log?"])
