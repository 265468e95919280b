"""Leases under fire: random calls of several processes, checked against one register with an expiry.

    python -m tests.stress.lease_linearizability [--rounds 1000] [--seed N] [--lanes 6] [--server lite|embedded]

Three processes with clocks that differ ask for the same leases, each through a fault proxy of its own, while
connections are cut, answers are lost, delayed or replaced by errors, and processes are stopped for a while. A round is
one lease. In rounds of single calls the history must be linearizable (`lease_model`); in rounds of held leases no two
processes may find their lease good at the same time, beyond what their clocks differ.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import attrs

from s2pubsub import LeaseLostError, LeaseUnavailableError, S2PubSub, S2PubSubError
from s2pubsub.lease_clock import Clock
from s2pubsub.leases import S2LeaseProvider
from tests.faults import APPEND, FaultProxy
from tests.servers import CREATE_STREAMS, EmbeddedServer, LiteServer, Server
from tests.stress.lease_model import Call, linearizable, overlap

PROCESSES = 3
CALLS = 6
SKEW = 40.0
"""Milliseconds that a clock may be ahead or behind."""
PATIENCE = 60.0
ROUNDING = 2.0
"""Milliseconds that times are cut to."""


@attrs.frozen
class Round:
    """What one process is to do in one round."""

    key: str
    number: int
    seed: int
    ahead: float
    held: bool


def now() -> float:
    return time.time() * 1000


# In the processes.


class Asker:
    """Random calls in one process's name."""

    def __init__(self, leases: S2LeaseProvider, task: Round) -> None:
        self.leases = leases
        self.task = task
        self.random = random.Random(task.seed)
        self.owner = f"owner-{task.number}"
        self.calls: list[Call] = []
        self.pause = threading.Event()

    def run(self) -> list[Call]:
        for _ in range(self.random.randint(2, CALLS)):
            self.pause.wait(self.random.choice((0, 0, 0.02, 0.1, 0.3)) * self.random.random())
            self.ask(self.random.choices(("acquire", "renew", "transfer", "release", "look"), (40, 20, 12, 10, 18))[0])
        return self.calls

    def ask(self, what: Any) -> None:
        key, owner, leases = self.task.key, self.owner, self.leases
        ttl = self.random.randint(60, 600) / 1000
        to = f"owner-{self.random.choice([n for n in range(PROCESSES) if n != self.task.number])}"
        timeout = self.random.choice((0.3, 1.5, 1.5))
        call = Call(what=what, owner=owner, to=to, ttl=ttl * 1000, begun=now(), ended=0, ahead=self.task.ahead)
        answer: dict[str, Any] = {}
        try:
            if what == "acquire":
                result = leases.acquire_lease(key, owner, ttl, timeout=timeout)
                expires = None if result.expires_at is None else result.expires_at.timestamp() * 1000
                answer = {"yes": result.acquired, "holder": result.owner, "expires": expires and round(expires)}
            elif what == "renew":
                answer = {"yes": leases.renew_lease(key, owner, ttl, timeout=timeout)}
            elif what == "transfer":
                answer = {"yes": leases.transfer_lease(key, owner, to, ttl, timeout=timeout)}
            elif what == "release":
                answer = {"yes": leases.release_lease(key, owner, timeout=timeout)}
            else:
                answer = {"holder": leases.get_lease_owner(key, timeout=timeout)}
        except S2PubSubError:
            answer = {"known": False}
        if what != "look" or answer.get("known", True):
            # Expiries are whole milliseconds, cut down: the begin must not come after them.
            self.calls.append(attrs.evolve(call, begun=call.begun - 1, ended=now(), **answer))

    def hold(self) -> list[Call]:
        """Hold the lease for a while, and note as grants what `check` has said."""
        for _ in range(2):
            ttl = self.random.choice((0.3, 0.6))
            try:
                lease = self.leases.hold(self.task.key, self.owner, ttl, timeout=3)
            except (LeaseUnavailableError, LeaseLostError):
                continue
            except S2PubSubError:
                continue
            begun = checked = now()
            for _ in range(self.random.randint(1, 30)):
                self.pause.wait(self.random.random() * 0.04)
                at = now()
                try:
                    lease.check()
                except LeaseLostError:
                    break
                checked = at  # it was good at some moment after this one
            lease.close()
            self.calls.append(
                Call(
                    what="acquire",
                    owner=self.owner,
                    begun=begun,
                    ended=begun,
                    ahead=self.task.ahead,
                    yes=True,
                    expires=checked + self.task.ahead,
                )
            )
        return self.calls


def serve(settings: dict[str, Any], pipes: list[Connection]) -> None:
    """One process: a client, and a thread for each pipe, which takes rounds and gives back what was told."""
    with S2PubSub(**settings) as pubsub, ThreadPoolExecutor(len(pipes)) as pool:

        def lane(pipe: Connection) -> None:
            while (task := pipe.recv()) is not None:
                clock = Clock(wall=lambda ahead=task.ahead: time.time() + ahead / 1000)
                asker = Asker(pubsub.get_lease_provider(clock=clock), task)
                pipe.send(asker.hold() if task.held else asker.run())

        list(pool.map(lane, pipes))


# In the process that checks.


