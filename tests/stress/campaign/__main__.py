"""``python -m tests.stress.campaign [--faults 1000] [--seed N] [--server lite|embedded|both] [--plan small|full]``.

Rounds of ``--round`` faults each, every one with a server, a basin and processes of its own, until there are enough
faults. A violation ends it with the exit code 1 and leaves the round's folder for a look.
"""

from __future__ import annotations

import argparse
import random
import sys

from tests.stress.campaign.campaign import Campaign
from tests.stress.campaign.report import write_report


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.campaign", description=__doc__.split("\n\n")[1])
    parser.add_argument("--faults", type=int, default=1000, help="for each server")
    parser.add_argument("--round", type=int, default=1000, help="faults of one round")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--server", choices=("lite", "embedded", "both"), default="both")
    parser.add_argument("--plan", choices=("small", "full"), default="full")
    parser.add_argument("--pace", type=float, default=0.25, help="seconds between two events of one writer")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two faults on one process's wire")
    parser.add_argument("--report", help="file that a table of what was done is appended to")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    good = True
    for kind in ("lite", "embedded") if options.server == "both" else (options.server,):
        done, number = 0, 0
        while done < options.faults and good:
            wanted = min(options.round, options.faults - done)
            seed = options.seed + number
            outcome = Campaign(kind, options.plan, seed, wanted, pace=options.pace, every=options.every).run()
            print(outcome.summary(), flush=True)
            if options.report:
                write_report(options.report, outcome)
            done += outcome.faults.total()
            number += 1
            good = not outcome.problems
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
