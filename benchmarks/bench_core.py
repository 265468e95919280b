"""The core beside the raw SDK: ``python -m benchmarks.bench_core [names…]``.

Publish latency (alone, and with 50 live subscriptions), replay, live delivery, stalled neighbours, idle
subscriptions, a frozen connection. Runs its own ``s2 lite`` with a 5 ms flush, and once with 1 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import s2_sdk

from benchmarks.measuring import Row, median, percentile, progress, resident_kib, write
from s2pubsub import S2PubSub
from s2pubsub.codec import decode_batch
from tests.faults import FaultProxy
from tests.servers import LiteServer

BASIN = "bench-core"
SMALL = {"type": "text-delta", "runId": "r", "from": "AGENT", "payload": {"id": "t1", "text": "Hello"}}


@contextlib.contextmanager
def lite(flush: str = "5ms") -> Iterator[LiteServer]:
    with LiteServer(flush=flush) as server:
        with client(server.url) as pubsub:
            pubsub.ensure_basin()
        yield server


def client(url: str, **settings) -> S2PubSub:
    return S2PubSub(basin=BASIN, access_token="bench", endpoints=url, **settings)


def topic() -> str:
    return f"agent.bench.{uuid.uuid4()}"


def raw(url: str) -> s2_sdk.S2:
    return s2_sdk.S2("bench", endpoints=s2_sdk.Endpoints(account=url, basin=url))


def stream(s2: s2_sdk.S2, name: str) -> s2_sdk.S2Stream:
    return s2.basin(BASIN).stream(f"mastra/durable/{name}")


# -- publish ---------------------------------------------------------------------------------------------------------


def publish_latency(url: str, subscriptions: int, rounds: int = 8, each: int = 40) -> Row:
    """Alternating blocks of our publishes and raw unary appends, each on connections of its own."""
    ours: list[float] = []
    theirs: list[float] = []
    with client(url) as pubsub, contextlib.ExitStack() as stack:
        for _ in range(subscriptions):
            stack.enter_context(pubsub.subscribe(topic()))
        name, body = topic(), pubsub.publish(topic(), type="chunk", data=SMALL)
        record = s2_sdk.Record(body=b"x" * 300)
        assert body.index == 0

        async def appends(s2: s2_sdk.S2) -> None:
            for _ in range(each):
                began = time.perf_counter()
                await stream(s2, name).append(s2_sdk.AppendInput([record]))
                theirs.append(time.perf_counter() - began)

        with asyncio.Runner() as runner:
            s2 = runner.run(_make(url))
            runner.run(appends(s2))
            theirs.clear()
            for _ in range(rounds):
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


def replay(url: str, count: int = 50_000, rounds: int = 5) -> Row:
    ours, theirs = [], []
    with client(url) as pubsub:
        name = topic()
        pubsub.publish_many(name, [{"type": "chunk", "data": SMALL, "run_id": "r"}] * count)
        for _ in range(rounds):
            gc.collect()
            began = time.perf_counter()
            with pubsub.subscribe_from_offset(name, 0) as events:
                for event in events:
                    if event.index == count - 1:
                        break
                ours.append(count / (time.perf_counter() - began))
            gc.collect()
            theirs.append(count / asyncio.run(_raw_replay(url, name, count)))
    return Row(
        "replay through the iterator", median(ours), "events/s", median(theirs), "raw SDK + decode", at_least=0.8
    )


async def _raw_replay(url: str, name: str, count: int) -> float:
    async with raw(url) as s2:
        await stream(s2, name).check_tail()
        began = time.perf_counter()
        batches = []
        async with stream(s2, name).read_session(start=s2_sdk.SeqNum(0)) as session:
            async for batch in session:
                events, _ = decode_batch(name, batch.records)
                batches.append(events)
                if events[-1].index == count - 1:
                    break
        return time.perf_counter() - began


# -- live ------------------------------------------------------------------------------------------------------------


def live(url: str, flush: str, rounds: int = 6, each: int = 50) -> list[Row]:
    ours: list[float] = []
    theirs: list[float] = []
    with client(url) as pubsub:
        name = topic()
        with pubsub.subscribe(name) as events:
            for _ in range(5):
                pubsub.publish(name, type="chunk", data=SMALL)
                events.get(5)
            for _ in range(rounds):
                arrived: list[float] = []
                came = threading.Semaphore(0)
                got = threading.Thread(target=_note_arrivals, args=(events, each, arrived, came))
                got.start()
                starts = []
                for _ in range(each):
                    starts.append(time.perf_counter())
                    pubsub.publish(name, type="chunk", data=SMALL)
                    came.acquire()  # as the raw SDK's driver, which goes on when it has both
                got.join()
                ours += [b - a for a, b in zip(starts, arrived, strict=True)]
                theirs += asyncio.run(_raw_live(url, each))
    ours_ms, theirs_ms = median(ours) * 1e3, median(theirs) * 1e3
    extra = Row(f"live delivery, flush {flush}: p50 above the raw SDK's", ours_ms - theirs_ms, "ms", at_most=1.0)
    return [Row(f"live delivery, flush {flush}, p50", ours_ms, "ms", theirs_ms, "raw SDK"), extra]


def _note_arrivals(events, count: int, arrived: list[float], came: threading.Semaphore) -> None:
    for _ in range(count):
        events.get(5)
        arrived.append(time.perf_counter())
        came.release()


async def _raw_live(url: str, each: int) -> list[float]:
    name, taken = topic(), []
    async with raw(url) as writer, raw(url) as reader:
        await stream(writer, name).append(s2_sdk.AppendInput([s2_sdk.Record(body=b"x")]))
        record = s2_sdk.Record(body=b"x" * 300)
        async with stream(reader, name).read_session(start=s2_sdk.SeqNum(0)) as session:
            await anext(session)
            for _ in range(each):
                began = time.perf_counter()
                append = asyncio.create_task(stream(writer, name).append(s2_sdk.AppendInput([record])))
                await anext(session)
                taken.append(time.perf_counter() - began)
                await append
    return taken


# -- stalled neighbours ----------------------------------------------------------------------------------------------


def stalled(url: str, size: int, total: int = 60 * 10**6, samples: int = 1000, rounds: int = 3) -> list[Row]:
    """A neighbour's live latency beside ten subscribers that stopped after one event each."""
    big = topic()
    with client(url) as pubsub:
        pubsub.publish_many(big, [{"type": "chunk", "data": "x" * size}] * (total // size), timeout=300)
    alone, beside, grown = [], [], []
    for _ in range(rounds):
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


# -- idle subscriptions ----------------------------------------------------------------------------------------------


def idle(url: str, count: int = 500, threads: int = 10) -> list[Row]:
    with client(url) as pubsub, ThreadPoolExecutor(threads) as pool:
        names = [topic() for _ in range(count)]
        list(pool.map(lambda name: pubsub.publish(name, type="chunk", data=1), names))
        with pubsub.subscribe(names[0]) as warm:
            pubsub.publish(names[0], type="chunk", data=2)
            warm.get(5)
        gc.collect()
        before = resident_kib()
        began = time.perf_counter()
        subscriptions = list(pool.map(pubsub.subscribe, names))
        opened = time.perf_counter() - began
        for subscription, name in zip(subscriptions, names, strict=True):
            pubsub.publish(name, type="chunk", data=3)
            subscription.get(20)
        time.sleep(1)
        gc.collect()
        each = (resident_kib() - before) / count
        began = time.perf_counter()
        list(pool.map(lambda subscription: subscription.close(), subscriptions))
        closed = time.perf_counter() - began
    return [
        Row(f"{count} idle subscriptions: memory of each", each, "KiB", at_most=120),
        Row(f"{count} idle subscriptions: opened from {threads} threads", opened, "s", at_most=5),
        Row(f"{count} idle subscriptions: closed", closed, "s", at_most=5),
    ]


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


PARTS: dict[str, Callable[[LiteServer], list[Row]]] = {
    "publish": lambda s: [publish_latency(s.url, 0), publish_latency(s.url, 50)],
    "replay": lambda s: [replay(s.url)],
    "live": lambda s: live(s.url, "5 ms"),
    "stalled": lambda s: stalled(s.url, 1000) + stalled(s.url, 100_000),
    "idle": lambda s: idle(s.url),
    "frozen": lambda s: frozen(s.port),
}


def main(names: list[str]) -> int:
    rows: list[Row] = []
    for name in names or PARTS:
        progress(name)
        with lite() as server:
            rows += PARTS[name](server)
        if name == "live":
            with lite("1ms") as server:
                rows += live(server.url, "1 ms")
    write("core" if not names else "core-" + "-".join(names), "The core beside the raw SDK", rows)
    return 0 if all(row.holds is not False for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
