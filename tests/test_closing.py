"""Closing, leaving and dropping: nothing stays behind, nobody else is held up, and what is closed says so."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import random
import statistics
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from s2pubsub import (
    ClosedError,
    Event,
    LeaseUnavailableError,
    OperationTimeoutError,
    S2PubSub,
    Subscription,
    TopicGoneError,
)
from s2pubsub.runs import Runs
from tests.faults import READ_SESSION, Effect, FaultProxy, Request
from tests.servers import ON_LITE, Server
from tests.waiting import LONG, eventually

pytestmark = ON_LITE

TOPIC = "agent.stream.run-7"
SOON = 2.0
"""Seconds within which a worker must be gone, or a close done with."""

MIB = 2**20
BATCH = 1000
"""The most events that the server sends in one piece."""

Make = Callable[..., S2PubSub]


def fill(pubsub: S2PubSub, count: int, size: int = 10, topic: str = TOPIC) -> None:
    """Store ``count`` events of about ``size`` bytes."""
    text = "x" * size
    for first in range(0, count, BATCH):
        numbers = range(first, min(count, first + BATCH))
        pubsub.publish_many(topic, [{"type": "chunk", "data": {"n": n, "text": text}} for n in numbers])


def ours() -> list[str]:
    """Names of the library's threads."""
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("s2pubsub-"))


def workers() -> list[str]:
    return [name for name in ours() if name.startswith("s2pubsub-sub-")]


def stack_of(thread: threading.Thread) -> str:
    """Where a thread is, for the message of a test that it does not let pass."""
    frame = sys._current_frames().get(thread.ident or 0)
    return f"{thread.name}:\n{''.join(traceback.format_stack(frame))}"


