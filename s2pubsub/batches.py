"""Lists of events from a subscription that hands them out one at a time: ``Subscription.batches``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from s2pubsub.event import Event
from s2pubsub.runtime.deadline import Deadline, check_timeout


def in_batches(
    events: Iterable[Event], take: Callable[[Deadline], Event], ended: type[Exception], max_size: int, max_wait: float
) -> Iterator[list[Event]]:
    """Lists of at most ``max_size`` events, each given ``max_wait`` seconds after its first event at the latest.

    Args:
        events: gives the first event of each list, and the end.
        take: gives the others, up to a deadline; raises TimeoutError, or ``ended`` where ``events`` would end.
        ended: see ``take``.
        max_size: at least 1.
        max_wait: seconds.

    Raises:
        TypeError, ValueError: at the call; ``max_size`` or ``max_wait`` does not fit.
    """
    if isinstance(max_size, bool) or not isinstance(max_size, int):
        raise TypeError(f"max_size must be an int, not {max_size!r}")
    if max_size < 1:
        raise ValueError(f"max_size must be at least 1, got {max_size}")
    check_timeout(max_wait, "max_wait")
    return _gather(events, take, ended, max_size, max_wait)


def _gather(
    events: Iterable[Event], take: Callable[[Deadline], Event], ended: type[Exception], max_size: int, max_wait: float
) -> Iterator[list[Event]]:
    for first in events:
        batch = [first]
        deadline = Deadline.after(max_wait)
        while len(batch) < max_size:
            try:
                batch.append(take(deadline))
            except (TimeoutError, ended):
                break  # an end is met again by the next round
        yield batch
