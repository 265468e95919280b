"""The stress script `exactly_once` as a test."""

from __future__ import annotations

import random

import pytest

from tests.servers import Server
from tests.stress import exactly_once


@pytest.mark.stress
@pytest.mark.slow
@pytest.mark.limit(900)
def test_exactly_once_under_dropped_acknowledgements_and_cuts(server: Server) -> None:
    """Over 200 rounds of random cuts and dropped acknowledgements no event is lost and none stored twice."""
    seed = random.randrange(2**32)
    print("seed", seed)
    print(exactly_once.run(server, 200, seed))
