"""Which processes there are: for tests that must leave none behind."""

from __future__ import annotations

from pathlib import Path


def in_session(leader: int) -> set[int]:
    """The ids of the living processes of the session that ``leader`` began. Linux only."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            state, session = fields[0], int(fields[3])
            if session == leader and state != "Z":
                found.add(int(entry.name))
    return found
