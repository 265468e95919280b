"""Our side of every comparison: `s2 lite`, a client and the raw SDK on it, and the event that all publish.

What is measured against a peer is measured here by one function for both, where both are Python. Relies on
`tests.servers` for the processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import s2_sdk

from benchmarks.measuring import Missing, note_version, percentile, usual
from s2pubsub import S2PubSub
from s2pubsub.codec import decode_batch, encode, fast
from s2pubsub.event import Event
from tests.servers import MISSING_LITE, LiteServer, find_lite

BASIN = "bench-core"
SMALL = {"type": "text-delta", "runId": "r", "from": "AGENT", "payload": {"id": "t1", "text": "Hello"}}
REPLAYED = usual(50_000, 5_000)
SECONDS = usual(2)
CLOSE_LIMIT = 0.2
CLOSE_TRIES = 25


@contextlib.contextmanager
def lite(flush: str | None = "5ms", local_root: Path | None = None) -> Iterator[LiteServer]:
    """`s2 lite` of one's own, with the basin that ``client`` uses."""
    program = find_lite()
    if program is None:
        raise Missing(MISSING_LITE)
    note_version("s2 lite", [program, "--version"])
    with LiteServer(flush=flush, local_root=local_root) as server:
        with client(server.url) as pubsub:
            pubsub.ensure_basin()
        yield server


def client(url: str, **settings: Any) -> S2PubSub:
    return S2PubSub(basin=BASIN, access_token="bench", endpoints=url, **settings)


def topic() -> str:
    return f"agent.bench.{uuid.uuid4()}"


def raw(url: str) -> s2_sdk.S2:
    return s2_sdk.S2("bench", endpoints=s2_sdk.Endpoints(account=url, basin=url))


def stream(s2: s2_sdk.S2, name: str) -> s2_sdk.S2Stream:
    return s2.basin(BASIN).stream(f"mastra/durable/{name}")


@contextlib.asynccontextmanager
async def reading(source: s2_sdk.S2Stream, start: int = 0) -> AsyncIterator[s2_sdk.ReadSession]:
    """A read session of the raw SDK. Its own close may wait for ever on Python 3.11, so it is asked again."""
    session = await source.read_session(start=s2_sdk.SeqNum(start)).__aenter__()
    try:
        yield session
    finally:
        for _ in range(CLOSE_TRIES):
            closing = asyncio.ensure_future(session.close())
            if (await asyncio.wait({closing}, timeout=CLOSE_LIMIT))[0]:
                break
            closing.cancel()


def body() -> bytes:
    """The event as it is stored."""
    return encode("agent.x", type="chunk", data=SMALL, run_id="r")[1]


def decoded(name: str, batch: s2_sdk.ReadBatch) -> list[Event]:
    """What the raw SDK has read, decoded by our own function."""
    return decode_batch(name, batch.records[0].seq_num, [record.body for record in batch.records])[0]


@contextlib.contextmanager
def without_msgspec() -> Iterator[None]:
    """Decode as where the extra ``fast`` is not installed."""
    kept, fast.read_envelope = fast.read_envelope, None
    try:
        yield
    finally:
        fast.read_envelope = kept


def filled(pubsub: S2PubSub, count: int = REPLAYED) -> str:
    """A topic with ``count`` events."""
    name = topic()
    pubsub.publish_many(name, [{"type": "chunk", "data": SMALL, "run_id": "r"}] * count, timeout=300)
    return name


# -- measured alike for ours and for peers ---------------------------------------------------------------------------


def from_threads(publish: Callable[[], Any], threads: int = 64) -> float:
    """Events a second of threads that call ``publish``, which waits until the event is stored, for two seconds."""
    counts = [0] * threads
    go, stop = threading.Event(), threading.Event()

    def work(mine: int) -> None:
        publish()  # whatever the first call of a thread costs
        go.wait()
        while not stop.is_set():
            publish()
            counts[mine] += 1

    workers = [threading.Thread(target=work, args=(mine,)) for mine in range(threads)]
    for worker in workers:
        worker.start()
    began = time.perf_counter()
    go.set()
    stop.wait(SECONDS)
    stop.set()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - began)


def lone(publish: Callable[[], Any], count: int = 200) -> float:
    """Median time of one ``publish`` after the other, in milliseconds."""
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        publish()
        taken.append(time.perf_counter() - began)
    return percentile(taken, 0.5) * 1e3


def live(
    publish: Callable[[], Any], receive: Callable[[], Any], count: int = 100, wait: Callable[[], Any] = lambda: None
) -> list[float]:
    """Milliseconds from before each ``publish`` until ``receive`` has returned in a thread of its own. ``wait`` is
    called before each.
    """
    arrived: list[float] = []
    came = threading.Semaphore(0)

    def read() -> None:
        for _ in range(count):
            receive()
            arrived.append(time.perf_counter())
            came.release()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    starts = []
    for _ in range(count):
        wait()
        starts.append(time.perf_counter())
        publish()
        if not came.acquire(timeout=10):
            raise RuntimeError("nothing was delivered live")
    reader.join()
    return [(end - start) * 1e3 for start, end in zip(starts, arrived, strict=True)]


def replay(pubsub: S2PubSub, name: str, count: int = REPLAYED) -> float:
    """Events a second from index 0 on, through the iterator."""
    began = time.perf_counter()
    with pubsub.subscribe_from_offset(name, 0) as events:
        for event in events:
            if event.index == count - 1:
                return count / (time.perf_counter() - began)
    raise RuntimeError("the replay ended early")
