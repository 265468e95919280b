"""Publishing measured: `publish` from many threads, and `publisher`, beside the bare SDK on the same server.

    python -m benchmarks.bench_publish [--rounds 3] [--seconds 2] [--endpoint http://127.0.0.1:8080] [--json]

Every round measures all variants one after the other; a ratio is taken within a round, and the median of the rounds is
what counts. Without `--endpoint` an `s2 lite` of its own is started.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import s2_sdk

from benchmarks.measuring import Row, usual, write
from benchmarks.ours import lite
from s2pubsub import S2PubSub
from s2pubsub.codec import encode
from tests.servers import CREATE_STREAMS, Server

RAW_IN_FLIGHT = 64
THREADS = (1, 8, 64, 256)
RATES = (200, 2000)
"""Calls a second of one publisher: what a model emits, and ten of them."""
DATA = {"type": "text-delta", "payload": {"text": "the next token"}, "n": 1}


class Bench:
    """One basin of one server."""

    def __init__(self, server: Server, seconds: float) -> None:
        self.server = server
        self.seconds = seconds
        self.basin = server.make_basin(**CREATE_STREAMS)
        self.endpoints = s2_sdk.Endpoints(account=server.url, basin=server.basin_url)

    def pubsub(self) -> S2PubSub:
        return S2PubSub(basin=self.basin, access_token=self.server.token, endpoints=self.endpoints)

    def topic(self) -> str:
        return f"agent.stream.{uuid.uuid4()}"

    def body(self) -> bytes:
        return encode("agent.stream.x", type="chunk", data=DATA, run_id="run")[1]

    # The bare SDK.

    def raw_unary(self) -> float:
        """Appends a second with 64 unary appends of one record in flight."""

        async def run() -> float:
            async with s2_sdk.S2(self.server.token, endpoints=self.endpoints) as s2:
                stream = s2.basin(self.basin).stream(self.topic())
                body = self.body()
                await stream.append(s2_sdk.AppendInput([s2_sdk.Record(body=body)]))
                stop_at = time.perf_counter() + self.seconds
                count = 0

                async def work() -> None:
                    nonlocal count
                    while time.perf_counter() < stop_at:
                        await stream.append(s2_sdk.AppendInput([s2_sdk.Record(body=body)]))
                        count += 1

                started = time.perf_counter()
                await asyncio.gather(*(work() for _ in range(RAW_IN_FLIGHT)))
                return count / (time.perf_counter() - started)

        return asyncio.run(run())

    def raw_producer(self, *, encoding: bool) -> float:
        """Records a second of the SDK's producer; with ``encoding`` each record is encoded as an event before."""

        async def run() -> float:
            async with s2_sdk.S2(self.server.token, endpoints=self.endpoints) as s2:
                stream = s2.basin(self.basin).stream(self.topic())
                topic, ready = self.topic(), self.body()
                async with stream.producer() as producer:
                    await (await producer.submit(s2_sdk.Record(body=ready)))
                    count = 0
                    started = time.perf_counter()
                    stop_at = started + self.seconds
                    window: list[Any] = []
                    while time.perf_counter() < stop_at:
                        body = encode(topic, type="chunk", data=DATA, run_id="run")[1] if encoding else ready
                        window.append(await producer.submit(s2_sdk.Record(body=body)))
                        count += 1
                        if len(window) >= 1024:  # what the publisher has in flight at most
                            for ticket in window[:512]:
                                await ticket
                            del window[:512]
                    await producer.flush()
                    return count / (time.perf_counter() - started)

        return asyncio.run(run())

    # The library.

    def threads(self, number: int) -> dict[str, float]:
        """Events a second of ``number`` threads that publish on one topic and wait, and a call's median time."""
        with self.pubsub() as pubsub:
            topic = self.topic()
            pubsub.publish(topic, type="chunk", data=DATA)
            counts = [0] * number
            took: list[float] = []
            go, stop = threading.Event(), threading.Event()

            def work(mine: int) -> None:
                go.wait()
                while not stop.is_set():
                    began = time.perf_counter()
                    pubsub.publish(topic, type="chunk", data=DATA, run_id="run")
                    if mine == 0:
                        took.append(time.perf_counter() - began)
                    counts[mine] += 1

            workers = [threading.Thread(target=work, args=(mine,)) for mine in range(number)]
            for worker in workers:
                worker.start()
            started = time.perf_counter()
            go.set()
            stop.wait(self.seconds)
            stop.set()
            for worker in workers:
                worker.join()
            total = sum(counts)
            spread = min(counts) / (total / number)
            return {
                "rate": total / (time.perf_counter() - started),
                "p50_ms": statistics.median(took) * 1000,
                "slowest_share": spread,
            }

    def publisher(self, **options: Any) -> float:
        """Events a second of one thread with one publisher."""
        with self.pubsub() as pubsub:
            topic = self.topic()
            with pubsub.publisher(topic, **options) as publisher:
                publisher.publish(type="chunk", data=DATA).result(10)
                count = 0
                started = time.perf_counter()
                stop_at = started + self.seconds
                while time.perf_counter() < stop_at:
                    publisher.publish(type="chunk", data=DATA, run_id="run")
                    count += 1
                publisher.flush()
                return count / (time.perf_counter() - started)

    def publisher_call(self, rate: float) -> dict[str, float]:
        """What a ``publisher.publish`` costs its caller at ``rate`` calls a second, in microseconds."""
        with self.pubsub() as pubsub, pubsub.publisher(self.topic()) as publisher:
            publisher.publish(type="chunk", data=DATA).result(10)
            latency: list[float] = []

            def publish() -> None:
                began = time.perf_counter()
                future = publisher.publish(type="chunk", data=DATA, run_id="run")
                future.add_done_callback(lambda _: latency.append(time.perf_counter() - began))

            found = self._paced(publish, rate)
            publisher.flush()
            return {**found, "stored_p50_ms": statistics.median(latency) * 1000}

    def plain_call(self, rate: float) -> dict[str, float]:
        """What it costs to write the same record with the standard library and to hand it to an idle asyncio loop."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()

        def hand_over() -> None:
            envelope = {
                "type": "chunk",
                "runId": "run",
                "data": DATA,
                "id": str(uuid.uuid4()),
                "createdAt": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "deliveryAttempt": 1,
            }
            body = json.dumps(envelope, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
            loop.call_soon_threadsafe(len, body)

        try:
            return self._paced(hand_over, rate)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def _paced(self, call: Callable[[], object], rate: float) -> dict[str, float]:
        """Call so many times a second; what a call takes, in microseconds."""
        took = []
        pace = threading.Event()
        stop_at = time.perf_counter() + self.seconds
        while time.perf_counter() < stop_at:
            began = time.perf_counter()
            call()
            took.append((time.perf_counter() - began) * 1e6)
            pace.wait(1 / rate)
        took.sort()
        return {
            "p50_us": statistics.median(took),
            "mean_us": statistics.fmean(took),
            "p99_us": took[int(len(took) * 0.99)],
        }


@contextmanager
def own_server(endpoint: str | None) -> Iterator[Server]:
    if endpoint is not None:
        yield Server(endpoint)
        return
    with lite(None) as server:
        yield server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=usual(3))
    parser.add_argument("--seconds", type=float, default=usual(2))
    parser.add_argument("--endpoint")
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="one round, into results/quick")
    arguments = parser.parse_args()
    with own_server(arguments.endpoint) as server:
        bench = Bench(server, arguments.seconds)
        variants: dict[str, Callable[[], Any]] = {
            "raw_unary_64": bench.raw_unary,
            **{f"threads_{number}": (lambda number=number: bench.threads(number)) for number in THREADS},
            "raw_producer": lambda: bench.raw_producer(encoding=False),
            "raw_producer_encoding": lambda: bench.raw_producer(encoding=True),
            "publisher": bench.publisher,
            "publisher_exactly_once": lambda: bench.publisher(exactly_once=True),
            **{f"publisher_call_at_{rate}": (lambda rate=rate: bench.publisher_call(rate)) for rate in RATES},
            **{f"plain_call_at_{rate}": (lambda rate=rate: bench.plain_call(rate)) for rate in RATES},
        }
        if arguments.only:
            variants = {name: run for name, run in variants.items() if name in arguments.only.split(",")}
        rounds: list[dict[str, Any]] = []
        for number in range(arguments.rounds):
            results = {}
            for name, run in variants.items():
                results[name] = run()
                if not arguments.json:
                    print(f"round {number + 1}  {name:24s} {_shown(results[name])}", flush=True)
            rounds.append(results)
        summary = ratios(rounds)
        if arguments.json:
            print(json.dumps({"rounds": rounds, "ratios": summary}))
        else:
            for name, value in summary.items():
                print(f"{name:44s} {value:.2f}")
        if not arguments.only:
            write("publish", "Publishing beside the raw SDK", rows(rounds))


def rows(rounds: list[dict[str, Any]]) -> list[Row]:
    """The figures with their bounds. A rate is the median of the rounds, a ratio the median of the rounds' ratios."""

    def rate(name: str) -> float:
        return statistics.median(_rate(results[name]) for results in rounds)

    def beside(title: str, ours: str, peer: str, peer_name: str, at_least: float | None) -> Row:
        ratio = statistics.median(_rate(results[ours]) / _rate(results[peer]) for results in rounds)
        return Row(title, rate(ours), "events/s", rate(ours) / ratio, peer_name, at_least=at_least)

    unary = "raw SDK unary appends, 64 in flight"
    found = [
        beside(f"{number} threads, blocking publish", f"threads_{number}", "raw_unary_64", unary, bound)
        for number, bound in ((1, None), (8, None), (64, 1.8), (256, 3.0))
    ]
    found += [
        beside("publisher", "publisher", "raw_producer", "SDK producer, one ready-made body", 0.85),
        beside("publisher", "publisher", "raw_producer_encoding", "SDK producer that encodes each event", 0.85),
        beside("publisher, exactly once", "publisher_exactly_once", "raw_producer_encoding", "the same", 0.85),
    ]
    for calls in RATES:
        for key, name in (("p50_us", "p50"), ("mean_us", "mean")):
            cost, plain = (
                statistics.median(results[f"{what}_at_{calls}"][key] for results in rounds)
                for what in ("publisher_call", "plain_call")
            )
            title = f"publisher.publish, cost for its caller at {calls} calls/s, {name}"
            peer = "json.dumps and call_soon_threadsafe"
            found.append(Row(title, cost, "µs", plain, peer, at_most=60, absolute=True))
    return found


def ratios(rounds: list[dict[str, Any]]) -> dict[str, float]:
    """Medians over the rounds of ratios taken within one round."""
    wanted = {
        "64 threads / raw unary, 64 in flight": ("threads_64", "raw_unary_64"),
        "256 threads / raw unary, 64 in flight": ("threads_256", "raw_unary_64"),
        "publisher / SDK producer": ("publisher", "raw_producer"),
        "publisher / SDK producer that encodes": ("publisher", "raw_producer_encoding"),
        "exactly once / SDK producer": ("publisher_exactly_once", "raw_producer"),
    }
    return {
        name: statistics.median(_rate(results[above]) / _rate(results[below]) for results in rounds)
        for name, (above, below) in wanted.items()
        if above in rounds[0] and below in rounds[0]
    }


def _rate(result: Any) -> float:
    return float(result["rate"] if isinstance(result, dict) else result)


def _shown(result: Any) -> str:
    if isinstance(result, dict):
        return "  ".join(f"{name} {value:.2f}" for name, value in result.items())
    return f"{result:.0f}/s"


if __name__ == "__main__":
    main()
