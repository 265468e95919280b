"""What all benchmarks share: rows with a bound, medians, the machine they ran on, and the files they write.

A figure is a ratio against something measured in the same run (the raw SDK, a peer), since the machines are shared
and absolute times vary. ``bound`` is what the ratio has to keep; None only reports.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import attrs

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("s2pubsub", "s2-sdk", "attrs", "cattrs", "tenacity", "h2")


@attrs.frozen
class Row:
    """One figure. ``at_most`` or ``at_least`` bound ``ratio``; without a peer they bound ``ours``."""

    name: str
    ours: float
    unit: str
    peer: float | None = None
    peer_name: str = ""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def ratio(self) -> float | None:
        """Ours divided by the peer's."""
        return None if self.peer is None else self.ours / self.peer

    @property
    def holds(self) -> bool | None:
        """Whether the bound is kept; None without a bound."""
        value = self.ratio if self.ratio is not None else self.ours
        if self.at_most is not None:
            return value <= self.at_most
        if self.at_least is not None:
            return value >= self.at_least
        return None


def machine() -> dict[str, str]:
    """Date, processor, Python and package versions."""
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cores": str(os.cpu_count()),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
    }
    for name in PACKAGES:
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            facts[name] = "checkout"
    return facts


def table(rows: Sequence[Row]) -> str:
    """The rows as a markdown table."""
    lines = ["| figure | ours | beside it | ratio | bound | holds |", "| --- | ---: | ---: | ---: | --- | --- |"]
    for row in rows:
        peer = "" if row.peer is None else f"{row.peer:,.4g} ({row.peer_name})"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        bound = f"≤ {row.at_most:g}" if row.at_most is not None else f"≥ {row.at_least:g}" if row.at_least else ""
        holds = {True: "yes", False: "NO", None: ""}[row.holds]
        lines.append(f"| {row.name} | {row.ours:,.4g} {row.unit} | {peer} | {ratio} | {bound} | {holds} |")
    return "\n".join(lines)


def write(name: str, title: str, rows: Sequence[Row]) -> None:
    """Write ``results/<name>.md`` and ``.json`` and print the table."""
    RESULTS.mkdir(exist_ok=True)
    facts = machine()
    head = ", ".join(f"{key} {value}" if key != "date" else value for key, value in facts.items())
    text = f"# {title}\n\n{head}\n\n{table(rows)}\n"
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
    figures = [{**attrs.asdict(row), "ratio": row.ratio, "holds": row.holds} for row in rows]
    document = {"title": title, "machine": facts, "rows": figures}
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(table(rows))


def progress(text: str) -> None:
    """Say on stderr what is being measured."""
    print(f"… {text}", file=sys.stderr, flush=True)


def percentile(samples: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of the samples lie."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def seconds(action: Callable[[], object]) -> float:
    """How long ``action`` takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def median(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


def resident_kib() -> int:
    """Resident memory of this process in KiB (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024
