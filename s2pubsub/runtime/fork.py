"""What a forked child must forget.

A fork copies one thread. Locks that other threads held stay locked in the child, and the threads and
connections of the parent's handles do not exist there. Objects register here with ``reset_in_child``; in the
child each one's ``_reset_in_child()`` puts it into a state that works anew or says that it is dead.

Locks of others cannot be reset: OpenSSL's while it loads certificates, or an import's. What may hold one runs inside
``undisturbed()``, which a fork on another thread waits for; any number of threads may be inside at once.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401  # else the first name resolution imports it, and a fork meanwhile locks it for good
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Protocol

from s2pubsub.errors import ClosedError


class Forkable(Protocol):
    """Something that a forked child has to reset."""

    def _reset_in_child(self) -> None: ...


_registered: weakref.WeakSet[Forkable] = weakref.WeakSet()
_gate = threading.Condition()  # reentrant, since a signal handler may fork or make a client
_inside: list[int] = []  # the threads inside ``undisturbed()``, once for each time

_PATIENCE = 5.0
"""Seconds that a fork waits for what must not be disturbed; making an SDK client takes 0.03."""


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Let forks on other threads wait until the block ends, for a while."""
    thread = threading.get_ident()
    with _gate:  # which a fork holds
        _inside.append(thread)
    try:
        yield
    finally:
        with _gate:
            _inside.remove(thread)
            _gate.notify_all()


def reset_in_child(obj: Forkable) -> None:
    """Call ``obj._reset_in_child()`` in every child forked from now on, as long as ``obj`` lives."""
    with _gate:
        _registered.add(obj)


def inherited() -> ClosedError:
    """The error for using in a child what its parent has opened."""
    return ClosedError("opened before a fork; it works in the parent process only: open a new one")


def _before() -> None:
    # Held across the fork, so that nobody goes inside, and the child never sees the set in the middle of a change.
    _gate.acquire()
    me = threading.get_ident()
    _gate.wait_for(lambda: all(thread == me for thread in _inside), _PATIENCE)


def _after_in_parent() -> None:
    _gate.release()


def _after_in_child() -> None:
    global _gate, _inside
    _gate, _inside = threading.Condition(), [thread for thread in _inside if thread == threading.get_ident()]
    failure = None
    for obj in list(_registered):
        try:
            obj._reset_in_child()
        except Exception as error:  # noqa: BLE001  # the others must be reset all the same, else they hang
            failure = error
    if failure is not None:
        raise failure


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
