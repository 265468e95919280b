"""The judge of a campaign is judged: a good history passes, and each way of spoiling it is found."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.stress.campaign.checker import judge
from tests.stress.campaign.notes import Note, Notebook, read_notes
from tests.stress.campaign.stored import Entry, Log

SHARED, EXACT = "agent.campaign.shared-0", "agent.campaign.exact-0"
LEASE, RUN = "agent.thread-stream.first", "agent.stream.r0-0-0"


def event(index: int, by: str, n: int, **more: Any) -> Entry:
    return Entry(index=index, id=f"{by}-{n}", by=by, n=n, **more)


def stored() -> Log:
    return {
        SHARED: [
            *(event(n, "publisher0.0/b0", n) for n in range(4)),
            *(event(4 + n, "publisher0.0/p0", n) for n in range(4)),
            event(8, "publisher0.0/p0", 3),  # sent again after a broken connection
            event(9, "publisher1.0/b0", 0),
            event(10, "publisher1.0/b0", 1),
        ],
        EXACT: [event(n, "exact0.0/x0", n) for n in range(5)],
        LEASE: [
            Entry(index=0, fence=True, owner="a"),
            event(1, "lease0.0/first0", 0, owner="a"),
            Entry(index=2, fence=True, owner="a"),
            event(3, "lease0.0/first0", 1, owner="a"),
            Entry(index=4, fence=True, owner="b"),
            event(5, "lease1.0/first0", 0, owner="b"),
            Entry(index=6, fence=True, owner=""),
        ],
        RUN: [
            Entry(index=0, id="start"),
            event(1, "runner0.0/r/0", 0),
            event(2, "runner0.0/r/0", 1),
            Entry(index=3, id="end", ends=True),
        ],
    }


def told(log: Log) -> list[Note]:
    """What processes note that live through ``log`` without a fault."""
    notes: list[Note] = [
        ["ack", topic, entry.by, entry.n, entry.index, entry.id]
        for topic, entries in log.items()
        for entry in entries
        if entry.by is not None and entry.index != 8
    ]
    for topic, entries in log.items():
        notes.append(["sub", f"reader0:{topic}", topic, 0])
        notes += [["seen", f"reader0:{topic}", entry.index, entry.id] for entry in entries if entry.id is not None]
    pairs = [[entry.index, entry.id] for entry in log[SHARED]]
    return [
        *notes,
        ["together", SHARED, "publisher1.0/b0", 0, 2],
        ["latest", SHARED, 5, 6, 7, pairs[6:9]],
        ["history", SHARED, 2, 9, 11, pairs[2:10]],
        ["good", "first", "a", "lease0.0/first0", 1.0, 1.2],
        ["good", "first", "a", "lease0.0/first0", 1.0, 2.0],
        ["good", "first", "b", "lease1.0/first0", 2.1, 3.0],
        ["begin", "r0-0-0"],
        ["ended", "r0-0-0", "runner0.0/r/0", "finish"],
        ["fail", SHARED, "publisher0.0/b1", 0, "not_stored", "refused"],
        ["note", "nothing"],
    ]


def problems(log: Log, notes: list[Note]) -> list[str]:
    return judge(log, notes).violations


def test_a_good_history_passes() -> None:
    """A history with copies of an event, two holders one after the other, and readers who saw all, is no violation."""
    log = stored()
    verdict = judge(log, told(log))
    assert verdict.violations == []
    assert (verdict.events, verdict.stored_twice, verdict.runs, verdict.grants) == (23, 1, 1, 2)


def lose(log: Log, topic: str, index: int) -> None:
    log[topic] = [entry for entry in log[topic] if entry.index != index]


def swap(log: Log, topic: str, one: int, other: int) -> None:
    entries = log[topic]
    a, b = entries[one], entries[other]
    entries[one], entries[other] = attrs.evolve(b, index=a.index), attrs.evolve(a, index=b.index)


def add(log: Log, topic: str, *entries: Entry) -> None:
    log[topic] += entries


SPOILED_LOGS: dict[str, tuple[Callable[[Log], None], str]] = {
    "an acknowledged event is lost": (lambda log: lose(log, SHARED, 2), "lost:"),
    "acknowledged events are swapped": (lambda log: swap(log, SHARED, 0, 1), "lost:"),
    "an exactly-once event is doubled": (lambda log: add(log, EXACT, event(5, "exact0.0/x0", 4)), "doubled:"),
    "an exactly-once event is missing": (lambda log: lose(log, EXACT, 3), "not exactly once:"),
    "an event of a run is doubled": (lambda log: log[RUN].insert(3, event(2, "runner0.0/r/0", 1)), "doubled:"),
    "a run has two ends": (lambda log: add(log, RUN, Entry(index=4, id="again", ends=True)), "run agent.stream"),
    "a run goes on behind its end": (lambda log: add(log, RUN, event(4, "runner0.0/r/1", 0)), "run agent.stream"),
    "a run has no end": (lambda log: lose(log, RUN, 3), "run agent.stream"),
    "a run is gone": (lambda log: log.pop(RUN) and None, "nothing is stored"),
    "a copy has another id": (
        lambda log: add(log, SHARED, attrs.evolve(event(11, "publisher0.0/b0", 0), id="new")),
        "made twice:",
    ),
    "an append is torn apart": (
        lambda log: log.update(
            {SHARED: [*log[SHARED][:10], event(10, "publisher0.0/b2", 0), event(11, "publisher1.0/b0", 1)]}
        ),
        "torn apart:",
    ),
    "an event is stored under another holder's token": (
        lambda log: add(log, LEASE, event(7, "lease0.0/first0", 2, owner="a")),
        "not fenced:",
    ),
    "an event said to be not stored is there": (
        lambda log: add(log, SHARED, event(11, "publisher0.0/b1", 0)),
        "wrong outcome:",
    ),
}


@pytest.mark.parametrize("name", SPOILED_LOGS)
def test_a_spoiled_log_is_found(name: str) -> None:
    """What a store or a writer may do wrong is found by comparing the log with the notes."""
    log = stored()
    notes = told(log)
    spoil, expected = SPOILED_LOGS[name]
    spoil(log)
    assert any(expected in problem for problem in problems(log, notes))


def is_(*begin: Any) -> Callable[[Note], bool]:
    return lambda note: note[: len(begin)] == list(begin)


def place(notes: list[Note], match: Callable[[Note], bool]) -> int:
    return next(at for at, note in enumerate(notes) if match(note))


def drop_seen(notes: list[Note]) -> None:
    del notes[place(notes, is_("seen", f"reader0:{SHARED}", 3))]


def double_seen(notes: list[Note]) -> None:
    at = place(notes, is_("seen", f"reader0:{SHARED}", 3))
    notes.insert(at, copy.copy(notes[at]))


def swap_seen(notes: list[Note]) -> None:
    at = place(notes, is_("seen", f"reader0:{SHARED}", 3))
    notes[at], notes[at + 1] = notes[at + 1], notes[at]


def cut_off_seen(notes: list[Note]) -> None:
    del notes[place(notes, is_("seen", f"reader0:{EXACT}", 4))]


def change(kind: str, item: int, value: Any, which: int = 0) -> Callable[[list[Note]], None]:
    def act(notes: list[Note]) -> None:
        note = [note for note in notes if note[0] == kind][which]
        note[item] = value

    return act


SPOILED_NOTES: dict[str, tuple[Callable[[list[Note]], None], str]] = {
    "a reader misses an event": (drop_seen, "reader reader0"),
    "a reader gets an event twice": (double_seen, "reader reader0"),
    "a reader gets two events in the wrong order": (swap_seen, "reader reader0"),
    "a reader misses the last event": (cut_off_seen, "reader reader0"),
    "a reader gets another event": (change("seen", 3, "foreign"), "reader reader0"),
    "a subscription begins behind the tail": (change("latest", 3, 8), "latest:"),
    "a subscription from the tail misses its first event": (change("latest", 5, [[7, "publisher0.0/p0-3"]]), "latest:"),
    "history leaves out the last event before the call": (
        change("history", 5, [[2, "publisher0.0/b0-2"], [3, "publisher0.0/b0-3"]]),
        "history:",
    ),
    "history has a hole": (
        change("history", 5, [[2, "publisher0.0/b0-2"], [4, "publisher0.0/p0-0"]]),
        "history:",
    ),
    "an acknowledgement names another place": (change("ack", 4, 3), "lost:"),
    "two hold a lease at once": (change("good", 4, 1.9, which=2), "two holders:"),
    "a failure has no outcome": (change("fail", 4, None), "no outcome:"),
    "a process has noted what must not happen": (change("note", 0, "wrong"), "wrong:"),
}


@pytest.mark.parametrize("name", SPOILED_NOTES)
def test_spoiled_observations_are_found(name: str) -> None:
    """What a process may have been told wrongly is found by comparing the notes with the log."""
    log = stored()
    notes = told(log)
    spoil, expected = SPOILED_NOTES[name]
    spoil(notes)
    assert any(expected in problem for problem in problems(log, notes))


def test_a_publisher_that_gives_up_is_found() -> None:
    """A pipelined publisher waits out every outage: one that failed of anything but its close is a violation."""
    log = stored()
    notes = [*told(log), ["fail", SHARED, "publisher0.0/p1", 0, "not_stored", "StoreError('unavailable')"]]
    assert any("gave up:" in problem for problem in problems(log, notes))


def test_torn_notes_are_no_notes(tmp_path: Path) -> None:
    """A line that was torn by a kill is not read, and the next life's notes begin on a line of their own."""
    path = tmp_path / "notes.jsonl"
    book = Notebook(path)
    book.note("seen", "sub", 0, "a")
    book.close()
    with path.open("ab") as file:
        file.write(b'["seen", "sub", 1,')
    book = Notebook(path)
    book.note("seen", "sub", 1, "b")
    book.close()
    assert read_notes(path) == [["seen", "sub", 0, "a"], ["seen", "sub", 1, "b"]]


def test_a_late_copy_behind_the_end_is_no_violation() -> None:
    """A copy that the wire has held up comes behind the place up to which readers were asked to read."""
    log = stored()
    notes = told(log)
    until = {topic: entries[-1].index + 1 for topic, entries in log.items()}
    log[SHARED].append(event(11, "publisher0.0/b0", 3))
    assert judge(log, notes, until).violations == []
    assert any("reader" in problem for problem in judge(log, notes).violations)
