"""A future for work of which there is much: what waiting for it takes is made when somebody waits.

``concurrent.futures.Future`` makes a lock, a condition and two lists each, which takes as long as sending an event.
Here they are made at the first look. For everybody but who completes it, it is such a future, ``wait`` and
``as_completed`` included. Relies on the names of its parts, the same in every Python since 3.2.
"""

from __future__ import annotations

from concurrent.futures import Future, InvalidStateError
from concurrent.futures._base import FINISHED, PENDING
from threading import Condition
from typing import Any, TypeVar

T = TypeVar("T")


class _Made:
    """The condition of a future, made with what goes with it. Not a data descriptor: once made, it is not asked."""

    def __get__(self, future: Any, owner: type) -> Any:
        parts = future.__dict__
        # Each step leaves what another thread, or a signal handler in the midst of this one, has made before.
        parts.setdefault("_waiters", [])
        parts.setdefault("_done_callbacks", [])
        return parts.setdefault("_condition", Condition())


class Promise(Future[T]):
    """A future that one thread completes, once, and that cannot be cancelled."""

    _condition = _Made()
    _state = PENDING
    _result = None
    _exception = None

    def __init__(self) -> None:
        pass

    def end_in_child(self, error: BaseException) -> None:
        """In a forked child: fail, unless complete. Who waits for it or has it call back does so in the parent only."""
        for name in ("_condition", "_waiters", "_done_callbacks"):
            self.__dict__.pop(name, None)
        if self._state == PENDING:
            self.set_exception(error)

    def cancel(self) -> bool:
        """False: what was taken cannot be called back."""
        return False

    def set_result(self, result: T) -> None:
        """Complete it: see ``Future``."""
        self._finish(result, None)

    def set_exception(self, exception: BaseException | None) -> None:
        """Let it fail: see ``Future``."""
        self._finish(None, exception)

    def _finish(self, result: T | None, exception: BaseException | None) -> None:
        if self._state != PENDING:
            raise InvalidStateError(f"{self._state}: {self!r}")
        self._result = result
        self._exception = exception
        # Who looks makes the condition first and then reads the state: either we see the one or they see the other.
        self._state = FINISHED
        if "_condition" not in self.__dict__:
            return
        with self._condition:
            for waiter in self._waiters:
                (waiter.add_result if exception is None else waiter.add_exception)(self)
            self._condition.notify_all()
        self._invoke_callbacks()  # type: ignore[attr-defined]  # of Future
