"""Ending streams when their server wants to stop, so that a reload does not wait for viewers to leave.

gunicorn waits for its workers' responses (30 s), uvicorn without a limit. Neither tells the application, and a library
must not take over signal handlers. But the handler of SIGTERM is a method of the worker (or server) object, and that
says whether it goes on. While streams are open one thread looks at it.

Not for servers that cut their connections themselves (waitress, Werkzeug, Hypercorn, Daphne).
"""

from __future__ import annotations

import contextlib
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from s2pubsub.errors import ClosedError
from s2pubsub.runtime.fork import reset_in_child
from s2pubsub.runtime.worker import Worker

_INTERVAL = 0.25
"""Seconds between two looks."""


class Stoppable(Protocol):
    """A stream that can be told to end."""

    def stop(self) -> None: ...


def find_stopping() -> Callable[[], bool] | None:
    """A function that says whether this process's server is stopping; None for servers that do not say."""
    handler = signal.getsignal(signal.SIGTERM)
    server: Any = getattr(handler, "__self__", None)
    packages = {kind.__module__.partition(".")[0] for kind in type(server).__mro__}
    if "gunicorn" in packages and hasattr(server, "alive"):
        return lambda: not server.alive
    if "uvicorn" in packages and hasattr(server, "should_exit"):
        return lambda: bool(server.should_exit)
    return None


class ShutdownWatch:
    """Stops the streams it knows as soon as the server is stopping. Thread-safe; its thread lives while there are any.

    Args:
        find: gives the question to ask, when the first stream comes.
    """

    def __init__(self, find: Callable[[], Callable[[], bool] | None] = find_stopping) -> None:
        self._find = find
        self._reset_in_child()
        reset_in_child(self)

    def _reset_in_child(self) -> None:
        self._changed = threading.Condition()
        self._streams: weakref.WeakSet[Stoppable] = weakref.WeakSet()
        self._worker: Worker | None = None

    def add(self, stream: Stoppable) -> None:
        """Know ``stream`` from now on."""
        with self._changed:
            self._streams.add(stream)
            if self._worker is None and (stopping := self._find()) is not None:
                worker = Worker("s2pubsub-shutdown", self._watch, stopping)
                with contextlib.suppress(ClosedError):  # no thread to be had; the next stream tries again
                    worker.start()
                    self._worker = worker

    def discard(self, stream: Stoppable) -> None:
        """Forget ``stream``."""
        with self._changed:
            self._streams.discard(stream)
            if not self._streams:
                self._changed.notify_all()

    def _watch(self, stopping: Callable[[], bool]) -> None:
        while True:
            with self._changed:
                streams = list(self._streams)
                if not streams:
                    self._worker = None
                    return
            if stopping():
                for stream in streams:
                    stream.stop()
            del streams  # or this thread would keep dropped ones alive
            with self._changed:
                if self._streams:
                    self._changed.wait(_INTERVAL)


watch = ShutdownWatch()
"""The process's only one."""
