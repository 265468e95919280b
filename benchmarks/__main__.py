"""Everything that is measured: ``python -m benchmarks [topics…] [--quick]``, without topics all of it, in half an hour.

Runs each benchmark in a process of its own, one after the other, and writes ``results/<topic>.md`` and ``.json``, one
table of all (``results/all.md``, ``all.json``), a picture per topic, and after a complete run the table in
``benchmarks/README.md``. What is missing (a peer's server, a package) is said and left out. ``--quick`` takes four
minutes, shows that everything works and writes into ``results/quick``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import attrs

from benchmarks import pictures
from benchmarks.measuring import QUICK, RESULTS, Missing, Row, described, progress, table

TOPICS = ("core", "publish", "fanout", "subscriptions", "history", "leases", "server", "peers", "typescript")
LIMIT = 900.0
README = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"


def main() -> int:
    """Run the benchmarks, then put their results together; 1 if a bound does not hold or one has failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("topics", nargs="*", help=f"what to measure, of: {', '.join(TOPICS)}")
    parser.add_argument("--quick", action="store_true", help="one round with few events, into results/quick")
    chosen = parser.parse_args().topics
    if unknown := set(chosen) - set(TOPICS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    began = time.monotonic()
    failed = []
    for number, name in enumerate(chosen or TOPICS, 1):
        progress(f"{number} of {len(chosen or TOPICS)}: {name}")
        if not run(name):
            failed.append(name)
    collect(complete=not chosen)
    progress(f"{(time.monotonic() - began) / 60:.0f} minutes in all; {RESULTS / 'all.md'}")
    if failed:
        progress(f"a bound does not hold, or the run failed: {', '.join(failed)}")
    return 1 if failed else 0


def run(name: str) -> bool:
    """Run one benchmark; whether it went well and its bounds hold."""
    command = [sys.executable, "-m", f"benchmarks.bench_{name}", *(["--quick"] if QUICK else [])]
    before = time.time()
    try:
        went_well = subprocess.run(command, check=False, timeout=LIMIT).returncode == 0
    except subprocess.TimeoutExpired:
        progress(f"{name} took more than {LIMIT:.0f} s and was ended")
        return False
    source = RESULTS / f"{name}.json"
    if not went_well or not source.exists() or source.stat().st_mtime < before - 1:
        return False
    return all(row.holds is not False for row in rows_of(json.loads(source.read_text(encoding="utf-8"))))


def collect(*, complete: bool) -> None:
    """Write one table, one JSON file and the pictures of whatever results there are."""
    documents = {}
    for name in TOPICS:
        source = RESULTS / f"{name}.json"
        if source.exists():
            documents[name] = json.loads(source.read_text(encoding="utf-8"))
    (RESULTS / "all.json").write_text(json.dumps(documents, indent=1) + "\n", encoding="utf-8")
    parts = ["# Figures\n", "## With a bound\n", bounded(documents)]
    for document in documents.values():
        parts += [f"## {document['title']}\n", f"{described(document['machine'])}\n", f"{table(rows_of(document))}\n"]
        parts += [f"{line}\n" for line in document.get("missing", ())]
    (RESULTS / "all.md").write_text("\n".join(parts), encoding="utf-8")
    if complete and not QUICK:
        show_in_readme(documents)
    for name, document in documents.items():
        try:
            pictures.draw(RESULTS / f"{name}.png", document["title"], rows_of(document))
        except Missing as missing:
            progress(str(missing))
            return


def bounded(documents: dict[str, dict[str, Any]]) -> str:
    """The figures that have to hold something, topic by topic."""
    rows = [
        attrs.evolve(row, name=f"{name}: {row.name}")
        for name, document in documents.items()
        for row in rows_of(document)
        if row.holds is not None
    ]
    return table(rows) + "\n"


def show_in_readme(documents: dict[str, dict[str, Any]]) -> None:
    """Put the figures that have a bound, the machine and what was missing into the README."""
    head, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    facts: dict[str, str] = {}
    for document in documents.values():
        facts = {**document["machine"], **facts}
    missing = [f"{name}: {line}" for name, document in documents.items() for line in document.get("missing", ())]
    notes = "".join(f"\n{line}\n" for line in missing)
    text = f"{head}{BEGIN}\n{described(facts)}\n\n{bounded(documents)}{notes}\n{END}{rest.partition(END)[2]}"
    README.write_text(text, encoding="utf-8")


def rows_of(document: dict[str, Any]) -> list[Row]:
    """The rows of a JSON file."""
    names = [field.name for field in attrs.fields(Row)]
    return [Row(**{name: row[name] for name in names if name in row}) for row in document["rows"]]


if __name__ == "__main__":
    sys.exit(main())
