"""A small fault campaign, with another seed each time."""

from __future__ import annotations

import random

import pytest

from tests.stress.campaign.campaign import Campaign

FAULTS = 60


@pytest.mark.stress
@pytest.mark.slow
@pytest.mark.limit(400)
@pytest.mark.parametrize(
    "kind", [pytest.param("lite", marks=pytest.mark.lite), pytest.param("embedded", marks=pytest.mark.embedded)]
)
def test_no_violation_under_faults_of_wires_processes_and_servers(kind: str) -> None:
    """Over 60 faults nothing acknowledged is lost, nothing is doubled where that is promised, order is kept, readers
    see exactly the log, leases are exclusive, and runs end once.
    """
    seed = random.SystemRandom().randrange(10**6)
    outcome = Campaign(kind, "small", seed, FAULTS, every=0.5).run()
    print(outcome.summary())
    assert not outcome.problems
    assert outcome.faults.total() >= FAULTS
    assert outcome.verdict.acknowledged > 50
    assert outcome.verdict.seen > 50
