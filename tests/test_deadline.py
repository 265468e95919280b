"""One budget of time for one call."""

from __future__ import annotations

import math
import threading

import pytest

from s2pubsub.runtime.deadline import NEVER, Deadline, check_timeout
from tests.waiting import eventually

POLL = Deadline.after(0)


# Deadlines.


@pytest.mark.parametrize("wrong", [True, False, "1", b"1", [], object()])
def test_a_timeout_is_a_number_or_none(wrong: object) -> None:
    """What is no number of seconds is a TypeError which names the argument."""
    with pytest.raises(TypeError, match="max_wait"):
        check_timeout(wrong, "max_wait")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [-0.001, -1, -math.inf, math.nan])
def test_a_timeout_is_not_negative(wrong: float) -> None:
    """Negative timeouts and NaN are ValueErrors which name the argument."""
    with pytest.raises(ValueError, match="timeout"):
        Deadline.after(wrong)


@pytest.mark.parametrize("endless", [math.inf, 1e300, 10**30])
def test_an_endless_timeout_can_be_waited_for(endless: float) -> None:
    """Infinity and absurdly large timeouts are accepted by every lock."""
    remaining = Deadline.after(endless).remaining()
    assert remaining is not None
    lock = threading.Lock()
    assert lock.acquire(timeout=remaining)
    assert not NEVER.expired
    assert NEVER.remaining() is None
    assert NEVER.remaining_at_most(3.0) == 3.0


def test_a_deadline_only_shrinks() -> None:
    """Time left never grows nor becomes negative, and 0 is expired at once."""
    deadline = Deadline.after(0.02)
    first = deadline.remaining()
    assert first is not None
    assert 0 < first <= 0.02
    assert deadline.remaining_at_most(0.001) <= 0.001
    eventually(lambda: deadline.expired)
    assert deadline.remaining() == 0.0
    assert deadline.remaining_at_most(5) == 0.0
    assert POLL.expired
