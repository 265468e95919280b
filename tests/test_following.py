"""How a follower stops: races that real servers do not make on demand. Everything else of it is tested on those."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from typing import Any

from s2pubsub.errors import ClosedError
from s2pubsub.following import Feed, Follower
from s2pubsub.runtime.wake import Wake
from s2pubsub.runtime.worker import Stop
from s2pubsub.stats import Counters
from s2pubsub.store import Batch
from s2pubsub.subscription import Queue
from tests.waiting import LONG


class OneAnswer:
    """A store, and its reader: the stop and an answer come together, just when the answer was looked for in vain; then
    it stays silent.
    """

    def __init__(self, stop: Stop) -> None:
        self._stop = stop
        self._answers: list[Batch | None] = [Batch(0, [], 0, 0), None]
        self.closed = threading.Event()

    def open(self, *_: Any, **__: Any) -> OneAnswer:
        return self

    def find_for_reader(self, stream: str) -> Future[None]:
        found: Future[None] = Future()
        found.set_result(None)
        return found

    def take(self) -> Batch | None:
        answer = self._answers.pop() if self._answers else None
        if answer is None:
            self._stop.set()
        return answer

    def close(self) -> None:
        self.closed.set()


def test_an_answer_that_comes_together_with_the_stop() -> None:
    """A stop is not missed because the answer that was waited for comes at the same moment: the worker ends."""
    stop, wake = Stop(), Wake()
    store: Any = OneAnswer(stop)
    sink = Queue(0, 10, 1000)
    stop.add(wake.set)
    stop.add(sink.close)
    feed = Feed("agent.t", "agent.t", 0, True, store, sink, stop, wake, Counters(), logging.getLogger("s2pubsub.test"))
    errors: list[BaseException] = []

    def run() -> None:
        try:
            Follower(feed).run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LONG)
    ended = not thread.is_alive()
    wake.set()  # so that the thread of a failing test ends, too
    assert ended
    assert store.closed.is_set()
    (error,) = errors
    assert isinstance(error, ClosedError)
    assert str(error) == "the subscription to topic 'agent.t' is closed"
