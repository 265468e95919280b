"""Futures that make their parts late: to everybody who looks they are as `concurrent.futures` has them."""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, as_completed, wait
from typing import Any

import pytest

from s2pubsub.runtime.promise import Promise
from tests.waiting import LONG


def test_result_and_failure() -> None:
    """What was completed before anybody looked is there: result, state, failure; a callback is called at once."""
    kept: Promise[int] = Promise()
    assert not kept.done()
    kept.set_result(1)
    lost: Promise[int] = Promise()
    lost.set_exception(KeyError("gone"))
    seen: list[Any] = []
    kept.add_done_callback(seen.append)
    assert isinstance(kept, Future)
    assert (kept.result(0), kept.exception(0), kept.done(), kept.running(), kept.cancelled()) == (
        1,
        None,
        True,
        False,
        False,
    )
    assert seen == [kept]
    with pytest.raises(KeyError):
        lost.result(0)
    assert isinstance(lost.exception(0), KeyError)


def test_never_looked_at() -> None:
    """A future that nobody looks at has no condition and no lists."""
    promise: Promise[int] = Promise()
    promise.set_result(1)
    assert not {"_condition", "_waiters", "_done_callbacks"} & promise.__dict__.keys()


def test_completed_once() -> None:
    """It is completed once, and cannot be cancelled."""
    promise: Promise[int] = Promise()
    assert promise.cancel() is False
    promise.set_result(1)
    for complete in (lambda: promise.set_result(2), lambda: promise.set_exception(KeyError())):
        with pytest.raises(InvalidStateError):
            complete()
    assert promise.cancel() is False
    assert promise.result(0) == 1


def test_timeout() -> None:
    """Who waits too short a time gets TimeoutError, and the result later."""
    promise: Promise[int] = Promise()
    with pytest.raises(TimeoutError):
        promise.result(0.01)
    promise.set_result(1)
    assert promise.result(0) == 1


def test_wait_and_as_completed() -> None:
    """`wait` and `as_completed` take them beside other futures, complete or not."""
    early, late, failing = Promise[int](), Promise[int](), Promise[int]()
    other: Future[int] = Future()
    early.set_result(1)
    assert wait([early, late], return_when=FIRST_COMPLETED, timeout=LONG).done == {early}

    def complete() -> None:
        late.set_result(2)
        failing.set_exception(KeyError())
        other.set_result(3)

    found = as_completed([early, late, failing, other], timeout=LONG)
    assert next(found) is early
    thread = threading.Thread(target=complete)
    thread.start()
    assert set(found) == {late, failing, other}
    thread.join(LONG)


def test_awaited() -> None:
    """An event loop waits for one like for any future."""

    async def run() -> int:
        promise: Promise[int] = Promise()
        asyncio.get_running_loop().call_soon(promise.set_result, 5)
        return await asyncio.wait_for(asyncio.wrap_future(promise), LONG)

    assert asyncio.run(run()) == 5


@pytest.mark.limit(60)
def test_looked_at_while_completed() -> None:
    """Looking and completing at the same moment: no waiter is left behind, each callback is called once."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        promises: list[Promise[int]] = [Promise() for _ in range(3000)]
        called: list[int] = []
        found: list[list[int]] = [[], []]

        def look(mine: list[int]) -> None:
            for promise in promises:
                promise.add_done_callback(lambda done: called.append(done.result(0)))
                mine.append(promise.result(LONG))

        threads = [threading.Thread(target=look, args=(mine,)) for mine in found]
        for thread in threads:
            thread.start()
        for number, promise in enumerate(promises):
            promise.set_result(number)
        for thread in threads:
            thread.join(LONG)
    finally:
        sys.setswitchinterval(interval)
    assert found == [list(range(3000))] * 2
    assert sorted(called) == sorted([*range(3000), *range(3000)])


def test_in_a_child() -> None:
    """In a forked child what is not complete fails, without a lock of the parent's and without its callbacks."""
    called: list[Any] = []
    promise: Promise[int] = Promise()
    promise.add_done_callback(called.append)
    with promise._condition:  # as a thread of the parent holds it
        promise.end_in_child(KeyError())
        assert isinstance(promise.exception(0), KeyError)
    kept: Promise[int] = Promise()
    kept.set_result(1)
    kept.end_in_child(KeyError())
    assert kept.result(0) == 1
    assert called == []
