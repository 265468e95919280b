"""Group commit with threads and a loop, and no network: who is released, when, and by whom."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from s2pubsub import OperationTimeoutError
from s2pubsub.runtime.deadline import Deadline
from s2pubsub.runtime.loop import IOLoop
from s2pubsub.store.commit import MAX_IN_FLIGHT, GroupCommits
from tests.waiting import LONG, eventually


class Log:
    """A stream: what was appended to it, in batches; ``gate`` holds appends up."""

    def __init__(self, loop: IOLoop) -> None:
        self.batches: list[list[bytes]] = []
        self.stored = 0
        self.gate = threading.Event()
        self.gate.set()
        self.commits = GroupCommits(self._append, self._ready, loop.ring)

    async def _ready(self) -> None:
        pass

    async def _append(self, stream: str, bodies: list[bytes]) -> int:
        self.batches.append(bodies)
        first, self.stored = self.stored, self.stored + len(bodies)
        await asyncio.sleep(0.002)
        if not self.gate.is_set():
            await asyncio.get_running_loop().run_in_executor(None, self.gate.wait, LONG)
        return first

    def commit(self, body: bytes, timeout: float = LONG) -> int:
        return self.commits.commit("stream", body, Deadline.after(timeout))

    def held_up(self, number: int) -> None:
        """Wait until so many bodies are on their way or queued."""
        eventually(lambda: self.commits._groups["stream"]._outbox.unfinished >= number)


@contextmanager
def opened() -> Iterator[Log]:
    loop = IOLoop(logging.getLogger("test"))
    loop.start()
    log = Log(loop)
    try:
        yield log
    finally:
        log.gate.set()
        loop.close(Deadline.after(LONG))


def in_threads(number: int, work: Callable[[int], Any]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, args=(mine,)) for mine in range(number)]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.limit(90)
def test_everybody_is_released_in_order() -> None:
    """Of a hundred threads each gets the places of its own bodies, rising; the log holds each body once, there."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with opened() as log:
            places: dict[bytes, int] = {}

            def work(mine: int) -> None:
                before = -1
                for number in range(20):
                    body = b"%d-%d" % (mine, number)
                    place = places[body] = log.commit(body, 60)
                    assert place > before
                    before = place

            for thread in in_threads(100, work):
                thread.join(60)
                assert not thread.is_alive()
    finally:
        sys.setswitchinterval(interval)
    stored = [body for batch in log.batches for body in batch]
    assert {place: body for body, place in places.items()} == dict(enumerate(stored))
    assert len(log.batches) < len(stored) / 3


def test_alone_at_once() -> None:
    """A lone body leaves at once, and each of two callers by itself: nobody waits for others to come."""
    with opened() as log:
        for number in range(3):
            assert log.commit(b"alone") == number
        log.gate.clear()
        threads = in_threads(1, lambda mine: log.commit(b"first"))
        eventually(lambda: log.stored == 4)
        threads += in_threads(1, lambda mine: log.commit(b"second"))
        eventually(lambda: log.stored == 5)
        log.gate.set()
        for thread in threads:
            thread.join(LONG)
        assert len(log.batches) == 5


def test_a_crowd_comes_back_together() -> None:
    """What a crowd publishes when it is released goes in few appends, also when the last of it does not come back.

    And nobody waits for those who do not come: a lone body after that is an append of its own.
    """
    with opened() as log:
        log.gate.clear()
        busy = []
        for sent in range(1, MAX_IN_FLIGHT + 1):
            busy += in_threads(1, lambda mine: log.commit(b"busy"))
            eventually(lambda sent=sent: len(log.batches) == sent)

        def work(mine: int) -> None:
            log.commit(b"first")
            if mine < 19:
                log.commit(b"second")

        crowd: list[threading.Thread] = []
        for mine in range(20):
            crowd += in_threads(1, lambda _, mine=mine: work(mine))
            log.held_up(MAX_IN_FLIGHT + mine + 1)
        log.gate.set()
        for thread in (*busy, *crowd):
            thread.join(LONG)
            assert not thread.is_alive()
        later = log.batches[MAX_IN_FLIGHT:]
        assert later[0] == [b"first"] * 20
        assert sum(map(len, later[1:])) == 19
        assert len(later[1:]) < 10
        for number in range(3):
            assert log.commit(b"alone") == log.stored - 1
            assert log.batches[-1] == [b"alone"]
            assert len(log.batches) == MAX_IN_FLIGHT + len(later) + number + 1


def test_who_leaves_holds_up_nobody() -> None:
    """Callers whose time is up in the midst of a batch get their error; those before and behind get their places."""
    with opened() as log:
        log.gate.clear()
        outcomes: dict[int, Any] = {}

        def work(mine: int) -> None:
            try:
                outcomes[mine] = log.commit(b"%d" % mine, 0.2 if mine % 2 else LONG)
            except OperationTimeoutError as error:
                outcomes[mine] = error.outcome

        threads = in_threads(20, work)
        eventually(lambda: len(outcomes) == 10)
        assert set(outcomes.values()) <= {"unknown", "not_stored"}
        log.gate.set()
        for thread in threads:
            thread.join(LONG)
        assert all(isinstance(outcomes[mine], int) for mine in range(0, 20, 2))


def test_a_deleted_stream_leaves_nothing() -> None:
    """A queue that is empty goes with its stream; one that is not stays until what is in it is stored."""
    with opened() as log:
        for number in range(20):
            log.commits.commit(f"stream-{number}", b"x", Deadline.after(LONG))
            eventually(lambda: log.commits._groups[f"stream-{number}"].idle)  # noqa: B023  # waited for here
            log.commits.forget(f"stream-{number}")
        assert not log.commits._groups
        log.gate.clear()
        publisher = threading.Thread(target=log.commit, args=(b"x",))
        publisher.start()
        log.held_up(1)
        log.commits.forget("stream")
        assert log.commits._groups
        log.gate.set()
        publisher.join(LONG)


def test_cleared_topics_leave_no_queues(pubsub) -> None:
    """After twenty topics were published on and cleared, the client holds the queue of none of them."""
    for number in range(20):
        pubsub.publish(f"agent.cleared.{number}", type="n", data=number)
        pubsub.clear_topic(f"agent.cleared.{number}", strict=True)
    assert not pubsub._engine.store._commits._groups


def test_a_signal_handler_may_wait_for_others() -> None:
    """A handler that interrupts the main thread may wait for others of its append: they do not wait for that thread."""
    with opened() as log:
        log.gate.clear()
        first = []
        for number in range(MAX_IN_FLIGHT):
            first += in_threads(1, lambda mine: log.commit(b"first"))
            eventually(lambda sent=number + 1: len(log.batches) == sent)
        waited: list[bool] = []
        others: list[threading.Thread] = []

        def handle(number: int, frame: object) -> None:
            log.gate.set()
            for thread in others:
                thread.join(LONG)
            waited.extend(not thread.is_alive() for thread in others)

        def interrupt() -> None:
            log.held_up(MAX_IN_FLIGHT + 1)  # the main thread's body is the first that waits for an append to end
            others.extend(in_threads(8, lambda mine: log.commit(b"%d" % mine)))
            log.held_up(MAX_IN_FLIGHT + 9)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, handle)
        try:
            sender = threading.Thread(target=interrupt)
            sender.start()
            log.commit(b"main")
            sender.join(LONG)
            for thread in first:
                thread.join(LONG)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert waited == [True] * 8
        assert {b"main", b"0", b"7"} <= set(log.batches[MAX_IN_FLIGHT])
