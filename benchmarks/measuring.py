"""What all benchmarks share: rows with a bound, how they are run and written, medians, memory, processes of their own.

A figure is a ratio against something measured in the same run (the raw SDK, a peer), since the machines are shared
and absolute times vary. A bound is what the ratio has to keep; without one a figure is only reported. Not for: what
is measured (`benchmarks.ours`, `benchmarks.peers` and each ``bench_…``).
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import platform
import re
import statistics
import subprocess
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import attrs

T = TypeVar("T")

QUICK = "--quick" in sys.argv
"""One round of everything with few events: shows that all of it works; the figures mean little."""

RESULTS = Path(__file__).parent / "results" / ("quick" if QUICK else "")
PACKAGES = ("s2pubsub", "s2-sdk", "attrs", "cattrs", "tenacity", "h2", "msgspec")
CHILD_LIMIT = 240.0

versions: dict[str, str] = {}
"""Of the servers and packages that this process has measured; whoever starts one adds it."""

_began = time.monotonic()


class Missing(Exception):
    """Something that is measured, or measured against, is not installed; the text says how to get it."""


@attrs.frozen
class Row:
    """One figure. ``at_most`` or ``at_least`` bound ``ratio``; without a peer, or if ``absolute``, they bound ``ours``.

    Rows with the same ``line`` are points of one line in the topic's picture, at ``x``, which ``x_name`` says.
    """

    name: str
    ours: float
    unit: str
    peer: float | None = None
    peer_name: str = ""
    at_most: float | None = None
    at_least: float | None = None
    absolute: bool = False
    line: str = ""
    x: float = 0
    x_name: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours divided by the peer's."""
        return None if self.peer is None else self.ours / self.peer

    @property
    def holds(self) -> bool | None:
        """Whether the bound is kept; None without a bound."""
        value = self.ours if self.ratio is None or self.absolute else self.ratio
        if self.at_most is not None:
            return value <= self.at_most
        if self.at_least is not None:
            return value >= self.at_least
        return None

    @property
    def bound(self) -> str:
        """The bound as text; nothing without one."""
        unit = f" {self.unit}" if self.ratio is None or self.absolute else ""
        if self.at_most is not None:
            return f"≤ {self.at_most:g}{unit}"
        return "" if self.at_least is None else f"≥ {self.at_least:g}{unit}"


class Pairs:
    """Figures of ours and of a peer, by name; medians count."""

    def __init__(self, peer_name: str) -> None:
        self._peer_name = peer_name
        self._found: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))

    def add(self, name: str, ours: float, theirs: float) -> None:
        gc.collect()
        self._found[name][0].append(ours)
        self._found[name][1].append(theirs)

    def row(self, name: str, unit: str, what: str = "", **bound: float) -> Row:
        ours, theirs = self._found[name]
        return Row(name, median(ours), unit, median(theirs), f"{self._peer_name}{what}", **bound)


Parts = Mapping[str, Callable[[], Iterable[Row]]]


def main(name: str, title: str, parts: Parts) -> int:
    """The command line of a benchmark: measure the parts that it names, or all, and write the results.

    What is missing is said and left out. Returns 1 if a bound does not hold or a part has failed.
    """
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("parts", nargs="*", help=f"what to measure, of: {', '.join(parts)}")
    parser.add_argument("--quick", action="store_true", help="one round with few events, into results/quick")
    chosen = parser.parse_args().parts
    if unknown := set(chosen) - set(parts):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    rows: list[Row] = []
    problems: dict[str, list[str]] = defaultdict(list)
    for part in chosen or parts:
        progress(f"{name}: {part}")
        try:
            rows += parts[part]()
        except (Missing, ImportError) as problem:
            problems[f"left out, {problem}"].append(part)
        except Exception as error:
            traceback.print_exc()
            reason = str(error).partition("\n")[0]  # what follows may be a trace, with this machine's paths
            problems[f"failed, {type(error).__name__}: {reason}"].append(part)
    missing = [f"{', '.join(those)}: {problem}" for problem, those in problems.items()]
    for line in missing:
        progress(f"{name}: {line}")
    write("-".join((name, *chosen)), title, rows, missing)
    failed = any(problem.startswith("failed") for problem in problems)
    return 1 if failed or any(row.holds is False for row in rows) else 0


def machine() -> dict[str, str]:
    """Date, processor, how busy it is, and the versions of Python, packages and servers."""
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cores": str(os.cpu_count()),
        "load": f"{os.getloadavg()[0]:.1f}",
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
    }
    for name in PACKAGES:
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            facts[name] = "checkout" if name == "s2pubsub" else "absent"
    return {**facts, **versions}


def note_version(name: str, command: Sequence[str]) -> None:
    """Add to ``versions`` what a program says when it is asked for its version."""
    shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = re.search(r"\d+\.\d+\.\d+", shown)
    versions[name] = found[0] if found else "unknown"


def described(facts: Mapping[str, str]) -> str:
    """``machine()`` as a line of text."""
    return ", ".join(text if name == "date" else f"{name} {text}" for name, text in facts.items())


def table(rows: Sequence[Row]) -> str:
    """The rows as a markdown table."""
    lines = ["| figure | ours | beside it | ratio | bound | holds |", "| --- | ---: | ---: | ---: | --- | --- |"]
    for row in rows:
        peer = "" if row.peer is None else f"{number(row.peer)} ({row.peer_name})"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        holds = {True: "yes", False: "NO", None: ""}[row.holds]
        lines.append(f"| {row.name} | {number(row.ours)} {row.unit} | {peer} | {ratio} | {row.bound} | {holds} |")
    return "\n".join(lines)


def number(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def write(name: str, title: str, rows: Sequence[Row], missing: Sequence[str] = ()) -> None:
    """Write ``results/<name>.md`` and ``.json`` and print the table."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    facts = machine()
    notes = "".join(f"\n{line}\n" for line in missing)
    text = f"# {title}\n\n{described(facts)}\n\n{table(rows)}\n{notes}"
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
    figures = [{**attrs.asdict(row), "ratio": row.ratio, "holds": row.holds} for row in rows]
    document = {"title": title, "machine": facts, "rows": figures, "missing": list(missing)}
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(table(rows))


def progress(text: str) -> None:
    """Say on stderr what is being measured."""
    print(f"… {int(time.monotonic() - _began):3d} s  {text}", file=sys.stderr, flush=True)


def usual(count: int, quick: int = 1) -> int:
    """How many rounds or events: ``count``, or ``quick`` with ``--quick``."""
    return quick if QUICK else count


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


def in_child(function: Callable[..., T], /, *arguments: Any) -> T:
    """Call a module's function in a fresh process, whose memory is its own."""
    context = multiprocessing.get_context("spawn")
    answer, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        if not answer.poll(CHILD_LIMIT):
            raise RuntimeError(f"{function.__name__} took more than {CHILD_LIMIT:.0f} s")
        return answer.recv()
    except EOFError:
        raise RuntimeError(f"{function.__name__} failed in its process, which has printed why") from None
    finally:
        process.kill()
        process.join()
        answer.close()


def _answer(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    sender.send(function(*arguments))


def resident_kib(pid: int | str = "self") -> int:
    """Resident memory of a process in KiB (Linux)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def forget_peak() -> None:
    """Let ``peak_kib`` count from now on (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_kib() -> int:
    """The most resident memory this process has had, in KiB (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])
