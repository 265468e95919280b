"""Beside the Python peers, in one run: ``python -m benchmarks.bench_peers [redis] [nats] [durable-streams]``.

redis-py Streams (``appendfsync always``) and nats-py JetStream (file storage) beside ours on `s2 lite`; the sync
client of durable-streams on its reference server (in memory) beside ours on the embedded server (in memory). All
publish the same event and encode it each time, and all decode every event they read into Python values, into a list or
one by one as their client gives them.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

from benchmarks import peers
from benchmarks.measuring import Pairs, Parts, Row, main, median, usual, versions
from benchmarks.ours import REPLAYED, SMALL, body, client, filled, from_threads, lite, live, lone, replay, topic
from s2pubsub import S2PubSub
from tests.servers import EmbeddedServer

THREADS = 64
ROUNDS = usual(3)


def publishing(pubsub: S2PubSub, name: str) -> Callable[[], Any]:
    return lambda: pubsub.publish(name, type="chunk", data=SMALL, run_id="r")


def beside_redis() -> list[Row]:
    import redis

    versions["redis-py"] = version("redis")
    event = json.loads(body())
    found = Pairs("redis-py ")
    with peers.redis() as port, lite() as server, client(server.url) as pubsub:
        store = redis.Redis(port=port, max_connections=THREADS + 1)
        pipe = store.pipeline(transaction=False)
        for _ in range(REPLAYED):
            pipe.xadd("full", {"event": body()})
        pipe.execute()
        name, live_name = filled(pubsub), topic()
        for _ in range(ROUNDS):
            found.add(
                "64 threads, blocking publish",
                from_threads(publishing(pubsub, live_name)),
                from_threads(lambda: store.xadd("live", {"event": json.dumps(event)})),
            )
            found.add("replay", replay(pubsub, name), _xread(store))
        store.close()
    return [
        found.row("64 threads, blocking publish", "events/s", "json + XADD", at_least=1.0),
        found.row("replay", "events/s", "XREAD + json", at_least=0.9),
    ]


def _xread(store: Any) -> float:
    began, last, seen = time.perf_counter(), b"0", 0
    while seen < REPLAYED:
        [[_, entries]] = store.xread({"full": last}, count=1000)
        last = entries[-1][0]
        seen += len([json.loads(fields[b"event"]) for _, fields in entries])
    return seen / (time.perf_counter() - began)


def beside_nats() -> list[Row]:
    versions["nats-py"] = version("nats-py")
    found = Pairs("nats-py JetStream + json")
    with peers.nats() as port, lite() as server, client(server.url) as pubsub:
        name = filled(pubsub)
        asyncio.run(_fill_nats(port))
        for _ in range(ROUNDS):
            found.add("replay", replay(pubsub, name), asyncio.run(_read_nats(port)))
    return [found.row("replay", "events/s", at_least=2.0)]


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

    versions["durable-streams"] = version("durable-streams")

    def at(name: str) -> DurableStream:
        return DurableStream(f"http://127.0.0.1:{port}/{name}", content_type="application/json", batching=True)

    event = json.loads(body())
    found = Pairs("durable-streams, its own server")
    with peers.durable_streams() as port, EmbeddedServer() as server, client(server.url) as pubsub:
        pubsub.ensure_basin()
        full, live_stream = at("full"), at("live")
        full.create_stream()
        live_stream.create_stream()
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda _: full.append(event), range(REPLAYED)))
        name, live_name = filled(pubsub), topic()
        ours, theirs = publishing(pubsub, live_name), lambda: live_stream.append(event)
        for number in range(ROUNDS):
            found.add("embedded: 64 threads, blocking publish", from_threads(ours), from_threads(theirs))
            found.add("embedded: replay", replay(pubsub, name), _read_durable_streams(at("full")))
            found.add("embedded: lone publish, p50", lone(ours), lone(theirs))
            found.add("embedded: live, p50", _live_ours(pubsub), _live_theirs(at, f"live-{number}", event))
        full.close()
        live_stream.close()
    return [
        found.row("embedded: 64 threads, blocking publish", "events/s", at_least=0.75),
        found.row("embedded: replay", "events/s", at_least=0.75),
        found.row("embedded: lone publish, p50", "ms", at_most=1.8),
        found.row("embedded: live, p50", "ms", at_most=1.8),
    ]


def _read_durable_streams(source: Any) -> float:
    began = time.perf_counter()
    with source.stream(offset="-1", live=False) as response:
        seen = len(response.read_json())
        taken = time.perf_counter() - began
    source.close()
    if seen != REPLAYED:
        raise RuntimeError(f"durable-streams replayed {seen} events")
    return seen / taken


def _live_ours(pubsub: S2PubSub) -> float:
    name = topic()
    with pubsub.subscribe(name) as events:
        return median(live(publishing(pubsub, name), lambda: events.get(10))[10:])


def _live_theirs(at: Callable[[str], Any], name: str, event: Any) -> float:
    writer, reader = at(name), at(name)
    writer.create_stream()
    with reader.stream(offset="-1", live="sse") as response:
        events = response.iter_json()
        taken = live(lambda: writer.append(event), lambda: next(events))
    writer.close()
    reader.close()
    return median(taken[10:])


PARTS: Parts = {"redis": beside_redis, "nats": beside_nats, "durable-streams": beside_durable_streams}

if __name__ == "__main__":
    sys.exit(main("peers", "Beside the Python peers", PARTS))
