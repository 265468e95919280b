"""What processes of a campaign write down: one JSON array a line, by one write each, so that a kill takes nothing back.

The first item says what it is. ``by`` names one writer within one process (a thread, a publisher, a hold of a lease),
``n`` numbers its events from 0, ``sub`` names a reader, the same over the lives of its process.

    ack, topic, by, n, index, id        publish said that it is stored
    fail, topic, by, n, outcome, text   publish raised
    together, topic, by, n, count       events that one atomic append has stored
    sub, sub, topic, start              a reader begins, or begins again
    seen, sub, index, id                it got an event
    over, sub                           an observer of a run has come to its end
    latest, topic, low, start, high, [[index, id], …]   a short subscription from the tail, and the tails around it
    history, topic, offset, low, high, [[index, id], …] a reading of what is stored, and the tails around it
    good, key, owner, by, begun, at     the lease was held by ``by`` from ``begun`` to ``at``
    begin, run / ended, run, by, how    a run is begun (before the call) and has its end (after it)
    forked / note, text                 counted only
    wrong, text                         something that must not happen
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

Note = list[Any]


class Notebook:
    """Appends notes to a file. Thread-safe, as the system's appends are."""

    def __init__(self, path: Path) -> None:
        self.path = path
        torn = path.exists() and not path.read_bytes().endswith(b"\n")
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        if torn:
            os.write(self._file, b"\n")

    def note(self, *items: Any) -> None:
        os.write(self._file, json.dumps(items).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read_notes(path: Path) -> list[Note]:
    """The notes of a file. A line that a kill has torn is none: what it told was not told."""
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith(b"]") and line.startswith(b"[")]
