"""Everything that is measured: ``python -m benchmarks [names…]``, without names all of it, in about half an hour.

Runs each benchmark in a process of its own, one after the other, and writes ``results/<name>.md`` and ``.json``, one
table of all (``results/all.md``) and a picture per topic. What is missing (a peer's server, a package) is said and
left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

from benchmarks.measuring import RESULTS, Row, machine, progress, table

NAMES = ("core", "publish", "fanout", "leases", "server", "peers")
_FIELDS = ("name", "ours", "unit", "peer", "peer_name", "at_most", "at_least")


def main(names: list[str]) -> int:
    """Run the benchmarks, then put their results together; 1 if a bound does not hold or one has failed."""
    failed = []
    for number, name in enumerate(names or NAMES, 1):
        progress(f"{number} of {len(names or NAMES)}: {name}")
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-m", f"benchmarks.bench_{name}"], check=False)
        progress(f"{name} took {time.monotonic() - began:.0f} s")
        if done.returncode:
            failed.append(name)
    collect()
    if failed:
        progress(f"a bound does not hold, or the run failed: {', '.join(failed)}")
    return 1 if failed else 0


def collect() -> None:
    """Write one table and the pictures of whatever results there are."""
    parts = []
    for name in NAMES:
        source = RESULTS / f"{name}.json"
        if not source.exists():
            continue
        document = json.loads(source.read_text(encoding="utf-8"))
        rows = [Row(**{field: row[field] for field in _FIELDS}) for row in document["rows"]]
        date = document["machine"]["date"]
        parts.append(f"## {document['title']}\n\n{date}\n\n{table(rows)}\n")
        draw(name, document["title"], [row for row in rows if row.peer is not None])
    facts = ", ".join(f"{key} {value}" for key, value in machine().items() if key != "date")
    (RESULTS / "all.md").write_text(f"# Figures\n\n{facts}\n\n" + "\n".join(parts), encoding="utf-8")


def draw(name: str, title: str, rows: list[Row]) -> None:
    """A picture of the ratios to the peers, with their bounds."""
    try:
        import matplotlib as mpl
    except ImportError:
        progress("no pictures: pip install matplotlib")
        return
    mpl.use("Agg")
    from matplotlib import pyplot

    if not rows:
        return
    figure, axes = pyplot.subplots(figsize=(9, 0.6 + 0.45 * len(rows)), layout="constrained")
    labels = [f"{row.name}\n(beside {row.peer_name})" for row in rows]
    colours = {True: "#2a7f4f", False: "#b3382c", None: "#4a6fa5"}
    axes.barh(labels, [row.ratio or 0 for row in rows], color=[colours[row.holds] for row in rows])
    for place, row in enumerate(rows):
        bound = row.at_most if row.at_most is not None else row.at_least
        if bound is not None:
            axes.plot([bound, bound], [place - 0.4, place + 0.4], color="black", linewidth=2)
        axes.annotate(f" {row.ratio:.2f}", (row.ratio or 0, place), va="center", fontsize=8)
    axes.axvline(1, color="grey", linestyle=":")
    axes.invert_yaxis()
    axes.tick_params(labelsize=7)
    axes.set_xlabel("ours divided by theirs; the black mark is the bound", fontsize=8)
    axes.set_title(title, fontsize=10)
    figure.savefig(RESULTS / f"{name}.png", dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
