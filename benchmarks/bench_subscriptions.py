"""What subscriptions cost, 1, 100 and 500 of one client: ``python -m benchmarks.bench_subscriptions [parts…]``.

Memory of each and the time to open and to close them all, from ten threads at once, each count in a process of its
own. Each is measured when it has received an event. Beside it: a read session of the raw SDK for the memory, and tail
checks for the time, since a subscription is ready when its place at the tail is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import attrs
import s2_sdk

from benchmarks.measuring import Parts, Row, in_child, main, median, progress, resident_kib, usual
from benchmarks.ours import SMALL, body, client, lite, raw, reading, stream, topic

COUNTS = (1, 100, 500)
THREADS = 10


@attrs.frozen
class Cost:
    """Memory of each subscription, and seconds to open and close all of them."""

    each_kib: float
    opened: float
    closed: float


def made(url: str, count: int) -> list[str]:
    """New topics with an event each."""
    names = [topic() for _ in range(count)]
    with client(url) as pubsub, ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda name: pubsub.publish(name, type="chunk", data=SMALL), names))
    return names


def ours(url: str, names: list[str]) -> Cost:
    with client(url) as pubsub, ThreadPoolExecutor(THREADS) as pool:
        with pubsub.subscribe(names[0]) as warm:
            pubsub.publish(names[0], type="chunk", data=SMALL)
            warm.get(5)
        gc.collect()
        before = resident_kib()
        began = time.perf_counter()
        subscriptions = list(pool.map(pubsub.subscribe, names))
        opened = time.perf_counter() - began
        for subscription, name in zip(subscriptions, names, strict=True):
            pubsub.publish(name, type="chunk", data=SMALL)
            subscription.get(20)
        gc.collect()
        each = (resident_kib() - before) / len(names)
        began = time.perf_counter()
        list(pool.map(lambda subscription: subscription.close(), subscriptions))
        return Cost(each, opened, time.perf_counter() - began)


def theirs(url: str, names: list[str]) -> Cost:
    return asyncio.run(_theirs(url, names))


async def _theirs(url: str, names: list[str]) -> Cost:
    async with raw(url) as writer, raw(url) as reader:
        entry = s2_sdk.AppendInput([s2_sdk.Record(body=body())])
        slots = asyncio.Semaphore(THREADS)

        async def check(name: str) -> s2_sdk.StreamPosition:
            async with slots:
                return await stream(reader, name).check_tail()

        await stream(writer, names[0]).append(entry)
        async with reading(stream(reader, names[0])) as warm:
            await anext(warm)
        gc.collect()
        before = resident_kib()
        began = time.perf_counter()
        tails = await asyncio.gather(*(check(name) for name in names))
        opened = time.perf_counter() - began
        async with contextlib.AsyncExitStack() as stack:
            for name, tail in zip(names, tails, strict=True):
                session = reading(stream(reader, name), tail.seq_num)
                batch = asyncio.create_task(anext(await stack.enter_async_context(session)))
                await stream(writer, name).append(entry)
                await batch
            gc.collect()
            return Cost((resident_kib() - before) / len(names), opened, 0.0)


def costs(count: int) -> Iterator[Row]:
    mine, peer = [], []
    with lite() as server:
        for number in range(usual(3)):
            progress(f"{count} subscriptions, round {number + 1}")
            mine.append(in_child(ours, server.url, made(server.url, count)))
            peer.append(in_child(theirs, server.url, made(server.url, count)))

    def row(name: str, figure: str, unit: str, peer_name: str, scale: float, at_most: float, line: str) -> Row:
        ours_middle, their_middle = (median([getattr(cost, figure) * scale for cost in side]) for side in (mine, peer))
        limit = at_most if count > 1 else None  # the first one pays for what all share
        found = Row(name, ours_middle, unit, their_middle, peer_name, at_most=limit, absolute=True)
        return attrs.evolve(found, line=line, x=count, x_name="subscriptions")

    yield row(f"{count} idle: memory of each", "each_kib", "KiB", "raw SDK read session", 1, 120, "memory of each, KiB")
    opened = f"{count}: opened from {THREADS} threads"
    yield row(opened, "opened", "ms", "raw SDK tail checks", 1e3, 5000, "all opened, ms")
    yield Row(f"{count}: closed", median([cost.closed for cost in mine]), "s", at_most=5)


PARTS: Parts = {str(count): (lambda count=count: costs(count)) for count in COUNTS}

if __name__ == "__main__":
    sys.exit(main("subscriptions", "What subscriptions cost", PARTS))
