"""What campaigns have done: each round is a line of JSON, and `table` makes markdown of them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

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


def table(rounds: list[dict[str, Any]]) -> str:
    """The rounds and the counts of each kind of fault, for each server, as markdown."""
    servers = sorted({told["server"] for told in rounds})
    of = {server: [told for told in rounds if told["server"] == server] for server in servers}
    faults = {server: sum((Counter(told["faults"]) for told in of[server]), Counter()) for server in servers}
    lines = ["| what | " + " | ".join(servers) + " |", "| --- |" + " ---: |" * len(servers)]
    lines.append("| **faults** | " + " | ".join(f"**{faults[server].total():,}**" for server in servers) + " |")
    problems = {server: sum(len(told["problems"]) for told in of[server]) for server in servers}
    lines.append("| **violations** | " + " | ".join(f"**{problems[server]}**" for server in servers) + " |")
    for key, name in _COUNTED.items():
        lines.append(f"| {name} | " + " | ".join(f"{sum(t[key] for t in of[s]):,}" for s in servers) + " |")
    lines += ["", "| fault | " + " | ".join(servers) + " |", "| --- |" + " ---: |" * len(servers)]
    for kind in sorted({kind for counted in faults.values() for kind in counted}):
        lines.append(f"| {kind} | " + " | ".join(f"{faults[server][kind]:,}" for server in servers) + " |")
    lines += ["", "| round | server | seed | plan | faults | violations | seconds |"]
    lines.append("| --- | --- | ---: | --- | ---: | ---: | ---: |")
    lines += [
        f"| {told['date']} | {told['server']} | {told['seed']} | {told['plan']} | {sum(told['faults'].values())} | "
        f"{len(told['problems'])} | {told['seconds']} |"
        for told in rounds
    ]
    return "\n".join(lines) + "\n"


_COUNTED = {
    "events": "events stored",
    "acknowledged": "acknowledged to a writer",
    "failed": "failed, with an outcome",
    "stored_twice": "stored twice, where at least once is promised",
    "seen": "seen by readers",
    "runs": "runs",
    "grants": "leases held",
}


def main() -> None:
    """``python -m tests.stress.campaign.report ROUNDS``: the table of a file of rounds."""
    rounds = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    print(table(rounds))


if __name__ == "__main__":
    main()
