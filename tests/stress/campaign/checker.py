"""The judge of a campaign: notes of what processes were told, compared with the stored log. Pure.

Each function yields violations as texts. What is promised, and so what is looked for, stands in its docstring.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from tests.stress.campaign.notes import Note
from tests.stress.campaign.stored import Entry, Log

CLOCK = 0.002
"""Seconds that readings of one clock in two processes may differ."""


@attrs.define
class Verdict:
    """Violations, and what was looked at."""

    violations: list[str] = attrs.field(factory=list)
    events: int = 0
    acknowledged: int = 0
    failed: int = 0
    stored_twice: int = 0
    seen: int = 0
    runs: int = 0
    grants: int = 0


def judge(log: Log, notes: Sequence[Note], until: Mapping[str, int] | None = None) -> Verdict:
    """Everything. ``until``: up to where readers were asked to read each topic, by default all of it; a copy that was
    held up on the wire may still come behind it.
    """
    by_kind: dict[str, list[Note]] = defaultdict(list)
    for note in notes:
        by_kind[note[0]].append(note)
    verdict = Verdict(
        events=sum(entry.id is not None for entries in log.values() for entry in entries),
        acknowledged=len(by_kind["ack"]),
        failed=len(by_kind["fail"]),
        seen=len(by_kind["seen"]) + sum(len(note[5]) for note in by_kind["latest"] + by_kind["history"]),
        runs=sum(topic.startswith("agent.stream.") for topic in log),
        grants=len({note[3] for note in by_kind["good"]}),
    )
    verdict.stored_twice = sum(_copies(entries) for entries in log.values())
    verdict.violations = [
        *(f"wrong: {note[1]}" for note in by_kind["wrong"]),
        *acknowledgements(log, by_kind["ack"], by_kind["fail"]),
        *orders(log, by_kind["ack"]),
        *atomic(log, by_kind["together"]),
        *exactly_once(log),
        *readers(log, by_kind["sub"], by_kind["seen"], until or {}),
        *short_readers(log, by_kind["latest"], by_kind["history"]),
        *leases(log, by_kind["good"]),
        *runs(log, by_kind["ended"]),
    ]
    return verdict


def _copies(entries: Iterable[Entry]) -> int:
    ids = [entry.id for entry in entries if entry.id is not None]
    return len(ids) - len(set(ids))


def _events(log: Log, topic: str) -> list[Entry]:
    return [entry for entry in log.get(topic, []) if entry.id is not None]


def acknowledgements(log: Log, acks: Iterable[Note], fails: Iterable[Note]) -> Iterator[str]:
    """An acknowledged event is stored where the acknowledgement says; one said to be not stored is not."""
    at = {(topic, entry.index): entry for topic, entries in log.items() for entry in entries}
    for _, topic, by, n, index, id in acks:
        entry = at.get((topic, index))
        if entry is None or (entry.id, entry.by, entry.n) != (id, by, n):
            yield f"lost: {topic}: {by} {n} was acknowledged at {index}, where {entry} is"
    written = {(topic, entry.by, entry.n): entry.index for topic, entries in log.items() for entry in entries}
    for _, topic, by, n, outcome, text in fails:
        if outcome not in ("not_stored", "unknown"):
            yield f"no outcome: {topic}: {by} {n}: {outcome!r}: {text}"
        if outcome == "not_stored" and (topic, by, n) in written:
            place = written[topic, by, n]
            yield f"wrong outcome: {topic}: {by} {n} was said to be not stored, and is at {place}: {text}"
        if "/p" in by and "ClosedError" not in text:
            yield f"gave up: {topic}: {by} {n}: {text}"


def orders(log: Log, acks: Iterable[Note]) -> Iterator[str]:
    """What one thread or publisher has published is stored in the order of its calls; a pipelined publisher's events
    without a hole, first copies counted. A copy has the id of the first.
    """
    last: dict[tuple[str, str], tuple[int, int]] = {}
    for _, topic, by, n, index, _ in sorted(acks, key=lambda ack: (ack[1], ack[2], ack[3])):
        before = last.get((topic, by))
        if before is not None and before[1] >= index:
            yield f"out of order: {topic}: {by}: {before[0]} at {before[1]}, {n} at {index}"
        last[topic, by] = n, index
    for topic, entries in log.items():
        ids: dict[tuple[str, int], str | None] = {}
        expected: dict[str, int] = defaultdict(int)
        for entry in entries:
            if entry.by is None or entry.n is None:
                continue
            if ids.setdefault((entry.by, entry.n), entry.id) != entry.id:
                yield f"made twice: {topic}: {entry.by} {entry.n} has two ids"
            if "/p" in entry.by and entry.n > expected[entry.by]:
                yield f"out of order: {topic}: {entry.by} {entry.n} is stored before {expected[entry.by]}"
            expected[entry.by] = max(expected[entry.by], entry.n + 1)


def atomic(log: Log, together: Iterable[Note]) -> Iterator[str]:
    """Events of one append stand side by side."""
    places: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for topic, entries in log.items():
        for entry in entries:
            if entry.by is not None and entry.n is not None:
                places[topic, entry.by, entry.n].append(entry.index)
    for _, topic, by, first, count in together:
        starts = places[topic, by, first]
        for k in range(1, count):
            if places[topic, by, first + k] != [start + k for start in starts]:
                yield f"torn apart: {topic}: {by} {first} to {first + count - 1}"
                break


def exactly_once(log: Log) -> Iterator[str]:
    """Of a writer that writes exactly once, and of a run's, the events 0, 1, 2… are stored, each once, in order."""
    for topic, entries in log.items():
        if not topic.startswith(("agent.campaign.exact", "agent.stream.")):
            continue
        expected: dict[str, int] = defaultdict(int)
        seen: set[str] = set()
        for entry in entries:
            if entry.id is not None and entry.id in seen:
                yield f"doubled: {topic}: {entry}"
            seen.add(entry.id or "")
            if entry.by is not None and entry.n is not None:
                if entry.n != expected[entry.by]:
                    yield f"not exactly once: {topic}: {entry.by} {entry.n} is where {expected[entry.by]} was expected"
                expected[entry.by] = entry.n + 1


