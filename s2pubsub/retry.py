"""When to try again: schedules on tenacity, for sessions and for single publishes.

Readers and publishers try for ever, since the log is durable and an outage ends. A single publish is tried again only
after a failure which proves that nothing was stored; the ambiguous ones belong to the SDK's own retry policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tenacity import AsyncRetrying, RetryCallState, Retrying, retry_if_exception, retry_if_exception_type
from tenacity.nap import sleep_using_event
from tenacity.wait import wait_exponential, wait_random

from s2pubsub.errors import StoreError
from s2pubsub.runtime.deadline import NEVER, Deadline

if TYPE_CHECKING:
    from s2pubsub.runtime.worker import Stop

MISSING_STREAM_TRIES = 3
"""An append that creates its stream can be answered 404 when several race for it; after this many it is meant."""

_LONGEST = 60.0
"""Seconds, longer than any wait."""

_TOO_LATE = 0.1
"""Seconds before a deadline in which no further attempt is begun."""

_SESSION_WAITS = wait_exponential(multiplier=0.25, max=5) + wait_random(0, 0.25)


class Interrupted(Exception):
    """A session's connection was lost for ``reason``; it will go on where it was."""

    def __init__(self, reason: StoreError) -> None:
        super().__init__(str(reason))
        self.reason = reason


def reconnecting(stop: Stop, before_wait: Callable[[RetryCallState], None], deadline: Deadline = NEVER) -> Retrying:
    """A reader's schedule: waits of 0.25 s doubling to 5 s, each with up to 0.25 s of jitter.

    ``stop`` ends a wait; the attempt after it must look at ``stop`` first. Near ``deadline`` the waits become shorter,
    so that the last attempt still has time; then the last ``Interrupted`` is raised.

    Set ``attempt_number`` of the attempt's state to 1 once something was read: the next wait is the first one again.
    """
    return Retrying(
        retry=retry_if_exception_type(Interrupted),
        wait=lambda state: min(_SESSION_WAITS(state), deadline.remaining_at_most(_LONGEST) / 2),
        stop=lambda state: is_near(deadline),
        sleep=sleep_using_event(stop),  # type: ignore[arg-type]  # it calls nothing but wait()
        before_sleep=before_wait,
        reraise=True,
    )


def reopening(before_wait: Callable[[RetryCallState], None]) -> AsyncRetrying:
    """A publisher's schedule, on the I/O loop: that of ``reconnecting``, for ever. Cancel the task to end it."""
    return AsyncRetrying(retry=retry_if_exception_type(Interrupted), wait=_SESSION_WAITS, before_sleep=before_wait)


def is_near(deadline: Deadline) -> bool:
    """Whether ``deadline`` is so near that a further attempt would only leave it open what was stored."""
    return deadline.remaining_at_most(_LONGEST) < _TOO_LATE


def republishing(give_up: Callable[[], bool]) -> AsyncRetrying:
    """A publish's schedule: waits of 0.05 s doubling to 1 s, while nothing was stored and ``give_up()`` is False.

    A server that asks for a longer wait gets it.
    """
    waits = wait_exponential(multiplier=0.05, max=1) + wait_random(0, 0.05)

    def wait(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        return max(waits(state), error.retry_after if isinstance(error, StoreError) else 0.0)

    def ended(state: RetryCallState) -> bool:
        error = state.outcome.exception() if state.outcome is not None else None
        missing = isinstance(error, StoreError) and error.status == 404
        return give_up() or (missing and state.attempt_number >= MISSING_STREAM_TRIES)

    return AsyncRetrying(
        retry=retry_if_exception(proves_nothing_stored),
        wait=wait,
        stop=ended,
        reraise=True,
    )


def proves_nothing_stored(error: BaseException) -> bool:
    """Whether ``error``, raised by an append, proves that the server stored nothing and may accept it later."""
    return isinstance(error, StoreError) and error.outcome == "not_stored" and error.kind in ("outage", "gone")
