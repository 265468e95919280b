"""An hour of work in one process, and whether anything grows: ``python -m tests.stress.soak [--minutes 60]``.

200 runs a minute, each of tens of chunks that take about four seconds; each is followed live by one observer and by
one reader of server-sent events that drops its stream again and again and comes back behind the last event it saw; one
in five is read once more when it is over. Some runs are aborted, some fail; all are deleted, most of them by their
writer's clean-up. What is read is compared with what was written. The server is another process.

The HTTP/2 library under the SDK remembers the last 65,536 closed streams of a connection: up to 7.5 MB each, which
take hours to fill and hide everything else. Here it is a thousand, unless ``--streams-remembered`` says otherwise.

glibc's malloc keeps a cache for each thread, of up to 236 KB, which fills over hours while chunks are allocated on one
thread and freed on another, and by itself has eight heaps for each core. With over a hundred threads that hides
everything else, too. So the process begins anew with one heap and no caches, unless ``--malloc as-is`` is given.

Each minute is a line; at the end there are slopes with their noise and a verdict, in ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import os
import random
import re
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import attrs
from h2.connection import H2Connection

from s2pubsub import S2PubSub, TopicGoneError, sse
from s2pubsub.errors import RunNotFoundError
from s2pubsub.runs import Run, Runs
from tests.servers import CREATE_STREAMS, EmbeddedServer, LiteServer
from tests.stress.meter import Footprint, Latencies
from tests.stress.soak_report import Minute, write_report

RUNS_A_MINUTE = 200
CHUNKS = 40
PACE = 0.1
"""Seconds between two chunks."""
WRITERS, READERS = 28, 72
CLEANUP = 10.0
PLAIN = "glibc.malloc.tcache_count=0:glibc.malloc.arena_max=1"
"""For GLIBC_TUNABLES: malloc with one heap and without caches of threads."""
_ID = re.compile(rb"^id: (\d+)$", re.MULTILINE)


class Soak:
    """The work of the one process: a pool of writers, a pool of readers, and what they have measured."""

    def __init__(self, pubsub: S2PubSub, seed: int) -> None:
        self.pubsub = pubsub
        self.runs = Runs(pubsub, cleanup_timeout=CLEANUP)
        self.random = random.Random(seed)
        self.stop = threading.Event()
        self.published, self.delivered, self.started = Latencies(), Latencies(), Latencies()
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self._lock = threading.Lock()
        self._writers, self._readers = _full_pool(WRITERS, "writer"), _full_pool(READERS, "reader")

    def count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def begin(self) -> None:
        """Begin one run and its readers, on the pools."""
        fate = self.random.choices(("finish", "abort", "fail", "delete"), (75, 10, 5, 10))[0]
        self._do(
            self._writers, self._write, fate, self.random.randint(CHUNKS // 2, CHUNKS * 3 // 2), self.random.random()
        )

    def _do(self, pool: ThreadPoolExecutor, work: Callable[..., None], *args: Any) -> Future[None]:
        def guarded() -> None:
            try:
                work(*args)
            except BaseException as error:
                with self._lock:
                    self.counts["failures"] += 1
                    if len(self.failures) < 20:
                        self.failures.append(f"{work.__name__}: {type(error).__name__}: {error}")

        return pool.submit(guarded)

    # -- one run -------------------------------------------------------------------------------------------------

    def _write(self, fate: str, chunks: int, luck: float) -> None:
        began = time.monotonic()
        run = self.runs.start()
        self.started.add(time.monotonic() - began)
        readers = [
            self._do(self._readers, self._observe, run.id),
            self._do(self._readers, self._come_back, run.id, luck),
        ]
        texts: list[str] = []
        with contextlib.suppress(_MeantError), run:
            for number in range(chunks):
                if self.stop.wait(PACE):
                    break
                if fate == "abort" and number == chunks // 2:
                    self.runs.request_abort(run.id)
                if fate == "abort" and run.aborted:
                    run.abort()
                    break
                if fate == "fail" and number == chunks // 2:
                    raise _MeantError
                texts.append(self._say(run, number))
        self.count(f"runs: {fate}")
        for reader in readers:
            reader.result(60)
        if luck < 0.2:
            text = self.runs.observe(run.id).result().text
            if text != "".join(texts):
                raise AssertionError(f"run {run.id}: {len(text)} characters were read of {len(''.join(texts))}")
            self.count("read again")
        if fate == "delete":
            self.runs.delete(run.id)

    def _say(self, run: Run, number: int) -> str:
        sent = time.monotonic()
        text = f"{number} {sent:.6f} and some more words of an answer\n"
        run.text(text).add_done_callback(lambda _: self.published.add(time.monotonic() - sent))
        return text

    def _observe(self, run_id: str) -> None:
        """Follow a run live; its chunks say when they were sent."""
        expected = 0
        with self.runs.observe(run_id, idle_timeout=60) as events:
            for event in events:
                if event.index != expected:
                    raise AssertionError(f"run {run_id}: index {event.index} came where {expected} was expected")
                expected += 1
                if isinstance(event.data, dict) and event.data.get("type") == "text-delta":
                    self.delivered.add(time.monotonic() - float(event.data["payload"]["text"].split(" ")[1]))
        self.count("observed")

    def _come_back(self, run_id: str, luck: float) -> None:
        """Read a run as a browser does that loses its connection every few events."""
        seen, chance = -1, random.Random(luck)
        while True:
            try:
                source = self.runs.observe(run_id, seen + 1)
            except RunNotFoundError:
                raise AssertionError(f"run {run_id}: not found behind {seen}") from None
            patience = chance.randint(5, 25)
            with sse.stream(source, heartbeat=5) as body:
                for block in body:
                    for found in _ID.findall(block):
                        if int(found) != seen + 1:
                            raise AssertionError(f"run {run_id}: id {int(found)} came behind {seen}")
                        seen += 1
                        patience -= 1
                    if patience <= 0:
                        break
                else:
                    if source.end is not None:
                        self.count("read by server-sent events")
                        return
            self.count("came back")

    def blocking(self) -> None:
        """One thread that publishes with blocking calls, on a topic that is deleted and made anew every minute."""
        for number in itertools.count():
            topic = f"agent.soak.{number}"
            until = time.monotonic() + 60
            try:
                with self.pubsub.subscribe(topic) as events:
                    while time.monotonic() < until and not self.stop.wait(0.25):
                        event = self.pubsub.publish(topic, type="n", data=number)
                        if events.get(30).index != event.index:
                            raise AssertionError(f"topic {topic}: event {event.index} came out of place")
                self.pubsub.get_history(topic)
                self.pubsub.clear_topic(topic, strict=True)
            except TopicGoneError as error:
                raise AssertionError("nobody else deletes it") from error
            if self.stop.is_set():
                return

    def close(self) -> None:
        self.stop.set()
        self._writers.shutdown()
        self._readers.shutdown()


def _full_pool(size: int, name: str) -> ThreadPoolExecutor:
    """A pool that has all its threads from the start: one that grows would look like a leak."""
    pool, all_there = ThreadPoolExecutor(size, name), threading.Barrier(size)
    for waiting in [pool.submit(all_there.wait, 30) for _ in range(size)]:
        waiting.result()
    return pool


class _MeantError(Exception):
    """A run that fails on purpose."""


def minutes(soak: Soak, count: int, runs_a_minute: int = RUNS_A_MINUTE) -> Iterator[Minute]:
    """Begin the runs on time and yield what each minute was like."""
    began = time.monotonic()
    made = 0
    for minute in range(1, count + 1):
        prints: list[Footprint] = []
        while (now := time.monotonic() - began) < minute * 60:
            while made * 60 / runs_a_minute <= now:
                soak.begin()
                made += 1
            if len(prints) < now - (minute - 1) * 60:
                prints.append(Footprint.now())
            soak.stop.wait(max(0.0, min(made * 60 / runs_a_minute - now, 0.5)))
        published, (publish_p50, publish_p99) = soak.published.take(0.5, 0.99)
        delivered, (delivery_p50, delivery_p99) = soak.delivered.take(0.5, 0.99)
        _, (start_p50, start_p99) = soak.started.take(0.5, 0.99)
        yield Minute(
            minute=minute,
            threads=statistics.fmean(p.threads for p in prints),
            descriptors=statistics.fmean(p.descriptors for p in prints),
            rss=statistics.fmean(p.rss for p in prints),
            allocated=statistics.fmean(p.allocated for p in prints),
            objects=len(gc.get_objects()),
            published=published,
            delivered=delivered,
            publish_p50=publish_p50 * 1000,
            publish_p99=publish_p99 * 1000,
            delivery_p50=delivery_p50 * 1000,
            delivery_p99=delivery_p99 * 1000,
            start_p50=start_p50 * 1000,
            start_p99=start_p99 * 1000,
            runs=made,
            failures=soak.counts["failures"],
        )


@attrs.frozen
class Outcome:
    minutes: list[Minute]
    counts: Counter[str]
    failures: list[str]
    left: Footprint
    """The process when all was closed."""


def run(*, count: int, seed: int, kind: str = "lite", say: Callable[[str], object] = print) -> Outcome:
    """Soak for ``count`` minutes against a server of its own."""
    say(f"seed {seed}, {count} minutes on {kind}")
    say(Minute.header())
    done: list[Minute] = []
    with (LiteServer if kind == "lite" else EmbeddedServer)() as server:
        with S2PubSub(
            basin=server.make_basin(**CREATE_STREAMS), access_token=server.token, endpoints=server.url
        ) as pubsub:
            soak = Soak(pubsub, seed)
            lone = soak._do(soak._readers, soak.blocking)
            try:
                for minute in minutes(soak, count):
                    done.append(minute)
                    say(minute.line())
            finally:
                soak.close()
                lone.result(60)
        gc.collect()
        left = Footprint.now()
    return Outcome(done, soak.counts, soak.failures, left)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--warm-up", type=int, default=10, help="minutes that do not count for the slopes")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--server", choices=("lite", "embedded"), default="lite")
    parser.add_argument("--no-report", action="store_true")
    parser.add_argument("--streams-remembered", type=int, default=1000, help="closed streams that h2 remembers")
    parser.add_argument("--malloc", choices=("plain", "as-is"), default="plain", help="as-is: with caches of threads")
    options = parser.parse_args()
    # Only this process: its server, which inherits the environment, is left as it is.
    if options.malloc == "plain" and os.environ.pop("GLIBC_TUNABLES", None) != PLAIN:
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "GLIBC_TUNABLES": PLAIN})
    H2Connection.MAX_CLOSED_STREAMS = options.streams_remembered
    before = Footprint.now()
    outcome = run(
        count=options.minutes, seed=options.seed, kind=options.server, say=lambda text: print(text, flush=True)
    )
    text, good = write_report(outcome, before, options, keep=not options.no_report)
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