def readers(log: Log, subs: Iterable[Note], seen: Iterable[Note], until: Mapping[str, int]) -> Iterator[str]:
    """Over all its lives, a reader has got exactly the events of the log, each once, in order, up to the last one."""
    topics = {sub: topic for _, sub, topic, _ in subs}
    got: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for _, sub, index, id in seen:
        got[sub].append((index, id))
    for sub, topic in topics.items():
        stored = [(entry.index, entry.id) for entry in _events(log, topic)]
        least = sum(index < until.get(topic, index + 1) for index, _ in stored)
        yield from _compare(f"reader {sub}", got[sub], stored[: max(least, len(got[sub]))])
    for sub in got.keys() - topics.keys():
        yield f"reader {sub} saw events before it began"


def _compare(who: str, got: Sequence[Sequence[Any]], stored: Sequence[tuple[int, str | None]]) -> Iterator[str]:
    """The first place where two lists of (index, id) differ."""
    for place, (mine, theirs) in enumerate(zip(got, stored, strict=False)):
        if tuple(mine) != theirs:
            yield f"{who}: saw {tuple(mine)} as number {place}, the log has {theirs}"
            return
    if len(got) != len(stored):
        where = got[len(stored)] if len(got) > len(stored) else stored[len(got)]
        yield f"{who}: saw {len(got)} events, the log has {len(stored)}; the first one beyond is {where}"


def short_readers(log: Log, latest: Iterable[Note], history: Iterable[Note]) -> Iterator[str]:
    """A subscription from the tail begins at a tail of the time of the call and misses nothing behind it; history gives
    what is stored from the offset up to a tail of the time of the call.
    """
    for _, topic, low, start, high, got in latest:
        if not low <= start <= high:
            yield f"latest: {topic}: began at {start}, the tail was between {low} and {high}"
        stored = [(entry.index, entry.id) for entry in _events(log, topic) if entry.index >= start]
        yield from _compare(f"latest: {topic} from {start}", got, stored[: len(got)])
    for _, topic, offset, low, high, got in history:
        stored = [(entry.index, entry.id) for entry in _events(log, topic) if offset <= entry.index < high]
        least = sum(index < low for index, _ in stored)
        yield from _compare(f"history: {topic} from {offset}", got, stored[: max(least, len(got))])


def leases(log: Log, good: Iterable[Note]) -> Iterator[str]:
    """No two owners hold a lease at the same time, by what they checked; and in the log an event written under a lease
    stands behind a fence of its owner, with no other owner's between.
    """
    held: dict[str, dict[str, tuple[str, float, float]]] = defaultdict(dict)
    for _, key, owner, by, begun, at in good:
        _, first, last = held[key].get(by, (owner, begun, at))
        held[key][by] = owner, min(first, begun), max(last, at)
    for key, holds in held.items():
        spans = sorted((begun, at, owner, by) for by, (owner, begun, at) in holds.items())
        for n, (begun, _, owner, by) in enumerate(spans):
            for _, other_at, other, other_by in spans[:n]:
                if other != owner and other_at - begun > CLOCK:
                    yield f"two holders: {key}: {other_by} until {other_at}, {by} from {begun}"
    for topic, entries in log.items():
        holder: str | None = None
        for entry in entries:
            if entry.fence:
                holder = entry.owner
            elif entry.owner is not None and entry.owner != holder:
                yield f"not fenced: {topic}: {entry} while the token is {holder!r}'s"


def runs(log: Log, ended: Iterable[Note]) -> Iterator[str]:
    """A run has one end, which is its last event; so has every run whose writer was told so, and every one begun."""
    for topic, entries in log.items():
        if topic.startswith("agent.stream.") and entries:
            ends = [entry.index for entry in entries if entry.ends]
            if ends != [entries[-1].index]:
                yield f"run {topic}: ends at {ends}, its last event is {entries[-1].index}"
    for _, run, by, _ in ended:
        if not log.get(f"agent.stream.{run}"):
            yield f"run {run}: {by} was told that it has its end, and nothing is stored"
