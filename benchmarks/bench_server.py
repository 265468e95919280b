"""The embedded server beside the real one: latency, throughput, memory, start and stop.

    python -m benchmarks.bench_server [parts…]

The client is the Python SDK, the servers run in processes of their own, records have 100 bytes. Without `s2 lite` the
figures beside ours are missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import attrs
import s2_sdk

from benchmarks.measuring import Missing, Parts, Row, main, median, percentile, progress, resident_kib, seconds, usual
from benchmarks.ours import lite, reading
from s2pubsub.server import LocalServer
from tests.server.process import ServerCommand
from tests.servers import ServerProcess

RECORD = b"x" * 100
LONE = usual(600, 100)
BATCHES = usual(1500, 200)
BATCH = 100
LIVE = usual(200, 50)
SESSIONS = 500
ROUNDS = usual(3)


@attrs.frozen
class Figures:
    """What is measured on each server; medians of the rounds."""

    lone_ms: float
    append_rate: float
    replay_rate: float
    live_ms: float
    session_kib: float


@contextlib.asynccontextmanager
async def basin_on(url: str):
    """A client and a basin of its own."""
    async with s2_sdk.S2("bench", endpoints=s2_sdk.Endpoints(account=url, basin=url)) as client:
        name = f"bench-{uuid.uuid4().hex[:20]}"
        await client.create_basin(name)
        yield client.basin(name)
        await client.delete_basin(name)


def batch_of(count: int, body: bytes = RECORD) -> s2_sdk.AppendInput:
    return s2_sdk.AppendInput(records=[s2_sdk.Record(body=body) for _ in range(count)])


async def lone_append(basin: s2_sdk.S2Basin) -> float:
    """Median of unary appends one after the other, in milliseconds."""
    await basin.create_stream("lone")
    stream = basin.stream("lone")
    samples = []
    for _ in range(LONE):
        began = time.perf_counter()
        await stream.append(batch_of(1))
        samples.append(time.perf_counter() - began)
    return percentile(samples, 0.5) * 1000


async def throughput(basin: s2_sdk.S2Basin) -> tuple[float, float]:
    """Records a second of one append session in batches, and of one read session over them."""
    await basin.create_stream("bulk")
    stream = basin.stream("bulk")
    batch = batch_of(BATCH)
    began = time.perf_counter()
    async with stream.append_session() as session:
        tickets = [await session.submit(batch) for _ in range(BATCHES)]
        for ticket in tickets:
            await ticket
    append_rate = BATCHES * BATCH / (time.perf_counter() - began)
    began = time.perf_counter()
    count = 0
    async with reading(stream) as session:
        async for part in session:
            count += len(part.records)
            if count == BATCHES * BATCH:
                break
    return append_rate, count / (time.perf_counter() - began)


READER = """
import asyncio, os, statistics, sys, time
import s2_sdk
async def main(url, basin, count):
    async with s2_sdk.S2("bench", endpoints=s2_sdk.Endpoints(account=url, basin=url)) as client:
        samples = []
        async with client.basin(basin).stream("live").read_session(start=s2_sdk.SeqNum(0)) as session:
            async for part in session:
                now = time.monotonic_ns()
                for record in part.records:
                    if record.body == b"ready?":
                        print("ready", flush=True)
                    else:
                        samples.append(now - int(record.body))
                if len(samples) >= count:
                    print(statistics.median(samples) / 1e6, flush=True)
                    os._exit(0)  # closing may take for ever on Python 3.11
asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


async def live(url: str, basin: s2_sdk.S2Basin) -> float:
    """Median time from before an append in this process to its arrival in another, in milliseconds."""
    await basin.create_stream("live")
    stream = basin.stream("live")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", READER, url, basin.name, str(LIVE), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    await stream.append(batch_of(1, b"ready?"))
    await process.stdout.readline()
    for _ in range(LIVE):
        await stream.append(batch_of(1, str(time.monotonic_ns()).encode()))
        await asyncio.sleep(0.005)
    answer = await process.stdout.readline()
    await process.wait()
    return float(answer)


async def sessions(server: ServerProcess, basin: s2_sdk.S2Basin) -> float:
    """Memory in the server for each of many open read sessions, in KiB."""
    await basin.create_stream("idle")
    stream = basin.stream("idle")
    async with contextlib.AsyncExitStack() as stack:
        before = resident_kib(server.pid)
        for _ in range(SESSIONS):
            session = await stack.enter_async_context(reading(stream))
            await session.caught_up()
        return (resident_kib(server.pid) - before) / SESSIONS