def wait_for_end(timeout: float = LONG) -> None:
    """Wait until no thread of a subscription is left."""
    try:
        eventually(lambda: not workers(), timeout)
    except AssertionError:
        left = [thread for thread in threading.enumerate() if thread.name.startswith("s2pubsub-sub-")]
        raise AssertionError("left: " + "\n".join(map(stack_of, left))) from None


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def memory() -> int:
    """Resident bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Crowd:
    """Threads that do the same at the same moment; ``join`` raises what one of them raised."""

    def __init__(self, count: int, act: Callable[[int], object], *, others: int = 0) -> None:
        self.barrier = threading.Barrier(count + others)
        self.errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(act, number)) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self, act: Callable[[int], object], number: int) -> None:
        try:
            self.barrier.wait(LONG)
            act(number)
        except BaseException as error:
            self.errors.append(error)

    def join(self, timeout: float = LONG) -> None:
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            assert not thread.is_alive(), f"it did not end in time: {stack_of(thread)}"
        if self.errors:
            raise self.errors[0]


@contextlib.contextmanager
def dropping(what: str) -> Iterator[None]:
    """What is dropped in the block is collected at its end, and must have warned that it was not closed."""
    with pytest.warns(ResourceWarning, match=f"unclosed {what}"):  # noqa: PT031 - a context manager's body
        yield
        gc.collect()


@pytest.fixture
def settings(server: Server, basin: str) -> dict[str, Any]:
    """For clients that a test makes and drops itself."""
    return {"basin": basin, "endpoints": server.url, "access_token": server.token}


# C32: leaving a loop early.


class Holder:
    """Gives away the only reference to a subscription."""

    def __init__(self, held: Subscription) -> None:
        self._held = [held]

    def take(self) -> Subscription:
        return self._held.pop()


def leave_by_break(holder: Holder) -> None:
    with dropping("subscription"):
        for number, _ in enumerate(holder.take(), 1):
            if number == 3:
                break


def leave_by_error(holder: Holder) -> None:
    def read() -> None:
        with holder.take() as events:
            for number, _ in enumerate(events, 1):
                if number == 3:
                    raise KeyError(number)

    with pytest.raises(KeyError):
        read()


def leave_by_with(holder: Holder) -> None:
    with holder.take() as events:
        assert [next(events).index for _ in range(3)] == [0, 1, 2]


def leave_by_drop(holder: Holder) -> None:
    events = holder.take()
    assert [next(events).index for _ in range(3)] == [0, 1, 2]
    with dropping("subscription"):
        del events


def leave_by_cycle(holder: Holder) -> None:
    events: Any = holder.take()
    assert [next(events).index for _ in range(3)] == [0, 1, 2]
    events.itself = events
    with dropping("subscription"):
        del events


def leave_by_batches(holder: Holder) -> None:
    with holder.take() as events:
        for batch in events.batches(3):
            assert [event.index for event in batch] == [0, 1, 2]
            break


@pytest.mark.parametrize(
    "leave",
    [leave_by_break, leave_by_error, leave_by_with, leave_by_drop, leave_by_cycle, leave_by_batches],
    ids=lambda leave: leave.__name__,
)
@pytest.mark.parametrize("parked", [False, True], ids=["at once", "parked"])
@pytest.mark.usefixtures("lite_server")
def test_leaving_early_stops_the_worker(
    make_pubsub: Make, proxy: FaultProxy, leave: Callable[[Holder], None], parked: bool
) -> None:
    """C32: however a loop is left, its thread ends and the server sees the session closed; little had been fetched."""
    pubsub = make_pubsub(endpoints=proxy.url, queue_size=500)
    fill(pubsub, 10_000, 2000)
    before = proxy.passed("to_client")
    holder = Holder(pubsub.subscribe_from_offset(TOPIC, 0))
    if parked:  # the worker waits for room, without a session, when the loop is left
        eventually(lambda: [seen.finished for seen in proxy.seen(READ_SESSION)] == ["client reset"])
        assert pubsub.stats().queued <= 500 + BATCH
    leave(holder)
    wait_for_end(SOON)
    eventually(lambda: all(seen.finished for seen in proxy.seen(READ_SESSION)), SOON)
    # Three were taken; the queue took the batch for which it had room last, and one more may have been decoded.
    delivered = pubsub.stats().delivered
    assert delivered <= 3 + 500 + 2 * BATCH
    # One window of the connection, which is opened again by as much as was taken out of it: that, and a piece in hand.
    assert proxy.passed("to_client") - before <= 10 * MIB + (delivered + BATCH) * 2400
    assert pubsub.stats().queued == 0
    assert pubsub.stats().subscriptions == 0


@pytest.mark.limit(60)
@pytest.mark.usefixtures("switch_often")
def test_collection_on_any_thread_stops_the_worker(make_pubsub: Make) -> None:
    """C32: a dropped handle in a cycle is collected on whatever thread is running, its own worker's included, in the
    middle of any of its waits; no finalizer blocks, and no worker sleeps on.
    """
    collect_at_random(make_pubsub(queue_size=4), 60, seed=1)


@pytest.mark.stress
@pytest.mark.slow
@pytest.mark.limit(600)
@pytest.mark.usefixtures("switch_often")
def test_collection_on_any_thread_for_long(make_pubsub: Make) -> None:
    """C32: the same, many times."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    collect_at_random(make_pubsub(queue_size=4), 1500, seed)


def collect_at_random(pubsub: S2PubSub, rounds: int, seed: int) -> None:
    chance = random.Random(seed)
    fill(pubsub, 50)
    thresholds = gc.get_threshold()
    with dropping("subscription"):
        gc.set_threshold(chance.choice([1, 3, 10, 50]))
        try:
            for _ in range(rounds):
                events: Any = pubsub.subscribe_from_offset(TOPIC, chance.choice([0, 0, 49, 50]))
                if chance.random() < 0.5:
                    with contextlib.suppress(OperationTimeoutError):
                        events.get(timeout=chance.random() * 0.02)
                events.itself = [events]
                del events
                gc.set_threshold(chance.choice([1, 3, 10, 50]))
        finally:
            gc.set_threshold(*thresholds)
        # Once is not enough: a collection that another thread is busy with makes this one return at once.
        eventually(lambda: gc.collect() == 0)
        wait_for_end()


def test_a_handle_keeps_its_client(pubsub: S2PubSub, settings: dict[str, Any]) -> None:
    """The client of a subscription, or of an iterator over history, lives as long as somebody reads."""
    fill(pubsub, 3)
    with dropping("<S2PubSub"):
        assert [event.index for event in S2PubSub(**settings).iter_history(TOPIC)] == [0, 1, 2]
    with dropping("<S2PubSub"):
        with S2PubSub(**settings).subscribe_with_replay(TOPIC) as events:
            gc.collect()
            assert [next(events).index for _ in range(3)] == [0, 1, 2]
        del events


