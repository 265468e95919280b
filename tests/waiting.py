"""How tests wait: for facts, never for time, and never without a limit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = float(os.environ.get("TEST_PATIENCE", "1"))
"""What the limits of tests are multiplied by: for slow machines, and for runs that measure coverage."""

LONG = 10.0 * PATIENCE
"""Seconds that something is given which should happen at once; only a failing test waits so long."""


def eventually(predicate: Callable[[], T], timeout: float = LONG, message: str = "") -> T:
    """Ask ``predicate`` until it gives something true, and return that. AssertionError after ``timeout`` seconds.

    For facts that nothing signals; where there is an event to wait on, wait on that.
    """
    deadline = time.monotonic() + timeout
    pause = 0.002
    while True:
        if found := predicate():
            return found
        if time.monotonic() >= deadline:
            raise AssertionError(message or f"not within {timeout} s: {predicate}")
        time.sleep(pause)
        pause = min(0.05, pause * 1.5)
