"""The I/O loop, workers and stop signals: threads without network."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

import pytest

from s2pubsub.errors import ClosedError, OperationTimeoutError
from s2pubsub.runtime.deadline import NEVER, Deadline
from s2pubsub.runtime.loop import IOLoop
from s2pubsub.runtime.worker import Stop, Worker, on_worker_thread
from tests.waiting import LONG, eventually

LOGGER = logging.getLogger("s2pubsub.test")
POLL = Deadline.after(0)


@pytest.fixture
def loop() -> Iterator[IOLoop]:
    made = IOLoop(LOGGER)
    yield made
    assert made.close(Deadline.after(LONG))


def soon(seconds: float = LONG) -> Deadline:
    return Deadline.after(seconds)


def in_thread(action: Callable[[], object]) -> Future[object]:
    """The outcome of ``action``, run on a thread of its own."""
    future: Future[object] = Future()

    def run() -> None:
        try:
            future.set_result(action())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


async def forever() -> None:
    await asyncio.Event().wait()


# Calls.


def test_nothing_runs_before_the_first_call() -> None:
    """Making and closing a loop starts no thread."""
    before = threading.active_count()
    made = IOLoop(LOGGER)
    assert not made.started
    assert threading.active_count() == before
    assert made.close(soon())
    assert made.closed


def test_a_call_gives_result_or_error(loop: IOLoop) -> None:
    """A coroutine's result is returned, its exception raised as it is, even one that would end a loop."""

    async def give(value: object) -> object:
        await asyncio.sleep(0)
        if isinstance(value, BaseException):
            raise value
        return value

    assert loop.call(give(3), soon()) == 3
    for error in (KeyError("k"), TimeoutError("own"), SystemExit(3), KeyboardInterrupt("own")):
        with pytest.raises(type(error)) as caught:
            loop.call(give(error), soon())
        assert caught.value is error or isinstance(error, TimeoutError)
    assert loop.call(give("still there"), soon()) == "still there"


def test_a_call_without_time_is_cancelled(loop: IOLoop) -> None:
    """Past its deadline a call raises the timeout error, and its coroutine has been cancelled by then."""
    ended: list[str] = []

    async def wait() -> None:
        try:
            await forever()
        finally:
            ended.append("cancelled")

    with pytest.raises(OperationTimeoutError):
        loop.call(wait(), Deadline.after(0.05))
    assert ended == ["cancelled"]


def test_a_call_that_polls_never_begins_or_ends(loop: IOLoop) -> None:
    """With a deadline of 0 the call raises within a moment, whether or not its coroutine had begun."""
    loop.call(asyncio.sleep(0), soon())
    for _ in range(200):
        started = time.monotonic()
        with pytest.raises(OperationTimeoutError):
            loop.call(forever(), Deadline.after(0))
        assert time.monotonic() - started < 1


def test_a_call_that_ends_in_spite_of_its_cancellation_is_used(loop: IOLoop) -> None:
    """On Python 3.11 a finished request may swallow its cancellation; the result counts, not the deadline."""

    async def stubborn() -> str:
        try:
            await forever()
        except asyncio.CancelledError:
            return "stored"
        return "never"

    assert loop.call(stubborn(), Deadline.after(0.05)) == "stored"


def test_a_call_that_swallows_one_cancellation_is_cancelled_again(loop: IOLoop) -> None:
    """Closing an SDK session may swallow a cancellation and wait on; the call still ends."""
    cancelled: list[int] = []

    async def stubborn() -> None:
        while len(cancelled) < 2:
            try:
                await forever()
            except asyncio.CancelledError:
                cancelled.append(1)

    with pytest.raises(OperationTimeoutError):
        loop.call(forever(), Deadline.after(0.01))
    assert loop.call(stubborn(), Deadline.after(0.05)) is None
    assert len(cancelled) == 2


def test_a_call_that_never_ends_lets_its_caller_go(loop: IOLoop) -> None:
    """A coroutine that ignores every cancellation holds its caller for about a second, not for ever."""
    release = threading.Event()

    async def deaf() -> None:
        while not release.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                pass

    started = time.monotonic()
    with pytest.raises(OperationTimeoutError):
        loop.call(deaf(), Deadline.after(0.1))
    assert time.monotonic() - started < 2
    release.set()


@pytest.mark.parametrize("early", [True, False], ids=["before", "during"])
def test_stop_ends_a_call(loop: IOLoop, early: bool) -> None:
    """A stop that is set before or during a call ends it with ClosedError, also when nothing of it had run yet."""
    loop.call(asyncio.sleep(0), soon())
    for _ in range(50):
        stop = Stop()
        if early:
            stop.set()
        begun = threading.Event()

        async def wait(begun: threading.Event = begun) -> None:
            begun.set()
            await forever()

        outcome = in_thread(lambda wait=wait, stop=stop: loop.call(wait(), NEVER, stop))
        if not early:
            assert begun.wait(LONG)
            stop.set()
        with pytest.raises(ClosedError):
            outcome.result(LONG)


