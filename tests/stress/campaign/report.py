"""What campaigns have done: each round is a line of JSON, and `table` makes markdown of them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.stress.campaign.campaign import Outcome


def write_report(path: str, outcome: Outcome) -> None:
    """Add a round to ``path`` (JSON lines), from which `table` makes the report."""
    v = outcome.verdict
    told = {
        "server": outcome.server,
        "plan": outcome.plan,
        "seed": outcome.seed,
        "date": outcome.date,
        "seconds": round(outcome.seconds),
        "faults": dict(outcome.faults),
        "problems": outcome.problems,
        "events": v.events,
        "acknowledged": v.acknowledged,
        "failed": v.failed,
        "stored_twice": v.stored_twice,
        "seen": v.seen,
        "runs": v.runs,
        "grants": v.grants,
    }
    with Path(path).open("a") as file:
        file.write(json.dumps(told) + "\n")
