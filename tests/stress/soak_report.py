"""A soak's minutes, its verdict, and the files they are written to. Not for: measuring (`soak`, `meter`)."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

import attrs

from benchmarks.measuring import RESULTS, machine
from tests.stress.meter import SIGMAS, Footprint, Slope, fit

if TYPE_CHECKING:
    from tests.stress.soak import Outcome

_COLUMNS = {
    "minute": "minute",
    "runs": "runs",
    "threads": "threads",
    "descriptors": "descr.",
    "rss": "RSS KiB",
    "allocated": "malloc KiB",
    "objects": "objects",
    "start_p50": "start p50",
    "start_p99": "p99",
    "publish_p50": "publish p50",
    "publish_p99": "p99 ms",
    "delivery_p50": "delivery p50",
    "delivery_p99": "p99 ms",
    "delivered": "delivered",
    "failures": "failures",
}


@attrs.frozen(kw_only=True)
class Minute:
    """What one minute was like: means over its seconds, latencies in milliseconds."""

    minute: int
    threads: float
    descriptors: float
    rss: float
    allocated: float
    objects: int
    published: int
    delivered: int
    publish_p50: float
    publish_p99: float
    delivery_p50: float
    delivery_p99: float
    start_p50: float
    start_p99: float
    runs: int
    failures: int

    @staticmethod
    def header() -> str:
        names = list(_COLUMNS.values())
        return f"| {' | '.join(names)} |\n|{' ---: |' * len(names)}"

    def line(self) -> str:
        cells = [getattr(self, name) for name in _COLUMNS]
        return "| " + " | ".join(f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in cells) + " |"


_FLAT = {
    "threads": "threads",
    "descriptors": "descriptors",
    "rss": "resident memory, KiB",
    "allocated": "allocated by malloc, KiB",
    "publish_p99": "publish p99, ms",
    "delivery_p99": "delivery p99, ms",
    "start_p99": "start of a run p99, ms",
}
"""What must not rise."""


def slopes(minutes: list[Minute], warm_up: int) -> dict[str, Slope]:
    """The slope per minute of all that must not rise, after ``warm_up`` minutes."""
    counted = minutes[warm_up:] if len(minutes) - warm_up >= 4 else minutes
    if len(counted) < 4:
        return {}
    return {name: fit([m.minute for m in counted], [getattr(m, name) for m in counted]) for name in _FLAT}


def write_report(outcome: Outcome, before: Footprint, options: argparse.Namespace, *, keep: bool) -> tuple[str, bool]:
    """The report as markdown and whether all is well; kept as ``soak.md`` and ``soak.json`` too."""
    found = slopes(outcome.minutes, options.warm_up)
    good = not outcome.failures and not any(slope.rises for slope in found.values())
    facts = machine()
    lines = [
        "# Soak",
        "",
        f"`python -m tests.stress.soak --minutes {options.minutes} --server {options.server}`, seed {options.seed}. "
        + ", ".join(f"{name} {value}" for name, value in facts.items())
        + ".",
        "",
        f"The HTTP/2 library below the SDK was told to remember {options.streams_remembered} closed streams of a "
        "connection; by itself it remembers 65,536, which grow to 7.5 MB a connection over hours. "
        + (
            "malloc was told to use one heap and no caches of threads, which fill for hours and are bounded."
            if options.malloc == "plain"
            else "malloc worked as it does by itself: with caches of threads, which fill for hours."
        ),
        "",
        f"Verdict: {'nothing rises' if good else 'NOT GOOD'}; {len(outcome.failures)} failures. Slopes are by least "
        f"squares over the minutes after the first {options.warm_up}; one within {SIGMAS:g} standard errors is none.",
        "",
        "| what | mean | spread | slope per minute | its standard error | rises |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    lines += [
        f"| {_FLAT[name]} | {s.mean:.1f} | {s.spread:.2f} | {s.per_unit:+.4f} | {s.error:.4f} | "
        f"{'YES' if s.rises else 'no'} |"
        for name, s in found.items()
    ]
    counts = ", ".join(f"{name} {count}" for name, count in sorted(outcome.counts.items()))
    lines += [
        "",
        f"Done: {counts}.",
        "",
        f"Before and after, all closed: threads {before.threads} and {outcome.left.threads}, descriptors "
        f"{before.descriptors} and {outcome.left.descriptors}, resident memory {before.rss:.0f} and "
        f"{outcome.left.rss:.0f} KiB, allocated by malloc {before.allocated:.0f} and {outcome.left.allocated:.0f} KiB.",
        *(["", "Failures:", "", *(f"- {failure}" for failure in outcome.failures)] if outcome.failures else []),
        "",
        Minute.header(),
        *(minute.line() for minute in outcome.minutes),
        "",
    ]
    text = "\n".join(lines)
    if keep:
        (RESULTS / "soak.md").write_text(text)
        told = {
            "machine": facts,
            "seed": options.seed,
            "server": options.server,
            "warm_up": options.warm_up,
            "slopes": {name: attrs.asdict(slope) for name, slope in found.items()},
            "counts": dict(outcome.counts),
            "failures": outcome.failures,
            "minutes": [attrs.asdict(minute) for minute in outcome.minutes],
        }
        (RESULTS / "soak.json").write_text(json.dumps(told, indent=1) + "\n")
    return text, good
