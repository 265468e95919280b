"""One budget of time for one public call, made at its start and passed inward."""

from __future__ import annotations

import math
import time
from typing import Self

import attrs


def check_timeout(timeout: float | None, name: str = "timeout") -> float | None:
    """Return ``timeout`` in seconds if it is a number >= 0 or None; raise TypeError or ValueError that names it."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"{name} must be a number of seconds or None, not {timeout!r}")
    if math.isnan(timeout) or timeout < 0:
        raise ValueError(f"{name} must not be negative, got {timeout!r}")
    return min(float(timeout), _FOREVER)


_FOREVER = 3.0e8
"""Seconds (ten years): the longest wait that every platform's lock accepts is longer, ``inf`` is not accepted."""


@attrs.frozen
class Deadline:
    """A point on the monotonic clock, or None for never."""

    at: float | None

    @classmethod
    def after(cls, timeout: float | None) -> Self:
        """The deadline ``timeout`` seconds from now; None waits for ever, 0 polls."""
        checked = check_timeout(timeout)
        return cls(None if checked is None else time.monotonic() + checked)

    def remaining(self) -> float | None:
        """Seconds left, never negative; None when there is no limit."""
        return None if self.at is None else max(0.0, self.at - time.monotonic())

    def remaining_at_most(self, limit: float) -> float:
        """Seconds left, but not more than ``limit``."""
        return limit if self.at is None else max(0.0, min(limit, self.at - time.monotonic()))

    @property
    def expired(self) -> bool:
        """Whether no time is left."""
        return self.at is not None and time.monotonic() >= self.at


NEVER = Deadline(None)
"""No limit."""
