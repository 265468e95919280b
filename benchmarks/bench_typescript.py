"""Beside the TypeScript package on Node 22, in one run: ``python -m benchmarks.bench_typescript [parts…]``.

Both sides talk to one `s2 lite`, take turns, publish the same event, check and encode it each time and decode and
check every event that they read. Each measures itself from within: what Python and Node tell each other is not part of
a figure. The package is `@s2-dev/mastra-pubsub` where npm finds it, or the built folder that ``MASTRA_PUBSUB`` names
(see ``tests/interop``); without either this is left out.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import bench_fanout, bench_leases, bench_subscriptions
from benchmarks.measuring import Missing, Pairs, Parts, Row, in_child, main, median, usual, versions
from benchmarks.ours import (
    BASIN,
    REPLAYED,
    SECONDS,
    SMALL,
    client,
    filled,
    from_threads,
    lite,
    replay,
    topic,
    without_msgspec,
)
from s2pubsub import S2PubSub
from tests.interop import packages
from tests.interop.node import Node
from tests.servers import Server

SCRIPTS = Path(__file__).parent / "typescript"
EVENT = {"type": "chunk", "runId": "r", "data": SMALL}
LATENCIES = usual(300, 20)
MOMENTS = {"in step": 0.0, "at random moments": 0.01}
"""Seconds up to which each publish waits behind the last event: in step with the server's flush, or at any moment."""
LEASES = usual(50, 5)
IN_FLIGHT = 1024
LIMIT = 120.0
ROUNDS = usual(3)
REPLAYS = usual(7)


_found: list[Path | Missing] = []


def installed() -> Path:
    """The folder of Node and the package, looked for once; raises ``Missing``."""
    if not _found:
        try:
            folder = packages.install()
            is_there = packages.transport(folder) == packages.PUBSUB
            absent = f"npm has no {packages.PUBSUB} here, and MASTRA_PUBSUB names no built folder of it"
            _found.append(folder if is_there else Missing(absent))
        except packages.UnavailableError as problem:
            _found.append(Missing(str(problem)))
    if isinstance(_found[0], Missing):
        raise _found[0]
    return _found[0]


@contextlib.contextmanager
def node(server: Server) -> Iterator[Node]:
    """A Node process with the package, on the server."""
    folder = installed()
    with packages.scripts(folder, SCRIPTS) as run:
        for name in (packages.PUBSUB, "@s2-dev/streamstore", "@mastra/core", "node"):
            manifests = (home / "node_modules" / name / "package.json" for home in (run, folder))
            versions[name] = json.loads(next(path for path in manifests if path.exists()).read_text())["version"]
        env = {"BENCH": json.dumps({"basin": BASIN, "event": EVENT}), **server.endpoints_env()}
        process = Node(packages.program(folder), run, env)
        try:
            yield process
        finally:
            process.close()


@contextlib.contextmanager
def both() -> Iterator[tuple[Node, S2PubSub, str]]:
    """The package and ours on one server, and its URL."""
    with lite() as server, node(server) as theirs, client(server.url) as ours:
        yield theirs, ours, server.url


def call(theirs: Node, command: str, **arguments: Any) -> Any:
    return theirs.call(command, timeout=LIMIT, **arguments)


# -- reading ---------------------------------------------------------------------------------------------------------


def reading() -> Iterator[Row]:
    found = Pairs("TypeScript")
    with both() as (theirs, ours, _):
        name = filled(ours)
        for _ in range(3):
            call(theirs, "replay", topic=name, count=REPLAYED)  # V8 compiles what is used often
        for _ in range(REPLAYS):
            # Each beside a run of theirs of its own, since who was idle before is slower.
            peer = partial(call, theirs, "replay", topic=name, count=REPLAYED)
            found.add("replay through the iterator", replay(ours, name), peer())
            found.add("replay by a callback", _by_callback(ours, name), peer())
            with without_msgspec():
                found.add("replay through the iterator, without the extra 'fast'", replay(ours, name), peer())
            found.add("get_history", _history(ours, name), call(theirs, "history", topic=name, count=REPLAYED))
    yield found.row("replay by a callback", "events/s", at_least=0.8)
    yield found.row("replay through the iterator", "events/s", ", by a callback", at_least=0.8)
    yield found.row("replay through the iterator, without the extra 'fast'", "events/s", ", by a callback")
    yield found.row("get_history", "events/s")


def _by_callback(pubsub: S2PubSub, name: str) -> float:
    done = threading.Event()

    def take(event: Any) -> None:
        if event.index == REPLAYED - 1:
            done.set()

    began = time.perf_counter()
    with pubsub.subscribe_from_offset(name, 0, take):
        if not done.wait(LIMIT):
            raise RuntimeError("the replay did not end")
        return REPLAYED / (time.perf_counter() - began)


def _history(pubsub: S2PubSub, name: str) -> float:
    began = time.perf_counter()
    events = pubsub.get_history(name)
    return len(events) / (time.perf_counter() - began)


# -- publishing ------------------------------------------------------------------------------------------------------