def test_a_result_that_comes_with_the_deadline_is_returned(loop: IOLoop) -> None:
    """A call that ends at the very moment of its deadline gives its result or the timeout error, nothing else."""

    async def after(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    for round_number in range(150):
        try:
            assert loop.call(after(0.002), Deadline.after(0.002 + round_number * 1e-5)) == "done"
        except TimeoutError as error:
            assert isinstance(error, OperationTimeoutError)  # noqa: PT017 - both outcomes are right


def test_the_loop_refuses_calls_from_itself(loop: IOLoop) -> None:
    """A blocking call on the I/O thread would wait for itself; it raises instead."""

    async def inside() -> None:
        loop.call(asyncio.sleep(0), soon())

    with pytest.raises(ClosedError, match="wait for itself"):
        loop.call(inside(), soon())


def test_a_call_that_was_not_begun_says_that_nothing_was_sent() -> None:
    """After close a call raises ClosedError whose outcome says that nothing was stored, and leaves no warning."""
    made = IOLoop(LOGGER)
    made.close(soon())
    with pytest.raises(ClosedError) as caught:
        made.call(forever(), soon())
    assert caught.value.outcome == "not_stored"
    with pytest.raises(ClosedError):
        made.submit(forever())
    with pytest.raises(ClosedError):
        made.soon(lambda: None)
    gc.collect()


# Life of the loop.


def test_close_ends_calls_in_flight() -> None:
    """Whoever waits in a call when the loop is closed gets ClosedError; the thread is gone."""
    made = IOLoop(LOGGER)
    begun = threading.Barrier(9)

    async def wait() -> None:
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        await forever()

    def call() -> object:
        begun.wait(LONG)
        return made.call(wait(), NEVER)

    outcomes = [in_thread(call) for _ in range(8)]
    begun.wait(LONG)
    eventually(lambda: made.started)
    assert made.close(soon())
    for outcome in outcomes:
        with pytest.raises(ClosedError):
            outcome.result(LONG)
    assert made.close(soon())


def test_calls_racing_with_close_all_end() -> None:
    """Calls started at the very moment of the close end with ClosedError or their result, never hang, never warn."""
    for _ in range(40):
        made = IOLoop(LOGGER)
        made.call(asyncio.sleep(0), soon())
        barrier = threading.Barrier(5)

        def call(made: IOLoop = made, barrier: threading.Barrier = barrier) -> int:
            barrier.wait(LONG)
            count = 0
            try:
                while True:
                    made.call(asyncio.sleep(0), NEVER)
                    count += 1
            except ClosedError:
                return count

        outcomes = [in_thread(call) for _ in range(4)]
        barrier.wait(LONG)
        made.close(soon())
        for outcome in outcomes:
            outcome.result(LONG)
    gc.collect()


def test_close_from_many_threads() -> None:
    """Several threads may close at once; each returns when the thread has ended."""
    made = IOLoop(LOGGER)
    made.call(asyncio.sleep(0), soon())
    outcomes = [in_thread(lambda: made.close(soon())) for _ in range(8)]
    assert all(outcome.result(LONG) for outcome in outcomes)


def test_only_one_thread_is_started() -> None:
    """First calls from many threads at once start one I/O thread."""
    made = IOLoop(LOGGER)
    barrier = threading.Barrier(16)

    async def name() -> str:
        return threading.current_thread().name + str(threading.get_ident())

    def call() -> object:
        barrier.wait(LONG)
        return made.call(name(), soon())

    names = {outcome.result(LONG) for outcome in [in_thread(call) for _ in range(16)]}
    assert len(names) == 1
    made.close(soon())


def test_a_finalizer_may_signal_the_end() -> None:
    """``signal_close`` waits for nothing; the thread ends by itself."""
    made = IOLoop(LOGGER)
    made.call(asyncio.sleep(0), soon())
    thread = next(t for t in threading.enumerate() if t.name == "s2pubsub-io")
    made.signal_close()
    thread.join(LONG)
    assert not thread.is_alive()
    assert made.close(soon())


# Stop and workers.


def test_stop_runs_each_action_once() -> None:
    """Actions run when the signal is given, once; those added later run at once; removed ones never."""
    stop = Stop()
    ran: list[str] = []
    kept, removed, late = (lambda: ran.append("kept")), (lambda: ran.append("removed")), (lambda: ran.append("late"))
    stop.add(kept)
    stop.add(removed)
    stop.remove(removed)
    assert not stop.is_set()
    assert not stop.wait(0)
    stop.set()
    stop.set()
    stop.add(late)
    stop.remove(late)
    assert ran == ["kept", "late"]
    assert stop.is_set()
    assert stop.wait(0)


def test_stop_wakes_every_waiter() -> None:
    """All that wait are released by one ``set``."""
    stop = Stop()
    outcomes = [in_thread(lambda: stop.wait(LONG)) for _ in range(8)]
    stop.set()
    assert all(outcome.result(LONG) for outcome in outcomes)


def test_a_worker_that_stays_is_named() -> None:
    """A thread that does not end within the budget is warned about by its name."""
    release = threading.Event()
    worker = Worker("s2pubsub-sub-stuck", release.wait)
    worker.start()
    with pytest.warns(ResourceWarning, match="s2pubsub-sub-stuck"):
        assert not worker.finish(Deadline.after(0.05))
    release.set()
    assert worker.finish(soon())


def test_workers_do_not_wait_for_each_other() -> None:
    """``finish`` on a worker thread returns at once: two workers that join each other would never end."""
    assert not on_worker_thread()
    stuck = threading.Event()
    other = Worker("s2pubsub-sub-other", stuck.wait)
    other.start()
    outcome: Future[tuple[bool, bool]] = Future()
    asking = Worker(
        "s2pubsub-sub-asking", lambda: outcome.set_result((on_worker_thread(), other.finish(Deadline.after(LONG))))
    )
    asking.start()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert outcome.result(2) == (True, False)
    stuck.set()
    assert other.finish(soon())
    assert asking.finish(soon())


def test_a_worker_never_started_is_finished() -> None:
    """``finish`` of a thread that was never started returns at once."""
    assert Worker("s2pubsub-sub-new", lambda: None).finish(soon())


def test_timeouts_are_the_builtin_kind() -> None:
    """What a caller catches as TimeoutError is what futures raise, too."""
    assert FutureTimeout is TimeoutError
    assert issubclass(OperationTimeoutError, TimeoutError)
