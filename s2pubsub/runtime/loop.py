"""The asyncio loop on a thread of its own, called from blocking code.

The S2 SDK speaks asyncio only; the library's users block. One loop per client runs the SDK's coroutines and
nothing else: no user code and no JSON, since whatever it waits for, everybody waits for.

A call that times out is cancelled and given a moment to clean up. The cancelled coroutine may still end with a
result (on Python 3.11 a finished request can swallow the cancellation); that result is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import selectors
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, Generic, TypeVar

from s2pubsub.errors import ClosedError, OperationTimeoutError, S2PubSubError
from s2pubsub.runtime.deadline import Deadline
from s2pubsub.runtime.event_loop import EventLoop
from s2pubsub.runtime.fork import reset_in_child
from s2pubsub.runtime.turns import Selector
from s2pubsub.runtime.worker import Stop, Worker

T = TypeVar("T")
E = TypeVar("E", bound=S2PubSubError)

Log = logging.Logger | logging.LoggerAdapter[Any]

_CLEAN_UP = 0.5
"""Seconds that a cancelled call gets to end by itself."""

_CANCEL_AGAIN = 0.2
"""Seconds after which a cancelled task that still runs is cancelled again. Closing an SDK read session on Python
3.11 while a frame is buffered waits for ever after one cancellation."""

_abandoned: list[Any] = []
"""What a forked child inherited of its parent's loops; kept, because collecting it would touch the parent's epoll."""


class IOLoop:
    """Runs coroutines on the thread ``s2pubsub-io``. The thread starts with the first call. Thread-safe.

    Attributes:
        at_end: run on the loop before it ends, for a second at most: closes what others have opened on it.
    """

    def __init__(self, logger: Log) -> None:
        self._logger = logger
        self.at_end: Callable[[], Coroutine[Any, Any, None]] = _nothing
        self._reset()
        reset_in_child(self)

    def _reset(self) -> None:
        self._lock = threading.RLock()  # reentrant, since a signal handler may close in the middle of a call
        self._closed = False
        self._thread: Worker | None = None
        self._loop: EventLoop | None = None
        self._selector: selectors.BaseSelector | None = None
        self._calls: set[_Call[Any]] = set()

    # -- calls ---------------------------------------------------------------------------------------------------

    def call(self, coro: Coroutine[Any, Any, T], deadline: Deadline, stop: Stop | None = None) -> T:
        """Run ``coro`` on the loop and return its result or raise its error.

        Raises:
            OperationTimeoutError: ``deadline`` has passed; the coroutine was cancelled.
            ClosedError: the loop is closed, or ``stop`` was set.
        """
        call = self._start_call(coro)
        if stop is not None:
            stop.add(call.cancel)
        try:
            return call.future.result(deadline.remaining())
        except TimeoutError:
            return self._give_up(call)
        except CancelledError:
            raise call.unless_begun(ClosedError("closed during the call")) from None
        except BaseException:
            if not call.future.done():
                call.cancel()  # Ctrl-C, or an exception from a signal handler, in the waiting thread
            raise
        finally:
            if stop is not None:
                stop.remove(call.cancel)

    def submit(self, coro: Coroutine[Any, Any, T]) -> Future[T]:
        """Run ``coro`` on the loop; its result or error is in the returned future. Not cancellable."""
        return self._start_call(coro).future

    def soon(self, action: Callable[[], object]) -> None:
        """Call ``action`` on the loop thread. It must be short and must not raise.

        Raises:
            ClosedError: the loop was closed, or has not been started.
        """
        loop = self._loop
        try:
            if loop is None:
                raise RuntimeError("not started")
            loop.call_soon_threadsafe(action)
        except RuntimeError as error:
            raise ClosedError("the client is closed") from error

    def ring(self, action: Callable[[], object]) -> None:
        """``soon``, but quicker, without an error when the loop has ended, and in no order with other calls."""
        loop = self._loop
        if loop is not None:
            loop.bell.ring(action)

    def _give_up(self, call: _Call[T]) -> T:
        if not call.future.done():  # it may have ended with the deadline
            call.cancel()
        try:
            return call.future.result(_CLEAN_UP)
        except (TimeoutError, CancelledError):
            if call.future.done() and not call.future.cancelled():
                raise  # the coroutine's own
            raise call.unless_begun(OperationTimeoutError("the call did not end within its timeout")) from None

    def _start_call(self, coro: Coroutine[Any, Any, T]) -> _Call[T]:
        try:
            if self._thread is not None and threading.get_ident() == self._thread.ident:
                raise ClosedError("a blocking call on the I/O thread would wait for itself")
            loop = self._running_loop()
        except BaseException as error:
            coro.close()
            if isinstance(error, ClosedError):
                _not_stored(error)
            raise
        call = _Call(loop, coro)
        self._calls.add(call)
        call.future.add_done_callback(lambda _: self._calls.discard(call))
        try:
            loop.call_soon_threadsafe(call.start)
        except RuntimeError as error:  # the loop has ended meanwhile
            call.abandon()
            raise _not_stored(ClosedError("the client is closed")) from error
        return call

    # -- life cycle ----------------------------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        """Whether the thread was started and the loop is not closed."""
        return self._loop is not None and not self._closed

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    def start(self) -> None:
        """Start the thread, if it does not run; ClosedError when the loop is closed."""
        self._running_loop()

    def _running_loop(self) -> EventLoop:
        loop = self._loop
        if loop is not None and not self._closed:
            if loop.pid != os.getpid():
                # uWSGI forks behind Python's back: neither `threading` nor we were told, and nobody runs this loop.
                raise ClosedError(
                    "used before a fork of which Python was not told, and no thread of it lives on: "
                    "start uWSGI with --lazy-apps"
                )
            return loop
        with self._lock:
            if self._closed:
                raise ClosedError("the client is closed")
            if self._loop is None:
                _refuse_late_patching()
                selector = Selector()
                loop = EventLoop(selector)
                loop.set_exception_handler(partial(_log_error, self._logger))
                thread = Worker("s2pubsub-io", _run_loop, loop, self.at_end, self._calls)
                try:
                    thread.start()
                except BaseException:
                    loop.close()
                    raise
                self._thread, self._loop, self._selector = thread, loop, selector
            return self._loop

    def close(self, deadline: Deadline) -> bool:
        """Cancel what runs, end the thread within ``deadline`` and say whether it has ended. Idempotent."""
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return True
        loop.end_soon()
        ended = thread.finish(deadline)
        loop.pool.finish(Deadline.after(deadline.remaining_at_most(_CLEAN_UP)))
        return ended

    def signal_close(self) -> None:
        """Tell the thread to end without waiting: for finalizers."""
        self._closed = True
        if self._loop is not None:
            self._loop.end_soon()

    def _reset_in_child(self) -> None:
        closed, loop, selector = self._closed, self._loop, self._selector
        if loop is not None and selector is not None and not loop.is_closed():
            _abandoned.append((loop, self._thread, self._calls))
            with contextlib.suppress(OSError):  # out of descriptors; a second best, not a reason to stop here
                _let_go_of_descriptors(selector)
        self._reset()
        self._closed = closed


class _Call(Generic[T]):
    """A coroutine on its way through the loop, and the future that its caller waits for."""

    __slots__ = ("_begun", "_coro", "_loop", "_task", "future")

    def __init__(self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, T]) -> None:
        self.future: Future[T] = Future()
        self._coro = coro
        self._loop = loop
        self._task: asyncio.Task[None] | None = None
        self._begun = False

    def start(self) -> None:
        """On the loop: begin to run."""
        self._task = self._loop.create_task(self._run())

    async def _run(self) -> None:
        self._begun = True
        try:
            result = await self._coro
        except asyncio.CancelledError:
            self.future.cancel()
        except BaseException as error:  # noqa: BLE001  # the caller gets it, whatever it is
            self.future.set_exception(error)
        else:
            self.future.set_result(result)

    def cancel(self) -> None:
        """From any thread: have the coroutine cancelled, again and again until it has ended."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing runs
            self._loop.call_soon_threadsafe(self._cancel_on_loop)

    def _cancel_on_loop(self) -> None:
        # ``start`` was scheduled before, so there is a task.
        if self._task is None or self._task.done():
            return
        self._task.cancel()
        if self._begun:
            self._loop.call_later(_CANCEL_AGAIN, self._cancel_on_loop)
        else:
            self.abandon()  # a task that is cancelled before its first step never enters ``_run``

    def abandon(self) -> None:
        """Release the caller of a coroutine that will not begin or not end any more."""
        if not self._begun:
            self._coro.close()
        self.future.cancel()

    def unless_begun(self, error: E) -> E:
        """``error`` for the caller; it says that nothing was stored if the coroutine never began."""
        return _not_stored(error) if self.future.cancelled() and not self._begun else error


