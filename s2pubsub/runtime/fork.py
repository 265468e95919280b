"""What a forked child must forget.

A fork copies one thread. Locks that other threads held stay locked in the child, and the threads and
connections of the parent's handles do not exist there. Objects register here with ``reset_in_child``; in the
child each one's ``_reset_in_child()`` puts it into a state that works anew or says that it is dead.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

from s2pubsub.errors import ClosedError


class Forkable(Protocol):
    """Something that a forked child has to reset."""

    def _reset_in_child(self) -> None: ...


_registered: weakref.WeakSet[Forkable] = weakref.WeakSet()
_lock = threading.RLock()  # reentrant, since a signal handler may fork or make a client


def reset_in_child(obj: Forkable) -> None:
    """Call ``obj._reset_in_child()`` in every child forked from now on, as long as ``obj`` lives."""
    with _lock:
        _registered.add(obj)


def inherited() -> ClosedError:
    """The error for using in a child what its parent has opened."""
    return ClosedError("opened before a fork; it works in the parent process only: open a new one")


def _after_in_child() -> None:
    global _lock
    _lock = threading.RLock()
    failure = None
    for obj in list(_registered):
        try:
            obj._reset_in_child()
        except Exception as error:  # noqa: BLE001  # the others must be reset all the same, else they hang
            failure = error
    if failure is not None:
        raise failure


if hasattr(os, "register_at_fork"):
    # The lock is held across the fork, so that the child never sees the set in the middle of a change.
    os.register_at_fork(
        before=lambda: _lock.acquire(), after_in_parent=lambda: _lock.release(), after_in_child=_after_in_child
    )
