"""Forked children: a client made before works anew, what was open before is dead there, the parent notices nothing.

Each test runs a script in a process of its own: it forks while its threads are busy, and its exit is looked at too.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from s2pubsub import S2PubSub
from tests.faults import ANY, APPEND, APPEND_SESSION, READ_SESSION, FaultProxy
from tests.preforking import get, gunicorn
from tests.servers import ON_LITE, Server
from tests.waiting import LONG

pytestmark = ON_LITE

TOPIC = "agent.stream.run-7"
ROOT = Path(__file__).parent.parent

BEFORE = '''
import atexit, faulthandler, gc, multiprocessing, os, signal, sys, threading, time
import warnings
from s2pubsub import ClosedError, S2PubSub
faulthandler.register(signal.SIGUSR1)
TOPIC = "agent.stream.run-7"

def publish(pubsub, data=None, topic=TOPIC):
    return pubsub.publish(topic, type="chunk", data=data, timeout=5)

def forked(child):
    """Fork; the child runs ``child`` and leaves by the ordinary exit. The parent gets its process id."""
    pid = os.fork()
    if pid == 0:
        child()
        sys.exit(0)
    return pid

def ended(pid, seconds=8.0):
    """The exit status of a child."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGUSR1)  # its stacks
    time.sleep(0.2)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "did not end"

def use_everything(pubsub, name):
    """What a child does: each call within five seconds."""
    began = time.monotonic()
    own = f"agent.stream.{name}"
    stored = publish(pubsub, name)
    assert name in [event.data for event in pubsub.get_history(TOPIC, timeout=5)]
    with pubsub.subscribe(own, timeout=5) as events:
        publish(pubsub, name, own)
        assert events.get(timeout=5).data == name
    called = threading.Event()
    pubsub.subscribe_with_replay(own, lambda event: called.set())
    assert called.wait(5)
    with pubsub.publisher(own) as publisher:
        assert publisher.publish(type="chunk", data=name).result(5).index == 1
    assert pubsub.leases.acquire_lease(name, name, 30).acquired
    assert pubsub.leases.release_lease(name, name)
    assert time.monotonic() - began < 5
    return stored
