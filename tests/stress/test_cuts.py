from __future__ import annotations

import random

import pytest

from tests.stress import cuts


@pytest.mark.stress
@pytest.mark.lite
@pytest.mark.limit(120)
def test_subscribers_see_exactly_the_log_over_random_cuts():
    """C02, C03: ten subscribers read one topic through random resets and ends of stream, and see each index once."""
    counted = cuts.run(cuts=40, events=4000, seed=random.SystemRandom().randrange(10**6))
    assert counted["cuts"] >= 40
    assert counted["reconnects"] >= 20