def publishing() -> Iterator[Row]:
    found = Pairs("TypeScript")
    with both() as (theirs, ours, _):
        begun = partial(_begun, ours)
        call(theirs, "rate", topic=begun(), duration=SECONDS, inFlight=64)  # V8 compiles what is used often
        for _ in range(ROUNDS):
            for when, pause in MOMENTS.items():
                published, delivered = _latency(ours, pause)
                peer = call(theirs, "latency", topic=topic(), count=LATENCIES, pause=pause)
                found.add(f"publish with a live subscriber, {when}, p50", published, peer["publish"])
                found.add(f"live delivery, {when}, p50", delivered, peer["live"])
            name = begun()
            found.add(
                "64 publishes in flight",
                from_threads(lambda name=name: ours.publish(name, type="chunk", data=SMALL, run_id="r"), 64),
                call(theirs, "rate", topic=begun(), duration=SECONDS, inFlight=64),
            )
            peer = call(theirs, "rate", topic=begun(), duration=SECONDS, inFlight=IN_FLIGHT)
            found.add("pipelined publish", _pipelined(ours), peer)
    yield found.row("publish with a live subscriber, in step, p50", "ms", at_most=1)
    yield found.row("publish with a live subscriber, at random moments, p50", "ms")
    for when in MOMENTS:
        yield found.row(f"live delivery, {when}, p50", "ms")
    yield found.row("64 publishes in flight", "events/s", at_least=1)
    yield found.row("pipelined publish", "events/s", f", {IN_FLIGHT} not awaited, out of order", at_least=1)


def _begun(pubsub: S2PubSub) -> str:
    """A topic that is there: many appends at once to a new one may be told that it is not found."""
    name = topic()
    pubsub.publish(name, type="begin", data=None)
    return name


def _latency(pubsub: S2PubSub, pause: float) -> tuple[float, float]:
    """Median milliseconds of a publish, and until its event is there, with a live subscriber; one by one, each up to
    ``pause`` seconds after the last event.
    """
    name, published, delivered = topic(), [], []
    arrived: list[float] = []
    came = threading.Semaphore(0)

    def take(_: Any) -> None:
        arrived.append(time.perf_counter())
        came.release()

    with pubsub.subscribe(name, take):
        for _ in range(LATENCIES):
            time.sleep(pause * random.random())
            began = time.perf_counter()
            pubsub.publish(name, type="chunk", data=SMALL, run_id="r")
            published.append(time.perf_counter() - began)
            if not came.acquire(timeout=10):
                raise RuntimeError("nothing was delivered live")
            delivered.append(arrived[-1] - began)
    warm = LATENCIES // 10
    return median(published[warm:]) * 1e3, median(delivered[warm:]) * 1e3


def _pipelined(pubsub: S2PubSub) -> float:
    with pubsub.publisher(topic(), max_in_flight=IN_FLIGHT) as publisher:
        publisher.publish(type="chunk", data=SMALL, run_id="r").result(10)
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < SECONDS:
            publisher.publish(type="chunk", data=SMALL, run_id="r")
            count += 1
        publisher.flush()
        return count / (time.perf_counter() - began)


# -- fan-out, subscriptions, leases ----------------------------------------------------------------------------------


def fanout() -> Iterator[Row]:
    found = Pairs("TypeScript")
    kinds = {"64 publishes in flight": bench_fanout.IN_FLIGHT, "publishes one by one": bench_fanout.ONE_BY_ONE}
    with both() as (theirs, _, url):
        for _ in range(ROUNDS):
            for label, (events, in_flight) in kinds.items():
                arguments = {"subscribers": bench_fanout.SUBSCRIBERS, "events": events, "inFlight": in_flight}
                peer = call(theirs, "fanout", topic=topic(), **arguments)
                found.add(f"fan-out to 100, {label}", bench_fanout.ours(url, events, in_flight), peer)
    for label in kinds:
        yield found.row(f"fan-out to 100, {label}", "deliveries/s")


def subscriptions(count: int = 500) -> Iterator[Row]:
    found = Pairs("TypeScript")
    installed()
    with lite() as server, client(server.url) as writer:
        for _ in range(ROUNDS):
            mine = in_child(bench_subscriptions.ours, server.url, bench_subscriptions.made(server.url, count))
            names = bench_subscriptions.made(server.url, count)
            with node(server) as theirs:  # a fresh one: its memory counts
                opened = call(theirs, "subscribe", topics=names)
                while silent := call(theirs, "silent"):  # published here, so that it does nothing but subscribe
                    for name in silent:
                        writer.publish(name, type="chunk", data=SMALL, run_id="r")
                each_kib = call(theirs, "memory") / count / 1024
            found.add(f"{count} subscriptions: memory of each", mine.each_kib, each_kib)
            found.add(f"{count} subscriptions: opened, ten at a time", mine.opened, opened)
    yield found.row(f"{count} subscriptions: memory of each", "KiB", ", without a thread")
    yield found.row(f"{count} subscriptions: opened, ten at a time", "s")


def leases() -> Iterator[Row]:
    found = Pairs("TypeScript")
    with both() as (theirs, ours, _):
        bench_leases.measure(ours, 2)
        for _ in range(ROUNDS):
            mine = bench_leases.measure(ours, LEASES)
            peer = call(theirs, "leases", keys=[f"new-{uuid.uuid4()}" for _ in range(LEASES)], ttl=60_000)
            for name, samples in peer.items():
                found.add(f"lease: {name}, p50", median(mine[name]), median(samples))
    for name in peer:
        yield found.row(f"lease: {name}, p50", "ms")


PARTS: Parts = {
    "reading": reading,
    "publishing": publishing,
    "fanout": fanout,
    "subscriptions": subscriptions,
    "leases": leases,
}

if __name__ == "__main__":
    sys.exit(main("typescript", "Beside the TypeScript package", PARTS))