def _not_stored(error: E) -> E:
    error.outcome = "not_stored"
    return error


def _run_loop(loop: EventLoop, at_end: Callable[[], Coroutine[Any, Any, None]], calls: set[_Call[Any]]) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        _cancel_all(loop)
        loop.run_until_complete(_wind_up(loop, at_end))
        _cancel_all(loop)  # what arrived meanwhile
        asyncio.set_event_loop(None)
        loop.close()
        # A call that was scheduled after the last turn of the loop was never started, and nobody else will end it.
        for call in calls.copy():
            call.abandon()


async def _wind_up(loop: EventLoop, at_end: Callable[[], Coroutine[Any, Any, None]]) -> None:
    try:
        async with asyncio.timeout(_CLEAN_UP):
            await at_end()
    except Exception as error:  # noqa: BLE001  # nobody waits for it
        loop.call_exception_handler({"message": "connections were not closed", "exception": error})
    await loop.shutdown_asyncgens()
    await loop.abort_connections()


def _cancel_all(loop: EventLoop) -> None:
    for _ in range(5):
        tasks = asyncio.all_tasks(loop)
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks, timeout=_CANCEL_AGAIN))


async def _nothing() -> None:
    pass


def _log_error(logger: Log, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Errors that no caller waits for, such as a broken connection being closed, go to the log at debug level."""
    logger.debug("on the I/O loop: %s", context.get("message"), exc_info=context.get("exception"))


def _refuse_late_patching() -> None:
    """It works when everything was patched before this module was imported, and hangs otherwise."""
    if _patched_by_gevent() and not _patched_at_import:
        raise RuntimeError(
            "gevent patched the standard library after s2pubsub was imported; call gevent.monkey.patch_all() first"
        )


def _patched_by_gevent() -> bool:
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


_patched_at_import = _patched_by_gevent()


def _let_go_of_descriptors(selector: selectors.BaseSelector) -> None:
    """In a forked child: point the inherited sockets and the epoll at nothing.

    Otherwise the parent's connections would stay open at the server until the child ends, and a transport or loop
    collected here could take sockets out of the epoll that parent and child share. The numbers stay taken, so that
    the old objects cannot close a descriptor that somebody else has got since.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        descriptors = [key.fd for key in list(selector.get_map().values())]
        if hasattr(selector, "fileno"):
            descriptors.append(selector.fileno())
        for descriptor in descriptors:
            with contextlib.suppress(OSError):
                os.dup2(nothing, descriptor)
    finally:
        os.close(nothing)
