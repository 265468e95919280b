"""The embedded server answers raw requests, odd ones included, as the real server does."""

from __future__ import annotations

from pathlib import Path

import pytest

from s2pubsub.server import LocalServer
from tests.conformance.answers import comparable
from tests.conformance.control_cases import CONTROL
from tests.conformance.raw_case import Case
from tests.conformance.record_cases import RECORDS
from tests.server.raw import send
from tests.servers import LiteServer

pytestmark = [pytest.mark.embedded, pytest.mark.lite, pytest.mark.slow, pytest.mark.limit(180)]


def brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else text[:300] + "…"


@pytest.mark.parametrize("kept", [False, True], ids=["memory", "data"])
def test_answers_equal_those_of_the_real_server(tmp_path: Path, kept: bool) -> None:
    """Status, headers and body of every request of the tables are the same; only texts and times may differ."""
    differences: list[str] = []
    with LiteServer() as lite, LocalServer(data=tmp_path if kept else None) as embedded:
        cases: list[Case] = [case for group in CONTROL + RECORDS for case in group()]
        for case in cases:
            wanted, given = (
                comparable(case, send(server.port, case.method, case.target, case.headers, case.body))
                for server in (lite, embedded)
            )
            if wanted != given:
                differences.append(f"{brief(case)}\n  real:     {brief(wanted)}\n  embedded: {brief(given)}")
    assert len(cases) > 1000
    assert not differences, f"{len(differences)} of {len(cases)} answers differ:\n" + "\n".join(differences[:20])
