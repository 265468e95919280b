"""One topic to a hundred subscribers: ``python -m benchmarks.bench_fanout [parts…]``.

Ours: 100 callback subscribers of one client. Beside it the raw SDK: 100 read sessions on one client, each decoding with
the same function. The driver waits for its appends only; deliveries per second count until the last one has come.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import s2_sdk

from benchmarks.measuring import Parts, Row, main, median, usual
from benchmarks.ours import SMALL, body, client, decoded, lite, raw, reading, stream

SUBSCRIBERS = 100
IN_FLIGHT = usual(1000, 200), 64
ONE_BY_ONE = usual(100, 20), 1
"""How many events, and how many publishes at once."""


def ours(url: str, events: int, in_flight: int) -> float:
    topic = f"agent.fan.{uuid.uuid4()}"
    counts = [0] * SUBSCRIBERS
    done = threading.Semaphore(0)

    def counter(number: int):
        def take(event) -> None:
            counts[number] += 1
            if counts[number] in (1, events + 1):
                done.release()

        return take

    with client(url) as pubsub:
        subscriptions = [pubsub.subscribe(topic, counter(number)) for number in range(SUBSCRIBERS)]
        pubsub.publish(topic, type="chunk", data=SMALL)  # every session is open once it has come
        _acquire_all(done)
        with ThreadPoolExecutor(in_flight) as pool:
            began = time.perf_counter()
            list(pool.map(lambda _: pubsub.publish(topic, type="chunk", data=SMALL), range(events)))
            _acquire_all(done)
            taken = time.perf_counter() - began
        for subscription in subscriptions:
            subscription.close()
    return events * SUBSCRIBERS / taken


def _acquire_all(done: threading.Semaphore) -> None:
    for _ in range(SUBSCRIBERS):
        assert done.acquire(timeout=120)


async def theirs(url: str, events: int, in_flight: int) -> float:
    topic = f"agent.fan.{uuid.uuid4()}"
    entry = s2_sdk.AppendInput([s2_sdk.Record(body=body())])
    ready = asyncio.Semaphore(0)

    async with raw(url) as writer, raw(url) as reader:
        await stream(writer, topic).append(entry)

        async def follow() -> None:
            seen = 0
            async with reading(stream(reader, topic)) as session:
                async for batch in session:
                    new = decoded(topic, batch)
                    for _ in new:
                        seen += 1
                    if seen == len(new):
                        ready.release()
                    if seen >= events + 1:
                        return

        followers = [asyncio.create_task(follow()) for _ in range(SUBSCRIBERS)]
        for _ in range(SUBSCRIBERS):
            await ready.acquire()
        slots = asyncio.Semaphore(in_flight)

        async def append() -> None:
            async with slots:
                await stream(writer, topic).append(entry)

        began = time.perf_counter()
        await asyncio.gather(*(append() for _ in range(events)))
        await asyncio.gather(*followers)
        return events * SUBSCRIBERS / (time.perf_counter() - began)


def measure(label: str, events: int, in_flight: int) -> Iterator[Row]:
    mine, peer = [], []
    with lite() as server:
        for _ in range(usual(3)):
            mine.append(ours(server.url, events, in_flight))
            peer.append(asyncio.run(theirs(server.url, events, in_flight)))
    name = f"fan-out to {SUBSCRIBERS}, {label}"
    yield Row(name, median(mine), "deliveries/s", median(peer), "raw SDK", at_least=0.9)


PARTS: Parts = {
    "in-flight": lambda: measure("64 publishes in flight", *IN_FLIGHT),
    "one-by-one": lambda: measure("publishes one by one", *ONE_BY_ONE),
}

if __name__ == "__main__":
    sys.exit(main("fanout", "Fan-out of one topic", PARTS))
