"""The life of a lease token of ours, on the two clocks that leases go by. Relies on nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import attrs


def _boot_time() -> float:
    """Seconds on a clock that goes on while the machine sleeps, where there is one."""
    return time.clock_gettime(_BOOT_CLOCK) if _BOOT_CLOCK is not None else time.monotonic()


_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


@attrs.frozen
class Clock:
    """The two clocks that leases go by, in seconds.

    Attributes:
        wall: since 1970; other processes compare the tokens' expiries with theirs, so keep clocks synchronized.
        boot: never set back or forward; goes on while the machine sleeps.
    """

    wall: Callable[[], float] = time.time
    boot: Callable[[], float] = _boot_time

    def now_ms(self) -> int:
        """Epoch milliseconds."""
        return int(self.wall() * 1000)


SYSTEM_CLOCK = Clock()


@attrs.frozen
class Grant:
    """A token of ours. Its life counts from before it was sent and is over when one of the clocks says so.

    Attributes:
        owner: whose it is; empty for the empty token, which frees the lease.
        text: the token.
        expires_at_ms: its end on the wall clock, as in the token.
        ends_at: its end on the boot clock.
    """

    owner: str
    text: str
    expires_at_ms: int
    ends_at: float

    @property
    def expires_at(self) -> datetime:
        """The end on the wall clock, aware."""
        return expiry_date(self.expires_at_ms)

    def remaining(self, clock: Clock) -> float:
        """Seconds that are left on the clock that is further; 0 or less when it is over."""
        if clock.now_ms() >= self.expires_at_ms:
            return 0.0
        return min(self.expires_at_ms / 1000 - clock.wall(), self.ends_at - clock.boot())

    def is_over(self, clock: Clock) -> bool:
        """Whether its life is over."""
        return clock.now_ms() >= self.expires_at_ms or clock.boot() >= self.ends_at


def expiry_date(expires_at_ms: int) -> datetime:
    """The date of an expiry, aware; the last one there is for the years from 10000, which tokens can carry."""
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=expires_at_ms)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