# C33: a slow consumer.


@pytest.mark.limit(60)
@pytest.mark.usefixtures("lite_server")
@pytest.mark.parametrize("count", [20_000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.stress])])
def test_a_slow_consumer(pubsub: S2PubSub, make_pubsub: Make, count: int) -> None:
    """C33: while its consumer sleeps a subscription holds its bounds and one batch at most; then all come, in order."""
    fill(pubsub, count, 1000)
    reader = make_pubsub(queue_size=1000, queue_bytes=64 * MIB)
    reader.tail(TOPIC)
    gc.collect()
    before = memory()
    with reader.subscribe_from_offset(TOPIC, 0) as events:
        assert next(events).index == 0
        most = 0
        asleep_until = time.monotonic() + 5
        while time.monotonic() < asleep_until:
            most = max(most, events.queued)
            threading.Event().wait(0.01)
        assert most <= 1000 + BATCH
        assert memory() - before < 30 * MIB
        assert [next(events).index for _ in range(count - 1)] == list(range(1, count))
        with pytest.raises(OperationTimeoutError):
            events.get(timeout=0.1)
        assert reader.stats().parked >= 1


@pytest.mark.usefixtures("lite_server")
@pytest.mark.parametrize("sharing", [1, 4])
def test_a_consumer_that_stops_again_and_again(pubsub: S2PubSub, make_pubsub: Make, sharing: int) -> None:
    """C33: a consumer, or several on one subscription, that pause in the middle lose and repeat nothing."""
    fill(pubsub, 3000, 100)
    reader = make_pubsub(queue_size=50)
    taken: list[int | None] = []
    with reader.subscribe_from_offset(TOPIC, 0) as events:

        def take(number: int) -> None:
            chance = random.Random(number)
            while True:
                try:
                    event = events.get(timeout=LONG if len(taken) < 3000 else 0)
                except (OperationTimeoutError, ClosedError):
                    return
                taken.append(event.index)
                if len(taken) >= 3000:
                    events.close()
                if chance.random() < 0.001:
                    threading.Event().wait(0.3)

        Crowd(sharing, take).join(LONG)
    assert sorted(taken) == list(range(3000))
    if sharing == 1:
        assert taken == list(range(3000))


# C34: close by many at once.


def close_together(
    pubsub: S2PubSub, proxy: FaultProxy, rounds: int, *, kind: str, seed: int = 0, callback: bool = False
) -> None:
    chance = random.Random(seed)
    gone = Effect(do="end", status=404, code="stream_not_found")
    for number in range(rounds):
        topic = f"agent.stream.run-{chance.randrange(5)}"
        event = pubsub.publish(topic, type="chunk", data=0)
        made = pubsub.subscribe_from_offset(topic, event.index, (lambda event: None) if callback else None)
        eventually(lambda made=made, event=event: made.next_index > event.index or made.queued)
        times: list[float] = []

        def close(number: int, made: Subscription = made, topic: str = topic, times: list[float] = times) -> None:
            began = time.monotonic()
            if number == 8:
                if kind == "404":
                    proxy.strike(READ_SESSION, gone)
                else:
                    pubsub.publish(topic, type="finish", data=None)
                return
            made.close()
            times.append(time.monotonic() - began)

        ending = number % 2
        Crowd(8 + ending, close).join()
        assert len(times) == 8
        assert max(times) < SOON
        assert made.closed
        assert made.ended
        if not callback:
            with contextlib.suppress(TopicGoneError):
                assert list(made) == []
    assert workers() == []


@pytest.mark.parametrize("kind", ["404", "finish"])
@pytest.mark.parametrize("callback", [False, True], ids=["iterator", "callback"])
@pytest.mark.usefixtures("switch_often", "lite_server")
def test_many_close_at_once(make_pubsub: Make, proxy: FaultProxy, kind: str, callback: bool) -> None:
    """C34: eight threads close one subscription, some of the time just as it ends by itself; all return, none fails."""
    close_together(make_pubsub(endpoints=proxy.url), proxy, 16, kind=kind, callback=callback)