async def measure(server: ServerProcess, label: str) -> Figures:
    """All figures of one server."""
    found = []
    for number in range(ROUNDS):
        progress(f"{label}, round {number + 1} of {ROUNDS}")
        async with basin_on(server.url) as basin:
            # First of all, on a fresh server: later there would be freed memory to use again.
            memory = await sessions(server, basin) if number == 0 else 0.0
            lone = await lone_append(basin)
            append_rate, replay_rate = await throughput(basin)
            live_ms = await live(server.url, basin)
        found.append(Figures(lone, append_rate, replay_rate, live_ms, memory))
    middle = {name: median([getattr(figures, name) for figures in found]) for name in attrs.fields_dict(Figures)}
    return Figures(**{**middle, "session_kib": found[0].session_kib})


def start_and_stop() -> Iterator[Row]:
    """How long it takes to start and to stop."""

    def thread() -> float:
        server = LocalServer()
        took = seconds(server.start)
        server.close()
        return took * 1000

    yield Row("start in a thread", median([thread() for _ in range(5)]), "ms", at_most=50)

    def command() -> float:
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "s2pubsub.server", "--port", "0"], stdout=subprocess.PIPE, text=True
        )
        with process:
            assert process.stdout is not None
            while not process.stdout.readline().startswith("export S2_BASIN_ENDPOINT"):
                pass
            took = time.perf_counter() - began
            process.terminate()
        return took

    yield Row(
        "start as a command, until it says where it listens", median([command() for _ in range(3)]), "s", at_most=1
    )

    took = 0.0

    async def stopping() -> None:
        nonlocal took
        with LocalServer() as server:
            async with basin_on(server.url) as basin, contextlib.AsyncExitStack() as stack:
                await basin.create_stream("live")
                for _ in range(50):
                    stream = basin.stream("live")
                    session = await stack.enter_async_context(reading(stream))
                    await session.caught_up()
                took = await asyncio.to_thread(seconds, server.close)

    with contextlib.suppress(s2_sdk.S2Error):  # the sessions end with the server
        asyncio.run(stopping())
    yield Row("stop with 50 live sessions", took, "s", at_most=5)


def rows(ours: Figures, lite: Figures | None, kept: bool) -> Iterator[Row]:
    """The figures of one way to run it; bounds hold for the one in memory."""
    label = "with data" if kept else "in memory"
    beside = "s2 lite on disk" if kept else "s2 lite"

    def bound(value: float) -> float | None:
        return None if kept else value

    yield Row(f"{label}: lone append, p50", ours.lone_ms, "ms", at_most=bound(1.5))
    yield Row(f"{label}: append session, batches of {BATCH}", ours.append_rate, "records/s", at_least=bound(80_000))
    yield Row(f"{label}: live from process to process, p50", ours.live_ms, "ms", at_most=bound(3))
    yield Row(f"{label}: memory of an open read session", ours.session_kib, "KiB", at_most=bound(60))
    if lite is None:
        yield Row(f"{label}: replay", ours.replay_rate, "records/s")
        return
    yield Row(f"{label}: replay", ours.replay_rate, "records/s", lite.replay_rate, beside, at_least=bound(1))
    yield Row(f"{beside}: lone append, p50", lite.lone_ms, "ms")
    yield Row(f"{beside}: append session, batches of {BATCH}", lite.append_rate, "records/s")
    yield Row(f"{beside}: live from process to process, p50", lite.live_ms, "ms")
    yield Row(f"{beside}: memory of an open read session", lite.session_kib, "KiB")


def beside_lite(*, kept: bool) -> Iterator[Row]:
    """All figures of both servers, in memory or on disk."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        with ServerCommand(data=path / "ours" if kept else None) as server:
            ours = asyncio.run(measure(server, "embedded with data" if kept else "embedded"))
        lite_figures = None
        with contextlib.suppress(Missing):
            (path / "lite").mkdir()
            with lite(None, path / "lite" if kept else None) as server:
                lite_figures = asyncio.run(measure(server, "s2 lite on disk" if kept else "s2 lite"))
    yield from rows(ours, lite_figures, kept)


PARTS: Parts = {
    "start-stop": start_and_stop,
    "in-memory": lambda: beside_lite(kept=False),
    "with-data": lambda: beside_lite(kept=True),
}

if __name__ == "__main__":
    sys.exit(main("server", "The embedded server beside s2 lite", PARTS))
