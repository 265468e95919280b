"""A process in which no thread can be started for a while: calls fail with the reason, and work again afterwards."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from s2pubsub import ClosedError, LocalPubSub, S2PubSub, StoreError
from s2pubsub.agent import DurableAgent
from s2pubsub.runs import Runs
from s2pubsub.runtime.deadline import NEVER
from s2pubsub.runtime.timer import Timer
from s2pubsub.server import LocalServer
from s2pubsub.sse import stream
from s2pubsub.sse.bridge import AsyncEventStream
from s2pubsub.sse.shutdown import ShutdownWatch
from tests.faults import FaultProxy
from tests.servers import ON_EMBEDDED
from tests.waiting import LONG, eventually

TOPIC = "agent.stream.x"
REASON = "can't start new thread"


@contextmanager
def shortage() -> Iterator[None]:
    """No thread can be started meanwhile: there is no room for such a large stack."""
    before = threading.stack_size(2**40)
    try:
        yield
    finally:
        threading.stack_size(before)


@pytest.fixture
def warm(pubsub: S2PubSub) -> S2PubSub:
    """A client whose own threads run."""
    with pubsub.publisher(TOPIC) as publisher:
        publisher.publish(type="a", data=1).result(LONG)
    pubsub.get_history(TOPIC)
    return pubsub


def test_delayed_actions(caplog: pytest.LogCaptureFixture) -> None:
    """Who has something to do later does not fail; it is done with the next one."""
    timer = Timer(logging.getLogger("s2pubsub"))
    done: list[int] = []
    with shortage():
        timer.after(0, lambda: done.append(1))
    assert len(timer) == 1
    assert REASON in caplog.text
    timer.after(0.01, lambda: done.append(2))
    eventually(lambda: done == [1, 2])
    timer.close(NEVER)


def test_local_subscriptions() -> None:
    """A callback that gets no thread is not subscribed."""
    got: list[int] = []
    with LocalPubSub() as local:
        with shortage(), pytest.raises(ClosedError, match=REASON):
            local.subscribe("x", lambda event: got.append(event.data))
        local.publish("x", type="a", data=1)
        local.subscribe("x", lambda event: got.append(event.data))
        local.publish("x", type="a", data=2)
        local.flush(LONG)
    assert got == [2]


def test_streams() -> None:
    """A stream for an asyncio server ends with the error and lets go of its source."""

    async def read(body: AsyncEventStream) -> None:
        with shortage(), pytest.raises(ClosedError, match=REASON):
            await anext(body)

    with LocalPubSub() as local:
        source = local.subscribe("x")
        asyncio.run(read(AsyncEventStream(stream(source))))
        assert source.closed


def test_the_watch_over_streams() -> None:
    """It is an extra: a stream is served without it, and the next stream has it for both."""

    class Open:
        def __init__(self) -> None:
            self.stopped = threading.Event()

        def stop(self) -> None:
            self.stopped.set()

    stopping = threading.Event()
    watch = ShutdownWatch(lambda: stopping.is_set)
    first, second = Open(), Open()
    with shortage():
        watch.add(first)
    watch.add(second)
    stopping.set()
    assert first.stopped.wait(LONG)
    assert second.stopped.wait(LONG)
    watch.discard(first)
    watch.discard(second)


def test_the_embedded_server() -> None:
    """It does not start, and can be started later."""
    server = LocalServer()
    with shortage(), pytest.raises(RuntimeError, match=REASON):
        server.start()
    assert server.closed
    with server, S2PubSub(basin="agent-runs", access_token="any", endpoints=server.url) as pubsub:
        pubsub.ensure_basin()


@ON_EMBEDDED
def test_durable_subscriptions(warm: S2PubSub) -> None:
    """A subscription that gets no thread is none; neither is a lease held."""
    with shortage():
        with pytest.raises(ClosedError, match=REASON):
            warm.subscribe(TOPIC)
        with pytest.raises(ClosedError, match=REASON):
            warm.leases.hold("k", "owner", 5)
    assert warm.stats().subscriptions == 0
    assert warm.stats().leases == 0
    with warm.subscribe_from_offset(TOPIC, 0) as events:
        assert events.get(LONG).data == 1


@ON_EMBEDDED
def test_a_reader_that_has_to_connect_again(make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy) -> None:
    """Looking a host up takes a thread: it is waited for as for a server, and nothing is missed."""
    through = make_pubsub(endpoints=proxy.url.replace("127.0.0.1", "localhost"), access_token="test")
    through.publish(TOPIC, type="a", data=0)
    with through.subscribe_from_offset(TOPIC, 0) as events:
        assert events.get(LONG).data == 0
        with shortage():
            proxy.cut()
            eventually(lambda: through.stats().reconnects >= 2)
            with pytest.raises(StoreError, match=REASON) as caught:
                through.publish(TOPIC, type="a", data=-1, timeout=0.3)
            assert caught.value.outcome == "not_stored"
        for number in (1, 2):
            through.publish(TOPIC, type="a", data=number)
            assert events.get(LONG).data == number


@ON_EMBEDDED
def test_runs(warm: S2PubSub) -> None:
    """A run whose work gets no thread has failed: its observers do not wait for it."""
    runs = Runs(warm)
    with shortage():
        with pytest.raises(ClosedError, match=REASON):
            runs.run(["a"], run_id="one", background=True)
    assert runs.status("one") == "failed"
    with DurableAgent(lambda: ["a"], runs) as agent:
        with shortage():
            with pytest.raises(ClosedError, match=REASON):
                agent.stream(run_id="two")
        assert runs.status("two") == "failed"
        assert agent.stream(run_id="three").result().text == "a"


@ON_EMBEDDED
def test_runs_that_wait_for_another(warm: S2PubSub) -> None:
    """An agent that has a thread gives it the run as well."""
    go = threading.Event()

    def work(word: str) -> Iterator[str]:
        assert go.wait(LONG)
        yield word

    with DurableAgent(work, Runs(warm)) as agent:
        first = agent.stream("a")
        assert first.get(LONG).data["type"] == "start"
        with shortage(), pytest.raises(ClosedError, match=REASON):
            agent.stream("b", run_id="b")  # its observation has no thread
        go.set()
        assert first.result().text == "a"
        with agent.observe("b") as second:
            assert second.result().text == "b"
