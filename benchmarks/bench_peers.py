"""Beside the peers, in one run: ``python -m benchmarks.bench_peers [redis] [nats] [durable-streams]``.

redis-py Streams (``appendfsync always``) and nats-py JetStream (file storage) beside ours on ``s2 lite``; the sync
client of durable-streams on its reference server (in memory) beside ours on the embedded server (in memory).
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks import peers
from benchmarks.bench_core import BASIN, SMALL, client, lite, topic
from benchmarks.measuring import Row, median, progress, write
from s2pubsub import S2PubSub
from s2pubsub.codec import encode
from tests.servers import EmbeddedServer

REPLAYED = 50_000
PUBLISHED = 6_000
THREADS = 64
ROUNDS = 3


def body() -> bytes:
    return encode("agent.x", type="chunk", data=SMALL, run_id="r")[1]


def threads_per_second(publish: Callable[[], Any], count: int = PUBLISHED, threads: int = THREADS) -> float:
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: publish(), range(threads)))
        began = time.perf_counter()
        list(pool.map(lambda _: publish(), range(count)))
        return count / (time.perf_counter() - began)


def replay_per_second(pubsub: S2PubSub, name: str, count: int = REPLAYED) -> float:
    began = time.perf_counter()
    with pubsub.subscribe_from_offset(name, 0) as events:
        for event in events:
            if event.index == count - 1:
                break
    return count / (time.perf_counter() - began)


def filled(pubsub: S2PubSub, count: int = REPLAYED) -> str:
    name = topic()
    pubsub.publish_many(name, [{"type": "chunk", "data": SMALL, "run_id": "r"}] * count, timeout=120)
    return name


def beside_redis() -> list[Row]:
    import redis

    record = body()
    ours, theirs, our_replay, their_replay = [], [], [], []
    with peers.redis() as port, lite() as server, client(server.url) as pubsub:
        pool = redis.Redis(port=port, max_connections=THREADS)
        pipe = pool.pipeline(transaction=False)
        for _ in range(REPLAYED):
            pipe.xadd("full", {"event": record})
        pipe.execute()
        name, live = filled(pubsub), topic()
        for _ in range(ROUNDS):
            ours.append(threads_per_second(lambda: pubsub.publish(live, type="chunk", data=SMALL)))
            theirs.append(threads_per_second(lambda: pool.xadd("live", {"event": record})))
            our_replay.append(replay_per_second(pubsub, name))
            their_replay.append(_xread(pool))
        pool.close()
    return [
        Row("64 threads, blocking publish", median(ours), "events/s", median(theirs), "redis-py XADD", at_least=1.0),
        Row("replay", median(our_replay), "events/s", median(their_replay), "redis-py XREAD + json", at_least=0.9),
    ]


def _xread(pool: Any) -> float:
    began, last, seen = time.perf_counter(), b"0", 0
    while seen < REPLAYED:
        [[_, entries]] = pool.xread({"full": last}, count=1000)
        last = entries[-1][0]
        seen += len([json.loads(fields[b"event"]) for _, fields in entries])
    return seen / (time.perf_counter() - began)


def beside_nats() -> list[Row]:
    ours, theirs = [], []
    with peers.nats() as port, lite() as server, client(server.url) as pubsub:
        name = filled(pubsub)
        asyncio.run(_fill_nats(port))
        for _ in range(ROUNDS):
            ours.append(replay_per_second(pubsub, name))
            theirs.append(asyncio.run(_read_nats(port)))
    return [Row("replay", median(ours), "events/s", median(theirs), "nats-py JetStream + json", at_least=2.0)]


async def _fill_nats(port: int) -> None:
    import nats

    connection = await nats.connect(f"nats://127.0.0.1:{port}")
    stream = connection.jetstream()
    await stream.add_stream(name="bench", subjects=["bench"])
    record = body()
    for _ in range(REPLAYED // 1000):
        await asyncio.gather(*(stream.publish("bench", record) for _ in range(1000)))
    await connection.close()


async def _read_nats(port: int) -> float:
    import nats
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

    connection = await nats.connect(f"nats://127.0.0.1:{port}", pending_size=64 * 2**20)
    began, seen = time.perf_counter(), 0
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL)
    events = await connection.jetstream().pull_subscribe("bench", config=config)
    while seen < REPLAYED:
        seen += len([json.loads(message.data) for message in await events.fetch(1000, timeout=10)])
    taken = time.perf_counter() - began
    await connection.close()
    return seen / taken


def beside_durable_streams() -> list[Row]:
    from durable_streams import DurableStream

    def at(name: str) -> DurableStream:
        return DurableStream(f"http://127.0.0.1:{port}/{name}", content_type="application/json", batching=True)

    event = json.loads(body())
    figures: dict[str, tuple[list[float], list[float]]] = {
        key: ([], []) for key in ("threads", "replay", "append", "live")
    }
    with peers.durable_streams() as port, EmbeddedServer() as server, client(server.url) as pubsub:
        pubsub.ensure_basin()
        assert pubsub.basin == BASIN
        full, live = at("full"), at("live")
        full.create_stream()
        live.create_stream()
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda _: full.append(event), range(REPLAYED)))
        name, ours_live = filled(pubsub), topic()
        for _ in range(ROUNDS):
            figures["threads"][0].append(
                threads_per_second(lambda: pubsub.publish(ours_live, type="chunk", data=SMALL))
            )
            figures["threads"][1].append(threads_per_second(lambda: live.append(event)))
            figures["replay"][0].append(replay_per_second(pubsub, name))
            figures["replay"][1].append(_read_durable_streams(at("full")))
            figures["append"][0].append(_lone(lambda: pubsub.publish(ours_live, type="chunk", data=SMALL)))
            figures["append"][1].append(_lone(lambda: live.append(event)))
            figures["live"][0].append(_live_ours(pubsub))
            figures["live"][1].append(_live_theirs(at))
        full.close()
        live.close()

    def beside(key: str, unit: str) -> tuple[float, str, float, str]:
        mine, peer = figures[key]
        return median(mine), unit, median(peer), "durable-streams, its own server"

    return [
        Row("embedded: 64 threads, publish", *beside("threads", "events/s"), at_least=0.75),
        Row("embedded: replay", *beside("replay", "events/s"), at_least=0.75),
        Row("embedded: lone publish p50", *beside("append", "ms"), at_most=1.8),
        Row("embedded: live p50", *beside("live", "ms"), at_most=1.8),
    ]


def _read_durable_streams(source: Any) -> float:
    began = time.perf_counter()
    with source.stream(offset="-1", live=False) as response:
        seen = len(response.read_json())
    taken = time.perf_counter() - began
    source.close()
    return seen / taken


def _lone(publish: Callable[[], Any], count: int = 200) -> float:
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        publish()
        taken.append(time.perf_counter() - began)
    return median(taken) * 1e3


def _live_ours(pubsub: S2PubSub, count: int = 100) -> float:
    name, taken = topic(), []
    with pubsub.subscribe(name) as events:
        for _ in range(count):
            began = time.perf_counter()
            pubsub.publish(name, type="chunk", data=SMALL)
            events.get(10)
            taken.append(time.perf_counter() - began)
    return median(taken[10:]) * 1e3


def _live_theirs(at: Callable[[str], Any], count: int = 100) -> float:
    name = uuid.uuid4().hex
    writer, reader = at(name), at(name)
    writer.create_stream()
    arrived: list[float] = []
    came = threading.Event()

    def read() -> None:
        with reader.stream(offset="-1", live="sse") as response:
            for _ in response.iter_json():
                arrived.append(time.perf_counter())
                came.set()
                if len(arrived) == count:
                    return

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    taken = []
    for _ in range(count):
        came.clear()
        began = time.perf_counter()
        writer.append({"n": 1})
        if not came.wait(10):
            raise peers.Missing("durable-streams delivered nothing live")
        taken.append(arrived[-1] - began)
    thread.join(10)
    writer.close()
    reader.close()
    return median(taken[10:]) * 1e3


PARTS = {"redis": beside_redis, "nats": beside_nats, "durable-streams": beside_durable_streams}


def main(names: list[str]) -> int:
    rows: list[Row] = []
    for name in names or PARTS:
        progress(name)
        try:
            rows += PARTS[name]()
        except (peers.Missing, ImportError) as missing:
            progress(f"left out: {missing}")
    write("peers" if not names else "peers-" + "-".join(names), "Beside the peers", rows)
    return 0 if all(row.holds is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
