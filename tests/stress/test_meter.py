"""What a soak measures with."""

from __future__ import annotations

import os
import random

import pytest

from tests.stress.meter import Footprint, Latencies, fit


def test_a_leak_is_told_from_noise() -> None:
    """A slope that is small against its noise is none; a steady rise is found under the same noise."""
    chance = random.Random(7)
    noise = [chance.gauss(0, 50) for _ in range(60)]
    flat = fit(range(60), [60_000 + n for n in noise])
    assert flat.none
    rising = fit(range(60), [60_000 + 10 * minute + n for minute, n in enumerate(noise)])
    assert rising.rises
    assert rising.per_unit == pytest.approx(10, abs=2)


def test_neighbours_that_resemble_each_other_tell_less() -> None:
    """Steps that last for a while have a wider error than independent noise of the same size."""
    chance = random.Random(7)
    steps = [chance.gauss(0, 1) for _ in range(12)]
    independent = [chance.gauss(0, 1) for _ in range(60)]
    assert fit(range(60), [step for step in steps for _ in range(5)]).error > 1.5 * fit(range(60), independent).error


def test_a_slope_needs_measurements() -> None:
    """Three points have no noise that could be told."""
    with pytest.raises(ValueError, match="four"):
        fit([1, 2, 3], [1, 2, 3])


def test_latencies_are_kept_to_two_percent() -> None:
    """Shares of a thousand latencies come back to within the histogram's steps, and it begins anew."""
    latencies = Latencies()
    for number in range(1, 1001):
        latencies.add(number / 1000)
    count, (half, most) = latencies.take(0.5, 0.99)
    assert count == 1000
    assert half == pytest.approx(0.5, rel=0.03)
    assert most == pytest.approx(0.99, rel=0.03)
    assert latencies.take()[0] == 0


def test_a_footprint_counts_what_malloc_has_handed_out() -> None:
    """Two thousand blocks of a kilobyte are two megabytes, and they are given back."""
    before = Footprint.now().allocated
    blocks = [bytes(1000) for _ in range(2000)]
    assert Footprint.now().allocated - before == pytest.approx(2000, rel=0.1)
    del blocks
    assert Footprint.now().allocated - before == pytest.approx(0, abs=200)


def test_a_footprint_counts_descriptors() -> None:
    """Three more open files are three more descriptors."""
    before = Footprint.now()
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    assert Footprint.now().descriptors == before.descriptors + 3
    for file in files:
        os.close(file)
