"""Does the length of a topic's history cost anything: ``python -m benchmarks.bench_history [parts…]``.

``lite``, ``embedded``: what happens near the tail, in topics of 1,000 to 1,000,000 events, beside the same in the
shortest one; it should be flat. Whether the first answer of `s2 lite` to a read takes 4 or 44 ms is decided by the
kernel's delayed acknowledgements: what reads has its bound on the embedded server only.

``memory``: ``get_history`` of a million events may take no more than the list that it returns and a bounded working
set, ``iter_history`` the working set alone. Each is measured in a process of its own; what the list takes is measured
by decoding as many equal records without a server.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Container, Iterator

import attrs
import s2_sdk

from benchmarks.measuring import (
    Parts,
    Row,
    forget_peak,
    in_child,
    main,
    median,
    peak_kib,
    progress,
    resident_kib,
    seconds,
    usual,
)
from benchmarks.ours import SMALL, body, client, lite, raw, stream, topic
from s2pubsub import S2PubSub
from s2pubsub.codec import decode_batch
from tests.servers import EmbeddedServer

LENGTHS = tuple(10**power for power in range(3, usual(7, 5)))
LONGEST = LENGTHS[-1]
BATCH = 1000
IN_FLIGHT = 8
ROUNDS = usual(30, 2)
FLAT = 1.5
PAUSE = 0.06
"""Seconds before each call: an answer of `s2 lite` that follows another within 40 ms waits for an acknowledgement that
the client's kernel holds back, and that would hide all else."""
WORKING_SET_MB = 64
CALLS = PUBLISH, SUBSCRIBE, RESUME, HISTORY = (
    "publish",
    "subscribe at the tail",
    "first event of a resume 10 before the tail",
    "get_history of the last 10",
)