@attrs.define
class Tally:
    """What the rounds have seen."""

    rounds: int = 0
    calls: Counter[str] = attrs.field(factory=Counter)
    faults: Counter[str] = attrs.field(factory=Counter)
    longest_overlap: float = float("-inf")
    problems: list[str] = attrs.field(factory=list)
    lock: Any = attrs.field(factory=threading.Lock, repr=False)

    def check(self, round_: int, held: bool, history: list[Call]) -> None:
        """Judge one round."""
        shared = overlap(history)
        fine = held or linearizable(history)
        with self.lock:
            self.rounds += 1
            for call in history:
                outcome = "unknown" if not call.known else "yes" if call.yes or call.holder else "no"
                self.calls[f"{'hold' if held else call.what} {outcome}"] += 1
            self.longest_overlap = max(self.longest_overlap, shared)
            if shared > ROUNDING:
                self.problems.append(f"round {round_}: two owners for {shared:.1f} ms beyond the clocks: {history}")
            if not fine:
                self.problems.append(f"round {round_}: not linearizable: {history}")


class Fire:
    """Faults on the proxies and the processes, until it is put out."""

    def __init__(self, proxies: list[FaultProxy], pids: list[int], seed: int, tally: Tally) -> None:
        self._proxies = proxies
        self._pids = pids
        self._random = random.Random(seed)
        self._tally = tally
        self._out = threading.Event()
        self._thread = threading.Thread(target=self._burn, name="fire")

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._out.set()
        self._thread.join()

    def _burn(self) -> None:
        while not self._out.wait(self._random.uniform(0.02, 0.15)):
            proxy = self._random.choice(self._proxies)
            fault = self._random.choice(("cut", "lose", "lose", "answer", "hold", "stop", "stop"))
            if fault == "cut":
                proxy.cut("random", self._random.choice(("rst", "fin")))
            elif fault == "lose":
                proxy.lose_response(APPEND, how=self._random.choice(("rst", "fin", None)))
            elif fault == "answer":
                proxy.answer(APPEND, status=503, times=self._random.randint(1, 4))
            elif fault == "hold":
                proxy.hold_response(APPEND, self._random.uniform(0.05, 0.5))
            else:
                pid = self._random.choice(self._pids)
                os.kill(pid, signal.SIGSTOP)
                self._out.wait(self._random.choice((0.05, 0.2, 0.7)) * self._random.random())
                os.kill(pid, signal.SIGCONT)
            self._tally.faults[fault] += 1


@contextlib.contextmanager
def processes(
    server: Server, lanes: int, seed: int
) -> Iterator[tuple[list[list[Connection]], list[FaultProxy], list[int]]]:
    """Start the processes, each behind a proxy: their pipes (by lane), proxies and process ids."""
    context = multiprocessing.get_context("spawn")
    basin = server.make_basin(**CREATE_STREAMS)
    with contextlib.ExitStack() as stack:
        pipes: list[list[Connection]] = [[] for _ in range(lanes)]
        proxies, running = [], []
        for number in range(PROCESSES):
            proxy = stack.enter_context(FaultProxy(server.port, seed=seed + number))
            ours, theirs = zip(*(context.Pipe() for _ in range(lanes)), strict=True)
            settings = {"basin": basin, "access_token": server.token, "endpoints": proxy.url}
            process = context.Process(target=serve, args=(settings, list(theirs)), daemon=True)
            process.start()
            stack.callback(process.kill)
            proxies.append(proxy)
            running.append(process)
            for lane, pipe in zip(pipes, ours, strict=True):
                lane.append(pipe)
        try:
            yield pipes, proxies, [process.pid or 0 for process in running]
        finally:
            for lane in pipes:
                for pipe in lane:
                    pipe.send(None)
            for proxy in proxies:
                proxy.clear()
            for process in running:
                process.join(PATIENCE)


def run(server: Server, rounds: int, seed: int, lanes: int = 6) -> Tally:
    """Play the rounds and return what was seen; its ``problems`` must be empty."""
    tally = Tally()
    numbers = iter(range(rounds))
    taking = threading.Lock()
    with processes(server, lanes, seed) as (pipes, proxies, pids):

        def play(lane: list[Connection]) -> None:
            while True:
                with taking:
                    number = next(numbers, None)
                if number is None:
                    return
                rng = random.Random(f"{seed}-{number}")
                key, held = f"{number}-{uuid.uuid4()}", number % 4 == 3
                for process, pipe in enumerate(lane):
                    pipe.send(Round(key, process, rng.randrange(2**32), rng.uniform(-SKEW, SKEW), held))
                history: list[Call] = []
                for pipe in lane:
                    if not pipe.poll(PATIENCE):
                        raise AssertionError(f"round {number}: a process did not answer")
                    history += pipe.recv()
                tally.check(number, held, history)

        with Fire(proxies, pids, seed, tally), ThreadPoolExecutor(lanes) as pool:
            list(pool.map(play, pipes))
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--lanes", type=int, default=6)
    parser.add_argument("--server", choices=("lite", "embedded"), default="lite")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    begun = time.monotonic()
    with (LiteServer if options.server == "lite" else EmbeddedServer)() as server:
        tally = run(server, options.rounds, options.seed, options.lanes)
    for problem in tally.problems:
        print(problem)
    print(
        f"{tally.rounds} rounds in {time.monotonic() - begun:.0f} s: {len(tally.problems)} problems; "
        f"longest overlap of two owners beyond the clocks {tally.longest_overlap:.1f} ms; "
        f"calls {dict(sorted(tally.calls.items()))}; faults {dict(sorted(tally.faults.items()))}"
    )
    raise SystemExit(bool(tally.problems))


if __name__ == "__main__":
    main()
