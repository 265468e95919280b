"""The life of a lease token on its two clocks."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest

from s2pubsub.fence import MAX_EXPIRY_MS
from s2pubsub.lease_clock import SYSTEM_CLOCK, Clock, Grant, expiry_date
from tests.waiting import LONG


def at(wall: float, boot: float) -> Clock:
    return Clock(lambda: wall, lambda: boot)


GRANT = Grant(owner="w", text="t", expires_at_ms=1_000_000_500, ends_at=50.0)
END = 1_000_000.5


@pytest.mark.parametrize(
    ("wall", "boot", "left"),
    [
        (END - 10, 40.0, 10.0),
        (END - 3, 40.0, 3.0),
        (END - 10, 48.0, 2.0),
        (END - 0.5, 40.0, 0.5),
        (END - 10, 50.0, 0.0),
        (END - 10, 51.0, -1.0),
        (END, 40.0, 0.0),
        (END + 5, 40.0, 0.0),
    ],
)
def test_the_clock_that_is_further_counts(wall: float, boot: float, left: float) -> None:
    """A lease is over as soon as either clock says so: the wall clock may be set, and a machine may sleep."""
    clock = at(wall, boot)
    assert GRANT.remaining(clock) == pytest.approx(left)
    assert GRANT.is_over(clock) == (left <= 0)


def test_milliseconds() -> None:
    """Tokens carry whole milliseconds; the one that has begun counts."""
    assert at(1.2349, 0).now_ms() == 1234
    assert not GRANT.is_over(at(1_000_000.4999, 40.0))
    assert GRANT.remaining(at(1_000_000.4999, 40.0)) > 0


def test_the_last_moment() -> None:
    """Nothing is left of a lease that is over, where milliseconds are rounded up as well."""
    end = 1_000_000_011
    just_before = at(math.nextafter(end / 1000, 0), 40.0)
    assert just_before.wall() < end / 1000
    grant = Grant(owner="w", text="t", expires_at_ms=end, ends_at=50.0)
    assert grant.is_over(just_before)
    assert grant.remaining(just_before) == 0.0


def test_the_systems_clocks() -> None:
    """They are the time of day, and one that nobody sets and that goes on while the machine sleeps."""
    assert abs(SYSTEM_CLOCK.wall() - time.time()) < 5
    boot = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    before = time.clock_gettime(boot)
    assert before <= SYSTEM_CLOCK.boot() <= time.clock_gettime(boot)


SLEPT = ["unshare", "--map-root-user", "--time", "--boottime", "100000", "--fork"]
"""Runs a command on a machine that seems to have slept for 100000 s."""


def test_the_clock_of_a_machine_that_has_slept() -> None:
    """The time that it slept counts, which Python's monotonic clock leaves out."""
    if shutil.which(SLEPT[0]) is None or subprocess.run([*SLEPT, "true"], capture_output=True, timeout=LONG).returncode:
        pytest.skip("needs time namespaces")
    ahead = "import time, s2pubsub.lease_clock as leases; print(leases.SYSTEM_CLOCK.boot() - time.monotonic())"
    done = subprocess.run([*SLEPT, sys.executable, "-c", ahead], capture_output=True, timeout=LONG, check=True)
    assert float(done.stdout) > 90_000


def test_dates() -> None:
    """An expiry is an aware date; tokens can carry years that dates cannot: then it is the last one there is."""
    assert GRANT.expires_at == datetime(1970, 1, 12, 13, 46, 40, 500_000, tzinfo=UTC)
    assert expiry_date(0) == datetime(1970, 1, 1, tzinfo=UTC)
    last = expiry_date(MAX_EXPIRY_MS)
    assert (last.year, last.tzinfo) == (9999, UTC)
