"""Exactly once under fire: rounds of a publisher whose acknowledgements are dropped and whose connections are cut.

    python -m tests.stress.exactly_once [--rounds 200] [--seed N] [--workers 4] [--server lite|embedded]

Each round publishes numbered events on a topic of its own with `exactly_once=True` through a fault proxy, while faults
strike at random, and then reads the topic: every event must be there once, in order, at the index its future gave.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import s2_sdk

from s2pubsub import S2PubSub
from tests.faults import FaultProxy
from tests.faults.rules import APPEND_SESSION, After, Request
from tests.servers import CREATE_STREAMS, EmbeddedServer, LiteServer, Server

READ = Request(kind="read")
EVENTS = 80
LONG = 60.0


class Worker:
    """Rounds one after the other, through a proxy and a client of its own."""

    def __init__(self, server: Server, basin: str, seed: int) -> None:
        self.server = server
        self.basin = basin
        self.random = random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.proxy = FaultProxy(server.port, seed=seed)
        self.pubsub = self._client(self.proxy.url)
        self.direct = self._client(server.url)

    def _client(self, url: str) -> S2PubSub:
        return S2PubSub(
            basin=self.basin, access_token=self.server.token, endpoints=s2_sdk.Endpoints(account=url, basin=url)
        )

    def round(self) -> None:
        """One topic, EVENTS events, a few faults; AssertionError unless all are stored once, in order."""
        topic = f"agent.stream.{uuid.uuid4()}"
        faults_at = sorted(self.random.sample(range(EVENTS), self.random.randint(1, 4)))
        pause = threading.Event()
        with self.pubsub.publisher(
            topic, exactly_once=True, max_in_flight=self.random.choice((1, 7, 1000))
        ) as publisher:
            futures = []
            for number in range(EVENTS):
                if number in faults_at:
                    self.strike()
                futures.append(publisher.publish(type="n", data=[number, "x" * self.random.choice((1, 100, 5000))]))
                if self.random.random() < 0.3:
                    pause.wait(self.random.random() * 0.01)
            try:
                publisher.flush(LONG)
            finally:
                self.proxy.clear()
            indices = [future.result(0).index for future in futures]
        stored = [event.data[0] for event in self.direct.get_history(topic)]
        assert stored == list(range(EVENTS)), f"lost or doubled: {stored}"
        assert indices == list(range(EVENTS)), indices

    def strike(self) -> None:
        """One fault, chosen at random."""
        chance = self.random
        name = chance.choice(
            ("drop ack", "drop ack", "drop later ack", "lose and cut", "cut", "cut soon", "goaway", "503", "read 503")
        )
        self.faults[name] += 1
        how = chance.choice(("rst", "fin"))
        proxy = self.proxy
        match name:
            case "drop ack":  # of the next session; the one that is open is cut so that there will be one
                proxy.lose_response(APPEND_SESSION, how=how)
                proxy.cut(how=how)
            case "drop later ack":
                proxy.lose_response(APPEND_SESSION, how=how, after=After(frames=chance.randint(1, 4)))
                proxy.cut(how=how)
            case "lose and cut":  # the server acts on what is under way, and nobody hears of it
                proxy.lose()
                threading.Event().wait(chance.random() * 0.03)
                proxy.cut(how=how)
            case "cut":
                proxy.cut(how=how)
            case "cut soon":
                proxy.cut_after(chance.randint(1, 400), chance.choice(("to_client", "to_server")), how=how)
            case "goaway":
                proxy.goaway(grace=chance.choice((0.0, 0.05)))
            case "503":
                proxy.answer(APPEND_SESSION, status=503)
                proxy.cut(how=how)
            case "read 503":  # while reading back
                proxy.answer(READ, status=503)
                proxy.lose_response(APPEND_SESSION, how=how)
                proxy.cut(how=how)

    def close(self) -> None:
        """End the clients and the proxy."""
        self.pubsub.close()
        self.direct.close()
        self.proxy.close()


def run(server: Server, rounds: int, seed: int, workers: int = 4) -> Counter[str]:
    """Run ``rounds`` rounds on ``server``; return which faults struck how often."""
    basin = server.make_basin(**CREATE_STREAMS)
    crew = [Worker(server, basin, seed + number) for number in range(workers)]
    share, rest = divmod(rounds, workers)
    faults: Counter[str] = Counter()

    def work(number: int) -> None:
        for done in range(share + (number < rest)):
            try:
                crew[number].round()
            except BaseException as error:
                error.add_note(f"worker {number}, its round {done}, seed {seed}")
                raise

    try:
        with ThreadPoolExecutor(workers) as pool:
            for finished in [pool.submit(work, number) for number in range(workers)]:
                finished.result()
    finally:
        for worker in crew:
            worker.close()
            faults += worker.faults
    return faults


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--server", choices=("lite", "embedded"), default="lite")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    began = time.monotonic()
    with LiteServer() if arguments.server == "lite" else EmbeddedServer() as server:
        faults = run(server, arguments.rounds, arguments.seed, arguments.workers)
    print(f"{arguments.rounds} rounds of {EVENTS} events on {arguments.server} in {time.monotonic() - began:.0f} s:")
    print("none lost, none doubled;", ", ".join(f"{name}: {count}" for name, count in faults.most_common()))


if __name__ == "__main__":
    main()