'''


@pytest.fixture
def run(server: Server, basin: str, tmp_path: Path) -> Callable[..., str]:
    """Run a script, whose client finds the server in the environment; it must exit with 0 and print no complaint."""

    def run(script: str, *, endpoint: Any = server, status: int = 0, limit: float = 30) -> str:
        path = tmp_path / "script.py"
        path.write_text(BEFORE + textwrap.dedent(script))
        process = subprocess.Popen(
            [sys.executable, "-X", "dev", "-W", "error::RuntimeWarning", path],
            env={**os.environ, **endpoint.endpoints_env(), "S2_BASIN": basin, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGUSR1)  # every process's stacks
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=1)
            os.killpg(process.pid, signal.SIGKILL)
            pytest.fail(f"it did not end: {process.communicate()}")
        complaints = without_fork_warning(errors)
        assert (process.returncode, complaints) == (status, ""), f"{output}\n{errors}"
        return output

    return run


def without_fork_warning(stderr: str) -> str:
    """``stderr`` without what Python 3.12 and later say of any fork in a process with threads."""
    return re.sub(r".*DeprecationWarning: This process .* is multi-threaded.*\n(  .*\n)?", "", stderr)


def events_of(pubsub: S2PubSub) -> list[Any]:
    return [event.data for event in pubsub.get_history(TOPIC)]


# C40: a client made before.


@pytest.mark.limit(60)
@pytest.mark.parametrize("used", [True, False], ids=["used", "made only"])
def test_a_client_made_before_works_in_children(run: Callable[..., str], pubsub: S2PubSub, used: bool) -> None:
    """C40: four children of a parent whose client is new, or in use, each publish, read and subscribe."""
    run(
        f"""
        pubsub = S2PubSub()
        if {used}:
            publish(pubsub, "parent")
            live = pubsub.subscribe(TOPIC)
        children = [forked(lambda n=n: use_everything(pubsub, f"child-{{n}}")) for n in range(4)]
        assert [ended(pid) for pid in children] == [0] * 4
        if {used}:
            assert sorted(live.get(timeout=5).data for _ in range(4)) == [f"child-{{n}}" for n in range(4)]
        else:
            publish(pubsub, "parent")
        use_everything(pubsub, "again")
        pubsub.close()
        """
    )
    assert sorted(events_of(pubsub)) == ["again", *[f"child-{n}" for n in range(4)], "parent"]


@pytest.mark.limit(60)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(run: Callable[..., str], pubsub: S2PubSub, method: str) -> None:
    """C40: children of multiprocessing, by every way it starts them, work and exit with 0."""
    run(
        f"""
        def work(name):
            if {method == "fork"}:
                use_everything(pubsub, name)
            else:
                with S2PubSub() as own:
                    use_everything(own, name)

        if __name__ == "__main__":
            pubsub = S2PubSub()
            publish(pubsub, "parent")
            context = multiprocessing.get_context({method!r})
            children = [context.Process(target=work, args=(f"child-{{n}}",)) for n in range(2)]
            for child in children:
                child.start()
            for child in children:
                child.join(15)
            assert [child.exitcode for child in children] == [0, 0]
            publish(pubsub, "after")
            pubsub.close()
        """
    )
    assert sorted(events_of(pubsub)) == ["after", "child-0", "child-1", "parent"]


@pytest.mark.limit(60)
def test_grandchildren(run: Callable[..., str], pubsub: S2PubSub) -> None:
    """C40: a child that uses the client and forks in turn: each generation works."""
    run(
        """
        pubsub = S2PubSub()
        def generation(n):
            use_everything(pubsub, f"generation-{n}")
            if n < 3:
                assert ended(forked(lambda: generation(n + 1)), 20) == 0
            publish(pubsub, f"after-{n}")
        generation(0)
        pubsub.close()
        """
    )
    assert sorted(events_of(pubsub)) == sorted(f"{what}-{n}" for what in ("generation", "after") for n in range(4))


@pytest.mark.limit(60)
def test_forking_while_threads_publish(run: Callable[..., str], pubsub: S2PubSub) -> None:
    """C40: forks in the middle of other threads' publishes: the children work, and nothing is stored twice."""
    run(
        """
        pubsub = S2PubSub()
        publish(pubsub, "first")
        over = threading.Event()
        counts = [0] * 8

        def busy(number):
            while not over.is_set():
                publish(pubsub, [number, counts[number]])
                counts[number] += 1

        threads = [threading.Thread(target=busy, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for n in range(6):
            time.sleep(0.02)
            assert ended(forked(lambda: use_everything(pubsub, f"child-{n}"))) == 0
        over.set()
        for thread in threads:
            thread.join()
        stored = [event.data for event in pubsub.get_history(TOPIC) if isinstance(event.data, list)]
        assert sorted(stored) == [[number, n] for number in range(8) for n in range(counts[number])]
        pubsub.close()
        """
    )
    assert len([data for data in events_of(pubsub) if isinstance(data, str)]) == 7


@pytest.mark.limit(60)
def test_forking_from_a_callback(run: Callable[..., str], pubsub: S2PubSub) -> None:
    """C40: a child forked inside a callback, on the subscription's thread, works, and the callbacks go on."""
    run(
        """
        pubsub = S2PubSub()
        statuses = []

        def work(event):
            if event.type == "chunk" and event.data in (0, 1):
                child = multiprocessing.get_context("fork").Process(
                    target=lambda: pubsub.publish(TOPIC, type="child", data=event.data, timeout=5)
                )
                child.start()
                child.join(10)
                statuses.append(child.exitcode)
            elif event.type == "chunk":
                statuses.append("over")

        pubsub.subscribe(TOPIC, work)
        for n in range(3):
            publish(pubsub, n)
        end = time.monotonic() + 15
        while len(statuses) < 3 and time.monotonic() < end:
            time.sleep(0.01)
        assert statuses == [0, 0, "over"], statuses
        pubsub.close()
        """
    )


@pytest.mark.limit(60)
def test_a_callable_that_does_not_return(run: Callable[..., str]) -> None:
    """C40: while the callable of one client hangs, other clients are made, and a fork waits for it for a while only."""
    run(
        """
        import s2_sdk
        entered, go = threading.Event(), threading.Event()

        def make():
            entered.set()
            go.wait(30)
            token, account, basin = (os.environ[f"S2_{name}"] for name in
                                     ("ACCESS_TOKEN", "ACCOUNT_ENDPOINT", "BASIN_ENDPOINT"))
            return s2_sdk.S2(token, endpoints=s2_sdk.Endpoints(account=account, basin=basin))

        stuck = S2PubSub(client=make)
        stored = []
        thread = threading.Thread(target=lambda: stored.append(stuck.publish(TOPIC, type="chunk", data=1)))
        thread.start()
        assert entered.wait(10)
        for _ in range(2):
            with S2PubSub() as other:
                publish(other, "other")
        pubsub = S2PubSub()
        assert ended(forked(lambda: publish(pubsub, "child"))) == 0
        assert not stored
        go.set()
        thread.join(10)
        assert stored[0].index == 3
        stuck.close()
        pubsub.close()
        """
    )


def test_a_ready_made_client_is_refused_in_the_child(run: Callable[..., str]) -> None:
    """C40: a ready-made SDK client belongs to the parent; the child's first call names the callable form."""
    run(
        """
        import s2_sdk
        token, account, basin = (os.environ[f"S2_{name}"] for name in
                                 ("ACCESS_TOKEN", "ACCOUNT_ENDPOINT", "BASIN_ENDPOINT"))
        ready = s2_sdk.S2(token, endpoints=s2_sdk.Endpoints(account=account, basin=basin))
        pubsub = S2PubSub(client=ready)
        publish(pubsub, "parent")

        def child():
            for _ in range(2):
                try:
                    publish(pubsub, "child")
                except ClosedError as error:
                    assert "callable" in str(error), error
                else:
                    raise AssertionError("published")

        assert ended(forked(child)) == 0
        publish(pubsub, "parent")
        pubsub.close()
        """
    )


def test_a_closed_client_stays_closed(run: Callable[..., str]) -> None:
    """C40: a client that the parent had closed is closed in the child too."""
    run(
        """
        pubsub = S2PubSub()
        publish(pubsub, "parent")
        pubsub.close()

        def child():
            try:
                publish(pubsub, "child")
            except ClosedError:
                return
            raise AssertionError("published")

        assert ended(forked(child)) == 0
        """
    )


PRELOADED = f"""
    import os
    from flask import Flask
    from s2pubsub import S2PubSub

    pubsub = S2PubSub()
    pubsub.publish({TOPIC!r}, type="preload", data=os.getpid())
    kept = pubsub.subscribe({TOPIC!r})
    app = Flask(__name__)

    @app.get("/")
    def publish():
        pubsub.publish({TOPIC!r}, type="request", data=os.getpid(), timeout=5)
        with pubsub.subscribe("agent.stream.live", timeout=5) as events:
            pubsub.publish("agent.stream.live", type="x", data=0)
            events.get(timeout=5)
        return str(os.getpid())
"""


@pytest.mark.web
@pytest.mark.limit(60)
def test_a_preloading_server(server: Server, basin: str, tmp_path: Path, pubsub: S2PubSub) -> None:
    """C40: under gunicorn with a client made and used before the fork, every worker serves, and all end on SIGTERM."""
    with gunicorn(tmp_path, PRELOADED, server, basin, "--preload", "-w", "4") as url:
        pids = {get(url) for _ in range(20)}
    assert len(pids) > 1
    stored = pubsub.get_history(TOPIC)
    assert [event.type for event in stored].count("preload") == 1
    assert {str(event.data) for event in stored if event.type == "request"} >= pids


# C41: what was open before.


@pytest.mark.limit(60)
def test_an_inherited_subscription_is_dead(run: Callable[..., str], pubsub: S2PubSub, proxy: FaultProxy) -> None:
    """C41: in the child every use of an inherited subscription raises ClosedError or returns at once; the parent's
    goes on without a reconnect.
    """
    run(
        """
        pubsub = S2PubSub()
        for n in range(4):
            publish(pubsub, n)
        events = pubsub.subscribe_from_offset(TOPIC, 0)
        calls = []
        called = pubsub.subscribe_from_offset(TOPIC, 0, calls.append)
        history = pubsub.iter_history(TOPIC)
        assert [next(events).data, next(events).data, next(history).data] == [0, 1, 0]
        waiting = threading.Thread(target=lambda: [events.wait(), called.wait()], daemon=True)
        waiting.start()

        def child():
            def refused(action):
                began = time.monotonic()
                try:
                    action()
                except ClosedError as error:
                    assert "fork" in str(error), error
                else:
                    raise AssertionError(action)
                assert time.monotonic() - began < 1

            before = len(calls)
            for _ in range(2):
                refused(lambda: next(events))
                refused(lambda: events.get())
                refused(lambda: events.get(timeout=0))
                refused(lambda: list(events.batches(10)))
                refused(lambda: events.wait())
                refused(lambda: called.wait())
                assert events.closed and called.closed
                began = time.monotonic()
                events.close()
                called.close()
                repr(events)
                assert time.monotonic() - began < 1
            assert pubsub.stats().subscriptions == 0
            pubsub.unsubscribe(TOPIC, calls.append)
            use_everything(pubsub, "child")
            assert len(calls) == before

        # no event of the child's reaches the count below: it writes one
        assert ended(forked(child)) == 0
        for n in range(4, 14):
            publish(pubsub, n)
        data = [events.get(timeout=5).data for _ in range(13)]
        assert [item for item in data if item != "child"] == list(range(2, 14)), data
        assert list(event.data for event in history) == [1, 2, 3]
        end = time.monotonic() + 5
        while len(calls) < 15 and time.monotonic() < end:
            time.sleep(0.01)
        assert [event.data for event in calls if event.data != "child"] == list(range(14))
        assert pubsub.stats().reconnects == 0
        pubsub.close()
        """,
        endpoint=proxy,
    )


def test_an_inherited_history_is_dead(run: Callable[..., str]) -> None:
    """C41: the rest of an inherited iterator over history raises ClosedError once it needs the server."""
    run(
        """
        pubsub = S2PubSub()
        for _ in range(3):
            pubsub.publish_many(TOPIC, [{"type": "chunk", "data": "x" * 300} for _ in range(1000)])
        history = pubsub.iter_history(TOPIC)
        for _ in range(1500):
            next(history)

        def child():
            began = time.monotonic()
            try:
                list(history)
            except ClosedError:
                pass
            else:
                raise AssertionError("went on")
            assert time.monotonic() - began < 1
            assert len(pubsub.get_history(TOPIC)) == 3000

        assert ended(forked(child)) == 0
        assert len(list(history)) == 1500
        pubsub.close()
        """
    )


@pytest.mark.limit(60)
def test_inherited_futures_are_dead(run: Callable[..., str], pubsub: S2PubSub, proxy: FaultProxy) -> None:
    """C41: what a publisher has not stored at the fork ends in the child with ClosedError and outcome 'unknown'; what
    it has stored keeps its result. The parent's futures and their callbacks are the parent's.
    """
    pubsub.publish(TOPIC, type="chunk", data="before")
    hold = proxy.hold_response(APPEND_SESSION, times=None)
    released = threading.Thread(target=lambda: (proxy.wait_for(APPEND, 1), proxy.remove(hold)))
    released.start()
    run(
        """
        import concurrent.futures
        pubsub = S2PubSub()
        publisher = pubsub.publisher(TOPIC, max_in_flight=10)
        pending = [publisher.publish(type="chunk", data=n) for n in range(10)]
        called = []
        for future in pending:
            future.add_done_callback(called.append)
        blocked = threading.Thread(target=lambda: pending.append(publisher.publish(type="chunk", data=10)))
        blocked.start()
        waiting = threading.Thread(target=lambda: pending[0].result(20))
        waiting.start()

        def child():
            done, undone = concurrent.futures.wait(pending, timeout=5)
            assert len(done) == 10 and not undone
            for future in pending:
                assert isinstance(future.exception(0), ClosedError)
                assert future.exception(0).outcome == "unknown"
            late = []
            pending[0].add_done_callback(late.append)
            assert called == [] and late == pending[:1]

        assert ended(forked(child)) == 0
        assert not any(future.done() for future in pending)
        publish(pubsub, "go", "agent.stream.go")
        blocked.join(10)
        waiting.join(10)
        assert [future.result(5).index for future in pending] == list(range(1, 12))
        assert len(called) == 10

        results = []
        def fork_in_callback(future):
            results.append(ended(forked(lambda: os._exit(future.result(0).index != 12))))
        held = publisher.publish(type="chunk", data=11)
        held.add_done_callback(fork_in_callback)
        publisher.flush(20)
        assert results == [0]
        publisher.close()
        pubsub.close()
        """,
        endpoint=proxy,
    )
    released.join(LONG)


@pytest.mark.limit(60)
def test_inherited_publishers_and_leases_are_dead(run: Callable[..., str], pubsub: S2PubSub) -> None:
    """C41: the parent's publisher and held lease raise ClosedError in the child at once; in the parent they go on."""
    run(
        """
        pubsub = S2PubSub()
        publisher = pubsub.publisher(TOPIC)
        publisher.publish(type="chunk", data=0).result(5)
        lost = []
        lease = pubsub.leases.hold("key", "parent", 2, on_lost=lambda: lost.append(1))
        pending = [publisher.publish(type="chunk", data=n) for n in range(1, 50)]

        def child():
            def refused(action):
                began = time.monotonic()
                try:
                    action()
                except ClosedError:
                    pass
                else:
                    raise AssertionError(action)
                assert time.monotonic() - began < 1

            refused(lambda: publisher.publish(type="chunk", data="child"))
            refused(lambda: publisher.flush(timeout=5))
            refused(lambda: lease.check())
            for future in pending:
                assert future.exception(timeout=0) is None or isinstance(future.exception(timeout=0), ClosedError)
            began = time.monotonic()
            for close in (publisher.close, lease.release):
                try:
                    close()
                except ClosedError:
                    pass
            assert time.monotonic() - began < 1
            assert pubsub.leases.get_lease_owner("key") == "parent"
            assert not pubsub.leases.acquire_lease("key", "child", 2).acquired
            with pubsub.publisher("agent.stream.child") as own:
                assert own.publish(type="chunk", data=0).result(5).index is not None

        for _ in range(2):
            assert ended(forked(child)) == 0
        assert [future.result(5).index for future in pending] == list(range(1, 50))
        time.sleep(2.5)  # longer than the lease's life
        lease.check()
        assert not lost
        publisher.publish(type="chunk", data=50).result(5)
        publisher.close()
        lease.release()
        pubsub.close()
        """
    )
    assert events_of(pubsub) == list(range(51))


# C42: the parent's connections.


@pytest.mark.limit(60)
@pytest.mark.parametrize("way", ["exits", "closes", "works", "_exit", "collects", "raises"])
def test_a_child_does_not_disturb_the_parent(
    run: Callable[..., str], pubsub: S2PubSub, proxy: FaultProxy, way: str
) -> None:
    """C42: a child that exits with its handlers, closes, collects or fails ends nothing of its parent's: no connection
    and no stream.
    """
    printed = run(
        f"""
        pubsub = S2PubSub()
        publish(pubsub, 0)
        publisher = pubsub.publisher("agent.stream.pipelined")
        publisher.publish(type="chunk", data=0).result(5)
        subscriptions = [pubsub.subscribe_from_offset(TOPIC, 0) for _ in range(2)]
        called = []
        subscriptions.append(pubsub.subscribe_from_offset(TOPIC, 0, called.append))
        for events in subscriptions[:2]:
            assert events.get(timeout=5).index == 0

        def child():
            way = {way!r}
            if way == "closes":
                for subscription in subscriptions:
                    subscription.close()
                pubsub.close()
            elif way == "works":
                publish(pubsub, "child", "agent.stream.other")
                pubsub.close()
            elif way == "_exit":
                os._exit(0)
            elif way == "collects":
                global events
                del events
                subscriptions.clear()
                gc.collect()
            elif way == "raises":
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                raise KeyError(way)

        for _ in range(2):
            status = ended(forked(child))
            assert status == (1 if {way!r} == "raises" else 0), status
        print("forked", flush=True)
        for n in range(1, 11):
            publish(pubsub, n)
        for events in subscriptions[:2]:
            assert [events.get(timeout=5).data for _ in range(10)] == list(range(1, 11))
        end = time.monotonic() + 5
        while len(called) < 11 and time.monotonic() < end:
            time.sleep(0.01)
        assert len(called) == 11
        assert pubsub.stats().reconnects == 0
        assert pubsub.stats().replaced_clients == 0
        assert publisher.publish(type="chunk", data=1).result(5).index == 1
        publisher.close()
        pubsub.close()
        """,
        endpoint=proxy,
    )
    assert printed == "forked\n"
    parents = [seen.connection for seen in proxy.seen(READ_SESSION)]
    assert len(parents) >= 3  # one that gets no processor for long may be parked and opened again
    assert len(set(parents)) == 1
    children = 2 if way == "works" else 0  # one connection each, for their one publish
    assert len(proxy.connections) == 3 + children  # the parent's: one each for writing, reading and the publisher
    sessions = "read_session", "append_session"
    assert [s.finished for s in proxy.seen(ANY) if s.kind not in sessions and s.finished != "end"] == []
    assert len(proxy.seen(APPEND_SESSION)) == 1


@pytest.mark.limit(300)
@pytest.mark.stress
@pytest.mark.slow
def test_forking_all_the_time(run: Callable[..., str], pubsub: S2PubSub) -> None:
    """C40, C41, C42: a hundred forks while threads publish, subscribe, close and drop at a tiny switch interval."""
    print(
        run(
            """
            import random
            seed = random.randrange(2**32)
            print("seed", seed, flush=True)
            sys.setswitchinterval(1e-5)
            warnings.simplefilter("ignore", ResourceWarning)
            pubsub = S2PubSub(queue_size=3)
            over = threading.Event()

            def busy(chance):
                while not over.is_set():
                    publish(pubsub, 0)
                    callback = chance.choice([None, lambda event: None])
                    events = pubsub.subscribe_from_offset(TOPIC, 0, callback)
                    if callback or chance.random() < 0.5:
                        events.close()
                    del events

            threads = [threading.Thread(target=busy, args=(random.Random(seed + n),)) for n in range(4)]
            for thread in threads:
                thread.start()
            try:
                for n in range(100):
                    child = forked(lambda: [publish(pubsub, n), pubsub.get_history(TOPIC, max(0, n - 3))])
                    assert ended(child) == 0, n
            finally:
                over.set()
            for thread in threads:
                thread.join()
            pubsub.close()
            """,
            limit=200,
        )
    )
