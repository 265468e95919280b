"""The core beside the raw SDK: ``python -m benchmarks.bench_core [parts…]``.

Publish latency (alone, and with 50 live subscriptions), replay, live delivery, stalled neighbours, a frozen
connection. Each part runs an ``s2 lite`` of its own with a 5 ms flush, live delivery also one with 1 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator

import s2_sdk

from benchmarks.measuring import Parts, Row, main, median, percentile, resident_kib, usual
from benchmarks.ours import (
    REPLAYED,
    SMALL,
    body,
    client,
    decoded,
    filled,
    lite,
    raw,
    reading,
    stream,
    topic,
    without_msgspec,
)
from benchmarks.ours import live as live_samples
from benchmarks.ours import replay as replay_rate
from s2pubsub import S2PubSub
from tests.faults import FaultProxy
from tests.servers import LiteServer

# -- publish ---------------------------------------------------------------------------------------------------------


def publish_latency(url: str, subscriptions: int, each: int = 40) -> Row:
    """Alternating blocks of our publishes and raw unary appends, each on connections of its own."""
    ours: list[float] = []
    theirs: list[float] = []
    with client(url) as pubsub, contextlib.ExitStack() as stack:
        for _ in range(subscriptions):
            stack.enter_context(pubsub.subscribe(topic()))
        name = topic()
        pubsub.publish(topic(), type="chunk", data=SMALL)
        record = s2_sdk.Record(body=body())

        async def appends(s2: s2_sdk.S2) -> None:
            for _ in range(each):
                began = time.perf_counter()
                await stream(s2, name).append(s2_sdk.AppendInput([record]))
                theirs.append(time.perf_counter() - began)

        with asyncio.Runner() as runner:
            s2 = runner.run(_make(url))
            runner.run(appends(s2))
            theirs.clear()
            for _ in range(usual(8)):
                for _ in range(each):
                    began = time.perf_counter()
                    pubsub.publish(name, type="chunk", data=SMALL)
                    ours.append(time.perf_counter() - began)
                runner.run(appends(s2))
            runner.run(s2.close())
    label = f"publish, {subscriptions} live subscriptions, p50" if subscriptions else "publish, alone, p50"
    return Row(label, median(ours) * 1e3, "ms", median(theirs) * 1e3, "raw SDK unary append", at_most=1.15)


async def _make(url: str) -> s2_sdk.S2:
    return raw(url)


# -- replay ----------------------------------------------------------------------------------------------------------


def replay(url: str) -> Iterator[Row]:
    with client(url) as pubsub:
        name = filled(pubsub)
        yield _replay("replay through the iterator", url, pubsub, name)
        with without_msgspec():
            yield _replay("replay through the iterator, without the extra 'fast'", url, pubsub, name)


def _replay(title: str, url: str, pubsub: S2PubSub, name: str) -> Row:
    ours, theirs = [], []
    for _ in range(usual(5)):
        gc.collect()
        ours.append(replay_rate(pubsub, name))
        gc.collect()
        theirs.append(REPLAYED / asyncio.run(_raw_replay(url, name, REPLAYED)))
    return Row(title, median(ours), "events/s", median(theirs), "raw SDK + decode", at_least=0.8)


async def _raw_replay(url: str, name: str, count: int) -> float:
    async with raw(url) as s2:
        await stream(s2, name).check_tail()
        began = time.perf_counter()
        batches = []
        async with reading(stream(s2, name)) as session:
            async for batch in session:
                events = decoded(name, batch)
                batches.append(events)
                if events[-1].index == count - 1:
                    return time.perf_counter() - began
        raise RuntimeError("the replay ended early")


# -- live ------------------------------------------------------------------------------------------------------------


def live(url: str, flush: str, each: int = 50) -> list[Row]:
    """At moments that the server's flush knows nothing of, and in step with it.

    A loop that publishes as soon as it has its event is always at the same phase of the server's flush: the raw SDK's
    own latency is 2.2 ms or, when it waits 0.7 ms before each append, 3.6 ms (flush 1 ms).
    """
    # The moments lie as densely everywhere, so that a median depends less on chance.
    longest = 2 * float(flush.removesuffix("ms")) / 1e3
    moments = [longest * (number + 0.5) / each for number in range(each)]
    random.shuffle(moments)
    moment = itertools.cycle(moments)
    rows = []
    for step, wait in (("", lambda: time.sleep(next(moment))), (", in step", lambda: None)):
        ours, theirs = _live_samples_of_both(url, each, wait)
        rows.append(Row(f"live delivery, flush {flush}{step}, p50", median(ours), "ms", median(theirs), "raw SDK"))
        above = median(ours) - median(theirs)
        bound = None if step else 1.0
        rows.append(Row(f"live delivery, flush {flush}{step}: p50 above the raw SDK's", above, "ms", at_most=bound))
    return rows


def _live_samples_of_both(url: str, each: int, wait: Callable[[], object]) -> tuple[list[float], list[float]]:
    ours: list[float] = []
    theirs: list[float] = []
    with client(url) as pubsub:
        name = topic()
        with pubsub.subscribe(name) as events:
            for _ in range(5):
                pubsub.publish(name, type="chunk", data=SMALL)
                events.get(5)
            for _ in range(usual(6)):
                # The driver goes on when it has both the answer and the event, as the raw SDK's does.
                ours += live_samples(
                    lambda: pubsub.publish(name, type="chunk", data=SMALL), lambda: events.get(5), each, wait
                )
                theirs += asyncio.run(_raw_live(url, each, wait))
    return ours, theirs


async def _raw_live(url: str, each: int, wait: Callable[[], object]) -> list[float]:
    name, taken = topic(), []
    async with raw(url) as writer, raw(url) as reader:
        await stream(writer, name).append(s2_sdk.AppendInput([s2_sdk.Record(body=b"x")]))
        record = s2_sdk.Record(body=body())
        async with reading(stream(reader, name)) as session:
            await anext(session)
            for _ in range(each):
                wait()  # nothing else is under way on this loop
                began = time.perf_counter()
                append = asyncio.create_task(stream(writer, name).append(s2_sdk.AppendInput([record])))
                await anext(session)
                taken.append((time.perf_counter() - began) * 1e3)
                await append
    return taken


# -- stalled neighbours ----------------------------------------------------------------------------------------------


def stalled(url: str, size: int, total: int = 60 * 10**6) -> list[Row]:
    """A neighbour's live latency beside ten subscribers that stopped after one event each."""
    big = topic()
    with client(url) as pubsub:
        pubsub.publish_many(big, [{"type": "chunk", "data": "x" * size}] * (total // size), timeout=300)
    alone, beside, grown = [], [], []
    samples = usual(1000, 100)
    for _ in range(usual(3)):
        with client(url) as pubsub:
            name = topic()
            with pubsub.subscribe(name) as neighbour:
                alone.append(percentile(_live_samples(pubsub, neighbour, name, samples), 0.99))
                before = resident_kib()
                stopped = [pubsub.subscribe_from_offset(big, 0) for _ in range(10)]
                for subscription in stopped:
                    subscription.get(10)
                time.sleep(2)
                beside.append(percentile(_live_samples(pubsub, neighbour, name, samples), 0.99))
                grown.append((resident_kib() - before) / 1024)
                for subscription in stopped:
                    subscription.close()
    label = f"{size // 1000} KB events"
    return [
        Row(
            f"live p99 beside ten stopped subscribers, {label}",
            median(beside) * 1e3,
            "ms",
            median(alone) * 1e3,
            "without them",
            at_most=2.0,
        ),
        Row(f"memory grown by ten stopped subscribers, {label}", max(grown), "MB", at_most=100),
    ]


def _live_samples(pubsub: S2PubSub, events, name: str, count: int) -> list[float]:
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        pubsub.publish(name, type="chunk", data=SMALL)
        events.get(20)
        taken.append(time.perf_counter() - began)
    return taken


# -- frozen connection -----------------------------------------------------------------------------------------------


def frozen(port: int) -> list[Row]:
    """The proxy stops forwarding on the open connections; new ones work."""
    with FaultProxy(port) as proxy, client(proxy.url) as pubsub:
        name = topic()
        with pubsub.subscribe(name) as events:
            pubsub.publish(name, type="chunk", data=0)
            events.get(5)
            proxy.stall()
            began = time.perf_counter()
            with contextlib.suppress(Exception):
                pubsub.publish(name, type="chunk", data=1, timeout=2)
            pubsub.publish(name, type="chunk", data=2)
            published = time.perf_counter() - began
            while events.get(40).data != 2:
                pass
            received = time.perf_counter() - began
    return [
        Row("frozen connection: publishes go on, after one timeout of 2 s", published, "s", at_most=3),
        Row("frozen connection: the subscriber has caught up (SDK silence limit 20 s)", received, "s", at_most=21.5),
    ]


def on_lite(measure: Callable[[LiteServer], Iterable[Row]], flush: str = "5ms") -> Iterator[Row]:
    with lite(flush) as server:
        yield from measure(server)


def live_at_both() -> Iterator[Row]:
    for flush in ("5ms", "1ms"):
        yield from on_lite(lambda server, flush=flush: live(server.url, flush), flush)


PARTS: Parts = {
    "publish": lambda: on_lite(lambda server: [publish_latency(server.url, 0), publish_latency(server.url, 50)]),
    "replay": lambda: on_lite(lambda server: replay(server.url)),
    "live": live_at_both,
    "stalled": lambda: on_lite(lambda server: stalled(server.url, 1000) + stalled(server.url, 100_000)),
    "frozen": lambda: on_lite(lambda server: frozen(server.port)),
}

if __name__ == "__main__":
    sys.exit(main("core", "The core beside the raw SDK", PARTS))
