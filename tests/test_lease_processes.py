"""Leases between processes: contention, a stopped holder, forks, and scripts that end while they hold one."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from s2pubsub import S2PubSub
from tests.leasing import KEY, Register
from tests.servers import ON_LITE, Server
from tests.waiting import LONG, eventually

pytestmark = ON_LITE

ROOT = Path(__file__).parents[1]
PROCESSES, THREADS, ROUNDS = 4, 5, 50


@pytest.fixture
def script(server: Server, basin: str) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Run Python source in a process of its own, with an open client ``pubsub`` and its ``leases``."""
    running: list[subprocess.Popen[str]] = []

    def run(source: str) -> subprocess.Popen[str]:
        whole = f"from s2pubsub import *\npubsub = S2PubSub()\nleases = pubsub.leases\n{textwrap.dedent(source)}"
        env = {**os.environ, **server.endpoints_env(), "S2_BASIN": basin, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            [sys.executable, "-c", whole],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()
        process.communicate()


# Contention.


def contend(settings: dict[str, Any], number: int, orders: Connection, start: Any) -> None:
    """One of the processes: for each key that it is given, all its threads acquire it at the same moment."""
    with S2PubSub(**settings) as pubsub, ThreadPoolExecutor(THREADS) as pool:
        leases = pubsub.leases

        def acquire(key: str, thread: int) -> tuple[str, bool, str | None]:
            owner = f"{key}-{number}-{thread}"
            start.wait(LONG)
            result = leases.acquire_lease(key, owner, 20)
            return owner, result.acquired, result.owner

        while (key := orders.recv()) is not None:
            orders.send(list(pool.map(lambda thread: acquire(key, thread), range(THREADS))))


@pytest.mark.slow
@pytest.mark.limit(120)
def test_exactly_one_wins(server: Server, basin: str, pubsub: S2PubSub) -> None:
    """C28: 20 threads in 4 processes acquire one key at once, 50 times: one wins, all others name it, a look-up agrees.

    Every second key has a token of a foreign format before, every fourth one a lease that has lapsed.
    """
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(PROCESSES * THREADS)
    settings = {"basin": basin, "access_token": server.token, "endpoints": server.url}
    pipes = [context.Pipe() for _ in range(PROCESSES)]
    processes = [
        context.Process(target=contend, args=(settings, number, theirs, start), daemon=True)
        for number, (_, theirs) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    try:
        for n in range(ROUNDS):
            key = f"k{n}"
            if n % 2:
                Register(server, basin, key).write("foreign" if n % 4 == 1 else "pQEBm3baqAABAgMPj61b2ctGn6FlcIZ3KJUO")
            for pipe, _ in pipes:
                pipe.send(key)
            answers = [answer for pipe, _ in pipes for answer in receive(pipe)]
            (winner,) = [owner for owner, acquired, _ in answers if acquired]
            assert [holder for _, _, holder in answers] == [winner] * (PROCESSES * THREADS)
            assert pubsub.leases.get_lease_owner(key) == winner
    finally:
        for pipe, _ in pipes:
            pipe.send(None)
        for process in processes:
            process.join(LONG)
            process.kill()


def receive(pipe: Connection) -> list[tuple[str, bool, str | None]]:
    assert pipe.poll(LONG), "a process did not answer"
    return list(pipe.recv())


# A holder that is stopped.


@pytest.mark.slow
@pytest.mark.limit(40)
def test_holder_that_slept_through_its_lifetime(
    pubsub: S2PubSub, register: Register, script: Callable[[str], subprocess.Popen[str]]
) -> None:
    """C27: stopped for three lifetimes while b acquires, the holder knows within 1 s of waking; b stays the owner."""
    holder = script("""
        import time
        def lost():
            print("lost", time.time(), flush=True)
        lease = leases.hold("user 1\\0th/1", "owner-a", 2, on_lost=lost)
        print("held", flush=True)
        input()
        try:
            lease.check()
        except LeaseLostError as error:
            print("check", error.owner, flush=True)
        print("renew", leases.renew_lease("user 1\\0th/1", "owner-a", 2), flush=True)
        lease.close()
        pubsub.close()
    """)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    os.kill(holder.pid, signal.SIGSTOP)
    stopped = time.monotonic()
    with pubsub.leases.hold(KEY, "owner-b", 30, timeout=LONG) as lease:
        threading.Event().wait(stopped + 6 - time.monotonic())  # the case asks for six seconds
        os.kill(holder.pid, signal.SIGCONT)
        woken = time.time()
        word, at = holder.stdout.readline().split()
        assert word == "lost"
        assert float(at) - woken < 1
        out, err = holder.communicate("\n", timeout=LONG)
        assert out == "check owner-a\nrenew False\n"
        assert (err, holder.returncode) == ("", 0)
        lease.check()
        assert register.owner() == "owner-b"


@pytest.mark.slow
@pytest.mark.limit(60)
def test_holder_stopped_at_random_moments(
    pubsub: S2PubSub, register: Register, script: Callable[[str], subprocess.Popen[str]]
) -> None:
    """C27: wherever a holder is stopped, also amid a renewal, what it says when woken agrees with the register."""
    seed = int(os.environ.get("S2PUBSUB_SEED", random.randrange(2**32)))
    print(f"S2PUBSUB_SEED={seed}")
    rng = random.Random(seed)
    holder = script("""
        import sys
        for line in sys.stdin:
            with leases.hold("user 1\\0th/1", "owner-a", 0.6, timeout=20) as lease:
                print("held", flush=True)
                sys.stdin.readline()
                try:
                    lease.check()
                    print("held", lease.token, flush=True)
                except LeaseLostError:
                    print("lost", flush=True)
        pubsub.close()
    """)
    assert holder.stdin is not None
    assert holder.stdout is not None
    for _ in range(12):
        print("hold", file=holder.stdin, flush=True)
        assert holder.stdout.readline() == "held\n"
        threading.Event().wait(rng.uniform(0, 0.4))
        os.kill(holder.pid, signal.SIGSTOP)
        taken = None
        if rng.random() < 0.7:
            taken = pubsub.leases.hold(KEY, "owner-b", 20, timeout=LONG)
        os.kill(holder.pid, signal.SIGCONT)
        print("check", file=holder.stdin, flush=True)
        answer = holder.stdout.readline().split()
        if taken is not None:
            assert answer == ["lost"]
            taken.check()
            assert register.owner() == "owner-b"
            taken.close()
        else:
            assert answer[0] in ("held", "lost")
    out, err = holder.communicate(timeout=LONG)
    assert (out, err, holder.returncode) == ("", "", 0)


# Forks and ends of processes.


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child(register: Register, script: Callable[[str], subprocess.Popen[str]]) -> None:
    """C40, C41: in a child the inherited handle is closed and leaves the parent's lease alone; the client works."""
    parent = script("""
        import os, time, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        lost = []
        lease = leases.hold("user 1\\0th/1", "owner-a", 2, on_lost=lambda: lost.append(1))
        first = lease.expires_at
        child = os.fork()
        if child == 0:
            print(lease.closed, lease.lost.is_set())
            lease.close()
            try:
                lease.check()
            except ClosedError as error:
                print("fork" in str(error))
            print(leases.acquire_lease("user 1\\0th/1", "child", 5).owner)
            print(leases.acquire_lease("key-2", "child", 5).acquired)
            with leases.hold("key-3", "child", 5) as own:
                own.renew()
            print(pubsub.stats().leases)
            pubsub.close()
        else:
            _, status = os.waitpid(child, 0)
            until = time.monotonic() + 5
            while lease.expires_at == first and time.monotonic() < until:
                time.sleep(0.05)
            lease.check()
            print(status, lost, leases.get_lease_owner("user 1\\0th/1"), leases.get_lease_owner("key-2"))
            lease.close()
            pubsub.close()
    """)
    out, err = parent.communicate(timeout=LONG)
    assert err == ""
    assert out.splitlines() == ["True True", "True", "owner-a", "True", "0", "0 [] owner-a child"]


@pytest.mark.parametrize(("end", "code"), [("", 0), ("raise KeyError(1)", 1), ("import sys; sys.exit(3)", 3)])
def test_script_that_forgets_its_lease(
    register: Register, script: Callable[[str], subprocess.Popen[str]], end: str, code: int
) -> None:
    """C46: a script that ends while it holds a lease ends within 3 s with its own code, and the lease is free."""
    process = script(f"""
        lease = leases.hold("user 1\\0th/1", "owner-a", 30)
        print("held", flush=True)
        {end}
    """)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    begun = time.monotonic()
    _, err = process.communicate(timeout=LONG)
    assert time.monotonic() - begun < 3
    assert process.returncode == code
    assert "s2pubsub" not in err
    assert register.owner() is None


@pytest.mark.parametrize("where", ["acquire_lease", "hold"])
def test_interrupt(pubsub: S2PubSub, script: Callable[[str], subprocess.Popen[str]], where: str) -> None:
    """C47: Ctrl-C interrupts a waiting acquire or hold within 1 s; the process then ends by itself."""
    pubsub.leases.acquire_lease(KEY, "owner-b", 30)
    call = (
        'leases.hold("user 1\\0th/1", "owner-a", 5, timeout=60)'
        if where == "hold"
        else 'silent.leases.acquire_lease("k", "owner-a", 5, timeout=60)'
    )
    process = script(f"""
        import socket, time
        listener = socket.create_server(("127.0.0.1", 0))  # accepts, and never answers
        silent = S2PubSub(endpoints=f"http://127.0.0.1:{{listener.getsockname()[1]}}")
        print("ready", flush=True)
        try:
            {call}
        except KeyboardInterrupt:
            print(time.time())
    """)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    threading.Event().wait(0.5)
    sent = time.time()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LONG)
    assert err == ""
    assert float(out) - sent < 1
    assert process.returncode == 0
    eventually(lambda: pubsub.leases.get_lease_owner(KEY) == "owner-b")
