"""A few runs of the soak, so that the hour of it can be trusted to begin."""

from __future__ import annotations

import pytest

from tests.stress.soak import Soak
from tests.waiting import eventually


@pytest.mark.stress
@pytest.mark.slow
@pytest.mark.limit(120)
def test_a_few_runs_of_the_soak(pubsub) -> None:
    """Four runs are written, observed live, and read by a client that keeps coming back; what is read is what was
    written.
    """
    soak = Soak(pubsub, seed=4)
    try:
        for _ in range(4):
            soak.begin()
        eventually(lambda: soak.failures or soak.counts["observed"] == 4, 60)
        eventually(lambda: soak.failures or soak.counts["read by server-sent events"] == 4, 60)
    finally:
        soak.close()
    assert soak.failures == []
    assert soak.counts["came back"] > 0
    assert soak.published.take()[0] > 4 * 20