async def fill(url: str, name: str, count: int) -> None:
    """Store ``count`` equal events in big batches."""
    batch = s2_sdk.AppendInput([s2_sdk.Record(body=body()) for _ in range(BATCH)])
    async with raw(url) as s2, stream(s2, name).append_session() as session:
        tickets = []
        for _ in range(count // BATCH):
            tickets.append(await session.submit(batch))
            if len(tickets) > IN_FLIGHT:
                await tickets.pop(0)
        for ticket in tickets:
            await ticket


# -- near the tail ---------------------------------------------------------------------------------------------------


def publish(pubsub: S2PubSub, name: str) -> float:
    """The second of two: the first ends with a flush, so that both wait for a whole interval."""
    pubsub.publish(name, type="chunk", data=SMALL, run_id="r")
    return seconds(lambda: pubsub.publish(name, type="chunk", data=SMALL, run_id="r"))


def open_at_tail(pubsub: S2PubSub, name: str) -> float:
    began = time.perf_counter()
    subscription = pubsub.subscribe(name)
    taken = time.perf_counter() - began
    subscription.close()
    return taken


def resume(pubsub: S2PubSub, name: str, offset: int) -> float:
    began = time.perf_counter()
    with pubsub.subscribe_from_offset(name, offset) as events:
        event = events.get(20)
        taken = time.perf_counter() - began
    assert event.index == offset
    return taken


def near_the_tail(pubsub: S2PubSub, name: str, length: int) -> dict[str, float]:
    """Seconds that each of the calls takes in one topic."""
    calls: dict[str, Callable[[], float]] = {
        PUBLISH: lambda: publish(pubsub, name),
        SUBSCRIBE: lambda: open_at_tail(pubsub, name),
        RESUME: lambda: resume(pubsub, name, length - 10),
        HISTORY: lambda: seconds(lambda: pubsub.get_history(name, length - 10)),
    }
    taken = {}
    for what, call in calls.items():
        time.sleep(PAUSE)
        taken[what] = call()
    return taken


def lengths(label: str, url: str, bounded: Container[str]) -> Iterator[Row]:
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    with client(url) as pubsub:
        names = {length: topic() for length in LENGTHS}
        for length, name in names.items():
            progress(f"{label}: filling a topic with {length:,} events")
            asyncio.run(fill(url, name, length))
        for number in range(ROUNDS + 1):
            for length, name in names.items():  # all lengths in turn: whatever else the machine does falls on all alike
                for what, took in near_the_tail(pubsub, name, length).items():
                    if number:  # the first round warms up
                        found[what, length].append(took)
    for what, length in found:
        ours, shortest = (median(found[what, events]) * 1e3 for events in (length, LENGTHS[0]))
        bound = FLAT if length > LENGTHS[0] and what in bounded else None
        title = f"{label}: {what}, {length:,} events"
        row = Row(title, ours, "ms", shortest, f"{LENGTHS[0]:,} events", at_most=bound)
        yield attrs.evolve(row, line=f"{label}: {what}, ms", x=length, x_name="events in the topic")


def on_lite() -> Iterator[Row]:
    with lite() as server:
        yield from lengths("s2 lite", server.url, (PUBLISH, SUBSCRIBE))


def on_embedded() -> Iterator[Row]:
    with EmbeddedServer() as server:
        with client(server.url) as pubsub:
            pubsub.ensure_basin()
        yield from lengths("embedded", server.url, CALLS)


# -- memory of a whole history ---------------------------------------------------------------------------------------


@attrs.frozen
class Taken:
    """The most memory in MB that something took while it ran, and how long it ran in seconds."""

    peak_mb: float
    seconds: float


def taken(action: Callable[[], object]) -> Taken:
    gc.collect()
    forget_peak()
    before = resident_kib()
    took = seconds(action)
    return Taken((peak_kib() - before) / 1024, took)


def listed(url: str, name: str) -> Taken:
    with client(url) as pubsub:
        pubsub.get_history(name, LONGEST - 10)
        events = []
        result = taken(lambda: events.append(pubsub.get_history(name)))
    assert [event.index for event in events[0]] == list(range(LONGEST))
    return result


def iterated(url: str, name: str) -> Taken:
    with client(url) as pubsub:
        pubsub.get_history(name, LONGEST - 10)
        seen = 0

        def iterate() -> None:
            nonlocal seen
            for event in pubsub.iter_history(name):
                assert event.index == seen
                seen += 1

        result = taken(iterate)
    assert seen == LONGEST
    return result


def decoded() -> Taken:
    """The list itself: as many events, decoded from as many bodies, of which one batch exists at a time."""
    events = []

    def decode() -> None:
        stored = body()
        for start in range(0, LONGEST, BATCH):
            events.extend(decode_batch("agent.x", start, [bytes(bytearray(stored)) for _ in range(BATCH)])[0])

    decode_few = decode_batch("agent.x", 0, [body()])
    assert decode_few[1] is None
    result = taken(decode)
    assert len(events) == LONGEST
    return result


def memory() -> Iterator[Row]:
    name = topic()
    with lite() as server:
        progress(f"filling a topic with {LONGEST:,} events")
        asyncio.run(fill(server.url, name, LONGEST))
        progress("get_history")
        whole = in_child(listed, server.url, name)
        progress("iter_history")
        one_by_one = in_child(iterated, server.url, name)
    progress("the list alone")
    alone = in_child(decoded)
    events = f"{LONGEST:,} events"
    beyond = whole.peak_mb - alone.peak_mb
    yield Row(f"get_history of {events}: peak memory", whole.peak_mb, "MB", alone.peak_mb, "the list itself")
    yield Row(f"get_history of {events}: beyond the list itself", beyond, "MB", at_most=WORKING_SET_MB)
    yield Row(f"iter_history of {events}: peak memory", one_by_one.peak_mb, "MB", at_most=WORKING_SET_MB)
    pace = LONGEST / alone.seconds
    yield Row(f"get_history of {events}", LONGEST / whole.seconds, "events/s", pace, "decoding alone, into a list")
    yield Row(
        f"iter_history of {events}", LONGEST / one_by_one.seconds, "events/s", pace, "decoding alone, into a list"
    )


PARTS: Parts = {"lite": on_lite, "embedded": on_embedded, "memory": memory}

if __name__ == "__main__":
    sys.exit(main("history", "Cost against the length of the history", PARTS))
