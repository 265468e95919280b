"""Random connection cuts during a stream: ``python -m tests.stress.cuts [--cuts 1000] [--events 100000] [--seed N]``.

Ten subscribers in five clients read one topic through a proxy that cuts connections at random, by reset and by end of
stream; a writer appends past the proxy. Afterwards every subscriber must have seen exactly the log, index by index.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
import uuid
from contextlib import ExitStack

from s2pubsub import S2PubSub
from tests.faults import FaultProxy
from tests.servers import LiteServer

BASIN = "stress-cuts"
_BATCH = 100


class Reader(threading.Thread):
    """Reads ``topic`` until the event of type ``end`` and checks each index as it comes."""

    def __init__(self, pubsub: S2PubSub, topic: str, as_callback: bool) -> None:
        super().__init__(name=f"reader-{topic}", daemon=True)
        self._pubsub, self._topic, self._as_callback = pubsub, topic, as_callback
        self.seen = 0
        self.failure: BaseException | None = None

    def _take(self, event) -> bool:
        if event.index != self.seen:
            raise AssertionError(f"index {event.index} came where {self.seen} was expected")
        if event.type != "end" and event.data != self.seen:
            raise AssertionError(f"index {event.index} carries {event.data}")
        self.seen += 1
        return event.type == "end"

    def run(self) -> None:
        try:
            if self._as_callback:
                self._run_callback()
                return
            with self._pubsub.subscribe_from_offset(self._topic, 0) as events:
                for event in events:
                    if self._take(event):
                        return
                raise AssertionError("the iteration has ended before the end event")
        except BaseException as error:
            self.failure = error

    def _run_callback(self) -> None:
        done = threading.Event()

        def take(event) -> None:
            if self._take(event):
                done.set()

        def fail(error: BaseException) -> None:
            self.failure = self.failure or error
            done.set()

        with self._pubsub.subscribe_from_offset(self._topic, 0, take, on_error=fail):
            done.wait()


def run(*, cuts: int, events: int, seed: int, clients: int = 5, each: int = 2, say=print) -> dict[str, float]:
    """Do it; raise AssertionError on the first violation; return what was counted."""
    chance = random.Random(seed)
    say(f"seed {seed}: {cuts} cuts, {events} events, {clients * each} subscribers")
    began = time.monotonic()
    with ExitStack() as stack:
        server = stack.enter_context(LiteServer())
        proxy = stack.enter_context(FaultProxy(server.port))
        writer = stack.enter_context(S2PubSub(basin=BASIN, access_token="x", endpoints=server.url))
        writer.ensure_basin()
        topic = f"agent.stress.{uuid.uuid4()}"
        pubsubs = [
            stack.enter_context(S2PubSub(basin=BASIN, access_token="x", endpoints=proxy.url)) for _ in range(clients)
        ]
        readers = [Reader(pubsub, topic, n == 0) for pubsub in pubsubs for n in range(each)]
        for reader in readers:
            reader.start()
        made = written = 0
        pause = threading.Event()
        while made < cuts or written < events:
            if written < events and written * cuts <= (made + 1) * events:
                batch = [{"type": "chunk", "data": written + n} for n in range(_BATCH)]
                writer.publish_many(topic, batch)
                written += _BATCH
            if made < cuts:
                made += _cut(proxy, chance)
                pause.wait(chance.random() * 0.05)
            failed = next((reader.failure for reader in readers if reader.failure), None)
            if failed is not None:
                raise AssertionError(f"seed {seed}: a reader failed after {made} cuts") from failed
            if made and made % 100 == 0:
                say(f"  {made} cuts, {written} events, slowest reader at {min(r.seen for r in readers)}")
        writer.publish(topic, type="end", data=None)
        for reader in readers:
            reader.join(120)
            if reader.failure is not None:
                raise AssertionError(f"seed {seed}: a reader failed") from reader.failure
            assert not reader.is_alive(), f"seed {seed}: a reader stands at {reader.seen} of {written + 1}"
            assert reader.seen == written + 1
        reconnects = sum(pubsub.stats().reconnects for pubsub in pubsubs)
    seconds = time.monotonic() - began
    say(f"  {made} cuts, {reconnects} reconnects, {written + 1} events to {len(readers)} readers in {seconds:.0f} s")
    return {"cuts": made, "reconnects": reconnects, "events": written + 1, "seconds": seconds}


def _cut(proxy: FaultProxy, chance: random.Random) -> int:
    return proxy.cut("random", how=chance.choice(["rst", "fin"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=1000)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    run(cuts=options.cuts, events=options.events, seed=options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