@pytest.mark.stress
@pytest.mark.slow
@pytest.mark.limit(600)
@pytest.mark.parametrize("kind", ["404", "finish"])
@pytest.mark.usefixtures("switch_often", "lite_server")
def test_many_close_at_once_for_long(make_pubsub: Make, proxy: FaultProxy, kind: str) -> None:
    """C34: two hundred rounds of it."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    pubsub = make_pubsub(endpoints=proxy.url)
    close_together(pubsub, proxy, 200, kind=kind, seed=seed)
    close_together(pubsub, proxy, 200, kind=kind, seed=seed, callback=True)


@pytest.mark.limit(60)
@pytest.mark.usefixtures("switch_often", "lite_server")
def test_many_close_the_client_at_once(make_pubsub: Make) -> None:
    """C34: the same with the client, while readers wait in iteration, ``get`` and ``wait``."""
    for _ in range(10):
        pubsub = make_pubsub()
        idle = pubsub.subscribe(TOPIC)
        ended: list[str] = []

        def read(number: int, idle: Subscription = idle, ended: list[str] = ended) -> None:
            if number == 0:
                ended.extend("iteration" for _ in [list(idle)])
            elif number == 1:
                with pytest.raises(ClosedError):
                    idle.get()
                ended.append("get")
            else:
                idle.wait()
                ended.append("wait")

        readers = Crowd(3, read)
        Crowd(8, lambda _, pubsub=pubsub: pubsub.close()).join()
        readers.join()
        assert sorted(ended) == ["get", "iteration", "wait"]
        eventually(lambda: not ours())


# C35: nobody is held up.


@pytest.mark.limit(60)
@pytest.mark.usefixtures("lite_server")
def test_slow_ones_do_not_delay_others(make_pubsub: Make, proxy: FaultProxy) -> None:
    """C35: a consumer that never reads, a callback that sleeps and a close that gets no answer delay no neighbour and
    no publish.
    """
    pubsub, free = make_pubsub(endpoints=proxy.url), make_pubsub(endpoints=proxy.url)
    topics = [f"agent.stream.run-{n}" for n in range(10)]
    fill(pubsub, 30_000, 1000, topics[0])
    arrived: dict[tuple[str, int | None], float] = {}

    def arrive(event: Event) -> None:
        arrived[event.topic, event.index] = time.monotonic()

    for topic in topics[3:]:
        pubsub.subscribe(topic, arrive)
        free.subscribe(f"{topic}-free", arrive)

    def publish(client: S2PubSub, topic: str) -> tuple[float, float]:
        began = time.monotonic()
        event = client.publish(topic, type="chunk", data=0)
        returned = time.monotonic()
        eventually(lambda: (topic, event.index) in arrived)
        return returned - began, arrived[topic, event.index] - began

    leave = threading.Event()
    unread = pubsub.subscribe_from_offset(topics[0], 0)
    pubsub.subscribe(topics[1], lambda event: leave.wait(6 * LONG))
    pubsub.publish(topics[1], type="chunk", data=0)
    closing = pubsub.subscribe(topics[2])
    proxy.strike(Request(kind="read_session", stream=f"mastra/durable/{topics[2]}"), Effect(do="silence"))
    beside: list[tuple[float, float]] = []
    alone: list[tuple[float, float]] = []  # the same on a client of its own, in turn: the machine's load is on both
    try:
        closer = Crowd(1, lambda _: closing.close())
        end = time.monotonic() + 4
        for topic in itertools.cycle(topics[3:]):
            beside.append(publish(pubsub, topic))
            alone.append(publish(free, f"{topic}-free"))
            if time.monotonic() > end:
                break
        closer.join(SOON)
        assert not leave.is_set()
        assert unread.queued
    finally:
        leave.set()
    unread.close()
    for times, usual in zip(zip(*beside, strict=True), zip(*alone, strict=True), strict=True):
        assert statistics.median(times) < 2 * statistics.median(usual) + 0.01
        assert ninetieth(times) < 3 * ninetieth(usual) + 0.05


def ninetieth(times: Sequence[float]) -> float:
    """What nine of ten are below."""
    return statistics.quantiles(times, n=10)[-1]


# C38: nothing stays behind.


def use_and_leave(make: Callable[[], S2PubSub], subscriptions: int, events: int, clients: int) -> None:
    with make() as pubsub:
        for first in range(0, subscriptions, 100):
            made = [
                pubsub.subscribe(f"agent.stream.run-{n}", (lambda event: None) if n % 2 else None)
                for n in range(first, min(subscriptions, first + 100))
            ]
            for subscription in made:
                subscription.close()

        def publish(number: int) -> None:
            for n in range(events // 50):
                pubsub.publish(f"agent.stream.run-{number % 8}", type="chunk", data=n)

        Crowd(50, publish).join(60)
    for _ in range(clients):
        with make() as client:
            client.publish(TOPIC, type="chunk", data=0)


@pytest.mark.parametrize(
    ("subscriptions", "events", "clients"),
    [(60, 500, 5), pytest.param(500, 5000, 50, marks=[pytest.mark.slow, pytest.mark.stress])],
    ids=["short", "long"],
)
@pytest.mark.limit(300)
@pytest.mark.usefixtures("lite_server")
def test_nothing_stays_behind(settings: dict[str, Any], subscriptions: int, events: int, clients: int) -> None:
    """C38: after many subscriptions, publishes from short-lived threads and clients: the same threads and open files,
    and hardly more memory, than after the first round.
    """
    figures = []
    for _ in range(2):
        use_and_leave(lambda: S2PubSub(**settings), subscriptions, events, clients)
        eventually(lambda: not ours())
        gc.collect()
        figures.append((threading.active_count(), descriptors(), memory()))
    assert figures[1][:2] == figures[0][:2]
    assert figures[1][2] - figures[0][2] < 10 * MIB


# C39: a closed client.


def calls_on(pubsub: S2PubSub) -> dict[str, Callable[[], object]]:
    """Every call that needs an open client."""
    leases, runs = pubsub.leases, Runs(pubsub, cleanup_timeout=0)
    return {
        "publish": lambda: pubsub.publish(TOPIC, type="chunk", data=0),
        "publish_many": lambda: pubsub.publish_many(TOPIC, [{"type": "chunk", "data": 0}]),
        "subscribe": lambda: pubsub.subscribe(TOPIC, print),
        "subscribe_from_offset": lambda: pubsub.subscribe_from_offset(TOPIC, 0),
        "subscribe_with_replay": lambda: pubsub.subscribe_with_replay(TOPIC),
        "get_history": lambda: pubsub.get_history(TOPIC),
        "iter_history": lambda: pubsub.iter_history(TOPIC),
        "tail": lambda: pubsub.tail(TOPIC),
        "exists": lambda: pubsub.exists(TOPIC),
        "topics": lambda: pubsub.topics(),
        "clear_topic": lambda: pubsub.clear_topic(TOPIC, strict=True),
        "ensure_basin": lambda: pubsub.ensure_basin(),
        "check": lambda: pubsub.check(),
        "publisher": lambda: pubsub.publisher(TOPIC).close(),
        "acquire_lease": lambda: leases.acquire_lease("key", "owner", 5),
        "renew_lease": lambda: leases.renew_lease("key", "owner", 5),
        "transfer_lease": lambda: leases.transfer_lease("key", "owner", "other", 5),
        "release_lease": lambda: leases.release_lease("key", "owner"),
        "get_lease_owner": lambda: leases.get_lease_owner("key"),
        "hold": lambda: leases.hold("key", "owner", 5).release(),
        "start": lambda: runs.start().finish(),
        "observe": lambda: runs.observe("run-8", wait_for_start=5).close(),
        "exists (run)": lambda: runs.exists("run-8"),
        "status": lambda: runs.status("run-8"),
        "local publish": lambda: pubsub.publish("local", type="chunk", data=0),
        "local subscribe": lambda: pubsub.subscribe("local").close(),
    }


@pytest.mark.parametrize("used", [False, True], ids=["unused", "used"])
def test_calls_on_a_closed_client(make_pubsub: Make, used: bool, caplog: pytest.LogCaptureFixture) -> None:
    """C39: after close every call raises ClosedError at once and starts no thread; a further close is silent."""
    pubsub = make_pubsub()
    if used:
        fill(pubsub, 3)
        history = pubsub.iter_history(TOPIC)
        subscription = pubsub.subscribe_with_replay(TOPIC)
    calls = calls_on(pubsub)
    pubsub.close()
    assert pubsub.closed
    for name, call in calls.items():
        began = time.monotonic()
        with pytest.raises(ClosedError):
            call()
        assert time.monotonic() - began < 0.5, name
    pubsub.clear_topic(TOPIC)
    assert "was not cleared" in caplog.text
    pubsub.unsubscribe(TOPIC, print)
    pubsub.close()
    pubsub.close(timeout=0)
    if used:
        with pytest.raises(ClosedError):
            list(history)
        assert list(subscription) == []
        with pytest.raises(ClosedError):
            subscription.get(timeout=1)
        subscription.wait(0)
    eventually(lambda: not ours())
    assert "closed" in repr(pubsub)


@pytest.mark.limit(60)
@pytest.mark.usefixtures("switch_often", "lite_server")
def test_calls_while_another_thread_closes(make_pubsub: Make) -> None:
    """C39: calls under way while the client is closed end with ClosedError (or their result), at once, and only so."""
    for number in range(6):
        pubsub = make_pubsub()
        fill(pubsub, 3)
        calls = list(calls_on(pubsub).items())
        slow: list[str] = []
        closing: list[float] = []

        def repeat(
            index: int,
            calls: list[tuple[str, Callable[[], object]]] = calls,
            slow: list[str] = slow,
            closing: list[float] = closing,
        ) -> None:
            name, call = calls[index]
            while True:
                began = time.monotonic()
                try:
                    result = call()
                except ClosedError:
                    if time.monotonic() - max(began, *closing) > 1:
                        slow.append(name)
                    return
                except (TopicGoneError, LeaseUnavailableError):
                    continue  # another one has the lease
                if isinstance(result, Subscription):
                    result.close()

        kept = [
            index for index, (name, _) in enumerate(calls) if name not in ("clear_topic", "ensure_basin", "observe")
        ]
        crowd = Crowd(len(kept), lambda n, repeat=repeat, kept=kept: repeat(kept[n]), others=1)
        crowd.barrier.wait(LONG)
        threading.Event().wait(0.02 * number)
        closing.append(time.monotonic())
        pubsub.close()
        crowd.join()
        assert slow == []
        eventually(lambda: not ours())


def test_a_close_that_was_interrupted_is_completed(make_pubsub: Make) -> None:
    """A close whose time was up can be repeated, and then waits for what stayed."""
    pubsub = make_pubsub()
    entered, leave = threading.Event(), threading.Event()

    def slow(event: Event) -> None:
        entered.set()
        leave.wait(LONG)

    pubsub.subscribe(TOPIC, slow)
    pubsub.publish(TOPIC, type="chunk", data=0)
    assert entered.wait(LONG)
    with pytest.warns(ResourceWarning, match="has not ended in time"):
        pubsub.close(timeout=0.1)
    assert workers()
    leave.set()
    pubsub.close()
    eventually(lambda: not ours())


# C44: collectable.


@pytest.mark.parametrize(
    ("closed", "dropped"),
    [(20, 10), pytest.param(300, 50, marks=[pytest.mark.slow, pytest.mark.stress])],
    ids=["short", "long"],
)
@pytest.mark.limit(300)
@pytest.mark.usefixtures("lite_server")
def test_clients_are_collectable(settings: dict[str, Any], closed: int, dropped: int) -> None:
    """C44: closed clients, and used ones that were dropped unclosed, leave nothing; a fork afterwards is as quick."""
    quick = time_of_fork()
    parts: list[weakref.ref[Any]] = []

    def use() -> S2PubSub:
        pubsub = S2PubSub(**settings)
        pubsub.publish(TOPIC, type="chunk", data=0)
        parts.append(weakref.ref(pubsub))
        return pubsub

    for _ in range(closed):
        pubsub = use()
        with pubsub.subscribe_with_replay(TOPIC) as events:
            parts.append(weakref.ref(events))
            next(events)
        del events
        pubsub.subscribe(TOPIC, lambda event: None)
        pubsub.close()
    with dropping("<S2PubSub"):
        del pubsub
        for _ in range(dropped):
            use()
    eventually(lambda: not ours())
    gc.collect()
    assert [ref() for ref in parts if ref() is not None] == []
    assert time_of_fork() < quick + 0.1


def time_of_fork() -> float:
    """Seconds that a fork takes whose child ends at once, with status 0."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os._exit(0)
    seconds = time.monotonic() - began
    assert os.waitpid(child, 0)[1] == 0
    return seconds
