"""What a long run is watched with: latencies in bounded memory, facts about this process, and slopes with their noise.

Relies on /proc, and on glibc for what its malloc has handed out. Not for: deciding what to measure (`soak`).
"""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import statistics
import threading
from array import array
from collections.abc import Sequence
from typing import Any

import attrs

_LEAST = 1e-5
_STEP = 1.02
_BUCKETS = 900
"""Buckets grow by 2 %, from 10 µs to ten minutes."""

SIGMAS = 3.0
"""A slope within so many of its standard errors is none.

Seven quantities are judged at once, and minutes resemble their neighbours. In simulations of 50 flat minutes whose
neighbours are correlated by 0.6, 5 of 100 seem to rise by two standard errors, which fails one soak in three; 1 of 100
by three, which fails one in fourteen. Three are a rise by at least 1.5 times the spread over the 50 minutes.
"""


class Latencies:
    """A histogram whose size never changes, so that measuring does not look like a leak. Thread-safe."""

    def __init__(self) -> None:
        self._counts = array("L", bytes(8 * _BUCKETS))
        self._lock = threading.Lock()

    def add(self, seconds: float) -> None:
        bucket = int(math.log(max(seconds, _LEAST) / _LEAST) / math.log(_STEP))
        with self._lock:
            self._counts[min(bucket, _BUCKETS - 1)] += 1

    def take(self, *shares: float) -> tuple[int, list[float]]:
        """How many there were and the seconds at these shares, to within 2 %; begins anew."""
        with self._lock:
            counts, self._counts = self._counts, array("L", bytes(8 * _BUCKETS))
        total = sum(counts)
        return total, [_at(counts, share * total) for share in shares]


def _at(counts: Sequence[int], rank: float) -> float:
    seen = 0
    for bucket, count in enumerate(counts):
        seen += count
        if count and seen >= rank:
            return float(_LEAST * _STEP ** (bucket + 1))
    return math.nan


@attrs.frozen
class Footprint:
    """The process at a moment: threads as the system counts them, open descriptors, memory in KiB.

    ``rss`` is what is resident; ``allocated`` what malloc has handed out and not got back (0 without glibc): it counts
    what lies in the caches of threads, and not Python's objects of up to 512 bytes, which malloc does not know.
    """

    threads: int
    descriptors: int
    rss: float
    allocated: float

    @classmethod
    def now(cls) -> Footprint:
        with open("/proc/self/statm") as statm:
            pages = int(statm.read().split()[1])
        # The listing itself holds one descriptor.
        return cls(
            len(os.listdir("/proc/self/task")),
            len(os.listdir("/proc/self/fd")) - 1,
            pages * os.sysconf("SC_PAGE_SIZE") / 1024,
            _allocated() / 1024,
        )


class _Malloc(ctypes.Structure):
    """What glibc's ``mallinfo2`` returns."""

    # What is not asked for has the names of its place.
    _fields_ = [
        (name, ctypes.c_size_t) for name in ("arena", "f1", "f2", "f3", "mapped", "f5", "f6", "handed_out", "f8", "f9")
    ]


def _allocated() -> int:
    """Bytes that malloc has handed out, on all its heaps and in mappings of their own."""
    ask: Any = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return 0
    ask.restype = _Malloc
    told = ask()
    return int(told.handed_out + told.mapped)


@attrs.frozen
class Slope:
    """A straight line through measurements by least squares.

    Attributes:
        per_unit: rise per unit of time.
        error: standard error of it, widened where neighbouring measurements resemble each other.
        mean, spread: of the measurements; ``spread`` is the standard deviation around the line.
    """

    per_unit: float
    error: float
    mean: float
    spread: float

    @property
    def none(self) -> bool:
        """Whether the line is flat within its noise."""
        return abs(self.per_unit) <= SIGMAS * self.error

    @property
    def rises(self) -> bool:
        """Whether it rises by more than its noise."""
        return self.per_unit > SIGMAS * self.error


def fit(times: Sequence[float], values: Sequence[float]) -> Slope:
    """The line through ``values``; at least four of them."""
    count = len(values)
    if count < 4 or len(times) != count:
        raise ValueError(f"a slope with its noise needs four measurements, not {count}")
    middle, mean = statistics.fmean(times), statistics.fmean(values)
    square = sum((at - middle) ** 2 for at in times)
    rise = sum((at - middle) * (value - mean) for at, value in zip(times, values, strict=True)) / square
    rest = [value - mean - rise * (at - middle) for at, value in zip(times, values, strict=True)]
    sum_squares = sum(r * r for r in rest)
    variance = sum_squares / (count - 2)
    # Each measurement that is like the one before it tells less: the usual widening for a first-order resemblance.
    alike = sum(a * b for a, b in itertools.pairwise(rest)) / sum_squares if sum_squares else 0.0
    alike = min(0.9, max(0.0, alike))
    error = math.sqrt(variance / square * (1 + alike) / (1 - alike))
    return Slope(rise, error, mean, math.sqrt(variance))
