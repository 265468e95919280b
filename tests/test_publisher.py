"""Publishers: order, bounds, futures, outages, endings. The faults are real ones, made by the proxy."""

from __future__ import annotations

import gc
import logging
import os
import random
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from s2pubsub import ClosedError, EncodeError, Event, OperationTimeoutError, S2PubSub, StoreError
from tests.faults import FaultProxy
from tests.faults.rules import APPEND_SESSION, After
from tests.servers import Server
from tests.waiting import LONG, eventually

TOPIC = "agent.stream.publisher"


def numbers(events: list[Event]) -> list[Any]:
    return [event.data for event in events]


def publish_all(publisher: Any, values: range, **more: Any) -> list[Future[Event]]:
    return [publisher.publish(type="n", data=value, **more) for value in values]


# Order and results.


def test_events_are_stored_in_the_order_of_the_calls(pubsub: S2PubSub) -> None:
    """Futures give the stored events with their indices; the topic holds them in the order of the calls."""
    with pubsub.publisher(TOPIC) as publisher:
        futures = publish_all(publisher, range(3000), run_id="r")
        events = [future.result(LONG) for future in futures]
    assert [event.index for event in events] == list(range(3000))
    assert events == pubsub.get_history(TOPIC)
    assert pubsub.stats().published == 3000


@pytest.mark.limit(60)
def test_threads_keep_their_order_and_large_events_find_their_batch(pubsub: S2PubSub) -> None:
    """C13: four threads share a publisher, every tenth event is 600 KB; each thread's numbers rise by one."""
    text = "x" * 600_000
    with pubsub.publisher(TOPIC) as publisher:

        def work(mine: int) -> None:
            for number in range(60):
                padding = text if number % 10 == 9 else ""
                publisher.publish(type="n", data=[mine, number, padding])

        threads = [threading.Thread(target=work, args=(mine,)) for mine in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        publisher.flush()
    events = pubsub.get_history(TOPIC)
    assert [event.index for event in events] == list(range(240))
    for mine in range(4):
        assert [event.data[1] for event in events if event.data[0] == mine] == list(range(60))


@pytest.mark.limit(60)
def test_order_survives_random_cuts(make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy) -> None:
    """C48 and more: through cuts, GOAWAYs and lost answers nothing is lost, and first copies are in order."""
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    pubsub = make_pubsub(endpoints=proxy.url)
    with pubsub.publisher(TOPIC, max_in_flight=50) as publisher:
        futures = []
        for number in range(600):
            futures.append(publisher.publish(type="n", data=number))
            if number % 60 == 30:
                match chance.randrange(4):
                    case 0:
                        proxy.cut()
                    case 1:
                        proxy.goaway()
                    case 2:
                        proxy.goaway(grace=1.0)
                    case 3:
                        proxy.lose_response(APPEND_SESSION)
                        proxy.cut()
        publisher.flush(40)
        indices = [future.result(0).index for future in futures]
    stored = numbers(pubsub.get_history(TOPIC))
    assert list(dict.fromkeys(stored)) == list(range(600))
    assert [stored[index] for index in indices if index is not None] == list(range(600))


def test_an_outage_is_waited_out(make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy) -> None:
    """With the server refusing connections events queue; when it is back they are stored, once each here."""
    pubsub = make_pubsub(endpoints=proxy.url)
    with pubsub.publisher(TOPIC) as publisher:
        publisher.publish(type="n", data=0).result(LONG)
        proxy.refuse()
        proxy.cut()
        futures = publish_all(publisher, range(1, 20))
        eventually(lambda: pubsub.stats().reconnects >= 1)
        assert not futures[0].done()
        assert pubsub.stats().in_flight == 19
        proxy.accept()
        assert [future.result(LONG).index for future in futures] == list(range(1, 20))
    assert numbers(pubsub.get_history(TOPIC)) == list(range(20))


@pytest.mark.slow
@pytest.mark.limit(40)
def test_a_silent_connection_is_replaced(make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy) -> None:
    """C07, second variant, for publishers: a frozen connection is given up, and the rest goes over a new one."""
    pubsub = make_pubsub(endpoints=proxy.url)
    with pubsub.publisher(TOPIC) as publisher:
        publisher.publish(type="n", data=0).result(LONG)
        proxy.stall()
        future = publisher.publish(type="n", data=1)
        assert future.result(15).data == 1
        assert pubsub.stats().replaced_clients == 1


def test_a_session_that_ended_while_idle_is_reopened_at_once(
    make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy
) -> None:
    """A connection closed while nothing was in flight costs the next event no backoff and is no failure."""
    pubsub = make_pubsub(endpoints=proxy.url)
    with pubsub.publisher(TOPIC) as publisher:
        publisher.publish(type="n", data=0).result(LONG)
        proxy.cut(how="fin")
        eventually(lambda: all(seen.finished for seen in proxy.seen(APPEND_SESSION)))
        publisher.publish(type="n", data=1).result(LONG)
    assert numbers(pubsub.get_history(TOPIC)) == [0, 1]


# Refusals.


def test_a_refusal_fails_everything_from_there_on(make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy) -> None:
    """A 403 is final: pending events fail in order with 'not_stored', later calls raise the same error."""
    pubsub = make_pubsub(endpoints=proxy.url)
    proxy.answer(APPEND_SESSION, status=403, code="permission_denied", times=None)
    publisher = pubsub.publisher(TOPIC)
    done: list[int] = []
    futures = publish_all(publisher, range(5))
    for number, future in enumerate(futures):
        future.add_done_callback(lambda _, number=number: done.append(number))
    for future in futures:
        error = future.exception(LONG)
        assert isinstance(error, StoreError)
        assert (error.status, error.outcome) == (403, "not_stored")
    assert done == sorted(done)
    assert publisher.closed
    with pytest.raises(StoreError, match="permission_denied") as caught:
        publisher.publish(type="n", data=5)
    assert caught.value.outcome == "not_stored"
    publisher.close()  # a call has raised it
    proxy.clear()
    assert pubsub.get_history(TOPIC) == []


def test_the_failure_is_raised_at_the_latest_on_exit(make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy) -> None:
    """Leaving the with block raises the refusal with the number of events; the second close is silent."""
    pubsub = make_pubsub(endpoints=proxy.url)
    proxy.answer(APPEND_SESSION, status=401, code="authn", times=None)
    with pytest.raises(StoreError, match="3 events"), pubsub.publisher(TOPIC) as publisher:
        publish_all(publisher, range(3))
    publisher.close()


def test_an_exception_in_the_block_is_not_masked(make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy) -> None:
    """The block's own exception comes out, with a note about the events that were not stored."""
    pubsub = make_pubsub(endpoints=proxy.url)
    proxy.answer(APPEND_SESSION, status=401, code="authn", times=None)
    with pytest.raises(ZeroDivisionError) as caught, pubsub.publisher(TOPIC) as publisher:
        publish_all(publisher, range(3))
        raise ZeroDivisionError
    assert "3 events" in caught.value.__notes__[0]


def test_a_missing_stream_names_the_remedy(
    make_basin: Callable[..., str], make_pubsub: Callable[..., S2PubSub]
) -> None:
    """On a basin that creates no streams the events fail with 'stream_not_found', soon, and are not stored."""
    pubsub = make_pubsub(basin=make_basin())
    publisher = pubsub.publisher(TOPIC)
    error = publisher.publish(type="n", data=0).exception(LONG)
    assert isinstance(error, StoreError)
    assert (error.code, error.outcome) == ("stream_not_found", "not_stored")
    with pytest.raises(StoreError):
        publisher.close()


def test_arguments_are_checked(pubsub: S2PubSub) -> None:
    """Local topics, bounds below 1 and data that is not JSON are refused before anything is sent."""
    with pytest.raises(ValueError, match=r"publish\(\)"):
        pubsub.publisher("workflow.events")
    with pytest.raises(ValueError, match="max_in_flight"):
        pubsub.publisher(TOPIC, max_in_flight=0)
    with pytest.raises(TypeError, match="max_bytes"):
        pubsub.publisher(TOPIC, max_bytes=1.5)
    with pubsub.publisher(TOPIC) as publisher:
        with pytest.raises(EncodeError):
            publisher.publish(type="n", data={1, 2})
        with pytest.raises(ValueError, match="timeout"):
            publisher.publish(type="n", data=1, timeout=-1.0)
        assert publisher.in_flight == 0


# Bounds.


def test_publish_blocks_when_full(make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy) -> None:
    """With max_in_flight taken, publish waits up to its timeout and says 'not_stored'; with room it goes on."""
    pubsub = make_pubsub(endpoints=proxy.url)
    with pubsub.publisher(TOPIC, max_in_flight=5) as publisher:
        publisher.publish(type="n", data=0).result(LONG)
        proxy.stall(scope="all")
        publish_all(publisher, range(1, 6))
        with pytest.raises(OperationTimeoutError) as caught:
            publisher.publish(type="n", data=-1, timeout=0.05)
        assert caught.value.outcome == "not_stored"
        with pytest.raises(OperationTimeoutError):
            publisher.publish(type="n", data=-1, timeout=0)
        waiting = threading.Thread(target=publish_all, args=(publisher, range(6, 9)))
        waiting.start()
        assert publisher.in_flight == 5
        proxy.resume()
        waiting.join(LONG)
        assert not waiting.is_alive()
    assert numbers(pubsub.get_history(TOPIC)) == list(range(9))


def test_bytes_are_bounded_and_one_larger_event_goes_alone(
    make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy
) -> None:
    """With max_bytes taken, publish waits; an event above max_bytes is accepted when nothing else is in flight."""
    pubsub = make_pubsub(endpoints=proxy.url)
    with pubsub.publisher(TOPIC, max_bytes=10_000) as publisher:
        assert publisher.publish(type="n", data="x" * 20_000).result(LONG).index == 0
        proxy.stall(scope="all")
        publisher.publish(type="n", data="x" * 9_000)
        with pytest.raises(OperationTimeoutError):
            publisher.publish(type="n", data="x" * 2_000, timeout=0.05)
        publisher.publish(type="n", data="x", timeout=0)
        proxy.resume()


# Futures and their callbacks.


def test_callbacks_run_on_one_thread_and_a_raising_one_hurts_nobody(pubsub: S2PubSub) -> None:
    """Done-callbacks run on s2pubsub-done, in order; what one raises, even SystemExit, stops no other."""
    names: list[str] = []
    order: list[Any] = []

    def callback(future: Future[Event]) -> None:
        names.append(threading.current_thread().name)
        order.append(future.result(0).data)
        if future.result(0).data % 3 == 0:
            raise SystemExit if future.result(0).data % 2 else ValueError("a callback's own")

    with pubsub.publisher(TOPIC) as publisher:
        held = threading.Event()
        publisher.publish(type="n", data=1).add_done_callback(lambda _: held.wait(LONG))
        for number in range(2, 50):
            publisher.publish(type="n", data=number).add_done_callback(callback)
        held.set()
        publisher.flush()
        assert order == list(range(2, 50))
        assert set(names) == {"s2pubsub-done"}
        assert not publisher.publish(type="n", data=0).cancel()


def test_a_callback_may_publish_although_the_publisher_is_full(pubsub: S2PubSub) -> None:
    """A publish in a done-callback never waits: it would wait for itself. flush there is refused, close returns."""
    later: list[Future[Event]] = []
    refused: list[BaseException] = []
    with pubsub.publisher(TOPIC, max_in_flight=1) as publisher:

        def callback(_: Future[Event]) -> None:
            later.extend(publish_all(publisher, range(1, 4)))
            try:
                publisher.flush()
            except RuntimeError as error:
                refused.append(error)
            publisher.close()

        publisher.publish(type="n", data=0).add_done_callback(callback)
        eventually(lambda: refused)
        assert [future.result(LONG).index for future in later] == [1, 2, 3]


# Flushing, closing.


def test_flush_waits_for_what_was_published_before(make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy) -> None:
    """After flush all futures are done; with the server stalled it raises the timeout error and loses nothing."""
    pubsub = make_pubsub(endpoints=proxy.url)
    with pubsub.publisher(TOPIC) as publisher:
        futures = publish_all(publisher, range(500))
        publisher.flush(LONG)
        assert all(future.done() for future in futures)
        proxy.stall(scope="all")
        future = publisher.publish(type="n", data=500)
        with pytest.raises(OperationTimeoutError):
            publisher.flush(0.05)
        with pytest.raises(OperationTimeoutError):
            pubsub.flush(0.05)
        proxy.resume()
        pubsub.flush(LONG)
        assert future.done()


def test_close_stores_what_is_pending(pubsub: S2PubSub, make_pubsub: Callable[..., S2PubSub]) -> None:
    """C12: 100 events, then close, of the publisher or of the client: all are stored."""
    publisher = pubsub.publisher(TOPIC)
    futures = publish_all(publisher, range(100))
    publisher.close()
    assert all(future.done() for future in futures)
    other = make_pubsub()
    second = other.publisher(TOPIC)
    publish_all(second, range(100, 200))
    other.close()
    assert second.closed
    assert numbers(pubsub.get_history(TOPIC)) == list(range(200))


@pytest.mark.parametrize("which", ["publisher", "client"])
def test_close_with_the_server_down_counts_what_is_lost(
    make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy, which: str
) -> None:
    """C12: with the server down, close raises within its timeout how many events were not stored."""
    pubsub = make_pubsub(endpoints=proxy.url)
    publisher = pubsub.publisher(TOPIC)
    publisher.publish(type="n", data=-1).result(LONG)
    proxy.refuse()
    proxy.cut()
    futures = publish_all(publisher, range(100))
    eventually(lambda: pubsub.stats().reconnects >= 1)
    began = time.monotonic()
    with pytest.raises(OperationTimeoutError, match="100 events") as caught:
        (publisher if which == "publisher" else pubsub).close(1.0)
    assert time.monotonic() - began < 2.5
    assert caught.value.outcome is not None
    for future in futures:
        error = future.exception(LONG)
        assert isinstance(error, ClosedError)
        assert error.outcome in ("not_stored", "unknown")
    publisher.close()  # the second one is silent
    with pytest.raises(ClosedError):
        publisher.publish(type="n", data=0)
    assert pubsub.closed is (which == "client")


def test_a_blocked_publish_ends_with_close(make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy) -> None:
    """C39: a publish that waits for room raises the closed error when the publisher is closed meanwhile."""
    pubsub = make_pubsub(endpoints=proxy.url)
    publisher = pubsub.publisher(TOPIC, max_in_flight=1)
    publisher.publish(type="n", data=0).result(LONG)
    proxy.stall(scope="all")
    publisher.publish(type="n", data=1)
    raised: list[BaseException] = []

    def work() -> None:
        try:
            publisher.publish(type="n", data=2)
        except ClosedError as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    eventually(lambda: len(publisher._pipe.outbox._waiters) == 1)
    with pytest.raises(OperationTimeoutError, match="1 events"):
        publisher.close(0.1)
    thread.join(LONG)
    assert raised
    with pytest.raises(ClosedError):
        publisher.publish(type="n", data=3)


def test_a_dropped_publisher_warns_and_stores_what_is_pending(pubsub: S2PubSub) -> None:
    """Dropping a publisher with pending events is a ResourceWarning; the events are stored all the same."""
    publisher = pubsub.publisher(TOPIC)
    futures = publish_all(publisher, range(200))
    with pytest.warns(ResourceWarning, match="unclosed <Publisher"):  # noqa: PT031 - what drops it may be either
        del publisher
        gc.collect()
    assert [future.result(LONG).index for future in futures] == list(range(200))
    eventually(lambda: pubsub.stats().publishers == 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        idle = pubsub.publisher(TOPIC)
        idle.publish(type="n", data=200).result(LONG)
        idle.flush()
        del idle  # nothing pending: nothing to say
        gc.collect()


def test_repr_and_stats_tell_the_state(pubsub: S2PubSub) -> None:
    """The repr names topic, state and events in flight; stats count open publishers."""
    with pubsub.publisher(TOPIC) as publisher:
        assert repr(publisher) == f"<Publisher to {TOPIC!r}, open, 0 in flight>"
        assert publisher.topic == TOPIC
        assert pubsub.stats().publishers == 1
    assert "closed" in repr(publisher)
    eventually(lambda: pubsub.stats().publishers == 0)


# Processes.


def run_script(server: Server, basin: str, text: str, timeout: float = 15.0) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **server.endpoints_env(), "S2_BASIN": basin, "PYTHONPATH": os.getcwd()}
    return subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, timeout=timeout)


def test_a_script_that_falls_off_its_end_stores_everything(server: Server, basin: str, pubsub: S2PubSub) -> None:
    """C12: 100 events of a publisher and no close: the exit handler waits for them, and stderr stays empty."""
    script = f"""
from s2pubsub import S2PubSub
pubsub = S2PubSub()
publisher = pubsub.publisher({TOPIC!r})
for number in range(100):
    publisher.publish(type="n", data=number)
"""
    ended = run_script(server, basin, script)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert numbers(pubsub.get_history(TOPIC)) == list(range(100))


def test_an_exit_with_the_server_down_says_what_is_lost(server: Server, basin: str) -> None:
    """C46: with nothing to store to, a script without close ends by itself and says on stderr what is lost."""
    script = f"""
from s2pubsub import S2PubSub
pubsub = S2PubSub(endpoints="http://127.0.0.1:9", access_token="x")
publisher = pubsub.publisher({TOPIC!r})
for number in range(100):
    publisher.publish(type="n", data=number)
"""
    began = time.monotonic()
    ended = run_script(server, basin, script)
    assert ended.returncode == 0
    assert "100 events" in ended.stderr
    assert time.monotonic() - began < 6


def test_ctrl_c_interrupts_a_blocked_publish(server: Server, basin: str) -> None:
    """C47: SIGINT in a publish that waits for room raises KeyboardInterrupt at once; the process ends soon."""
    script = f"""
import os, signal, threading, time
from s2pubsub import S2PubSub
pubsub = S2PubSub(endpoints="http://127.0.0.1:9", access_token="x")
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
began = time.monotonic()
try:
    with pubsub.publisher({TOPIC!r}, max_in_flight=1) as publisher:
        publisher.publish(type="n", data=0)
        publisher.publish(type="n", data=1)
except KeyboardInterrupt as error:
    print("interrupted", time.monotonic() - began < 2.5, error.__notes__)
pubsub.close()
"""
    ended = run_script(server, basin, script)
    assert ended.returncode == 0, ended.stderr
    assert "interrupted True" in ended.stdout
    assert "1 events" in ended.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_told_and_the_parent_goes_on(server: Server, basin: str, pubsub: S2PubSub) -> None:
    """C40, C42: in the child the inherited publisher raises the closed error and a new one works; the parent's
    own goes on undisturbed.
    """
    script = f"""
import os, warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # of Python 3.12 and later
from s2pubsub import ClosedError, S2PubSub
with S2PubSub() as pubsub:
    with pubsub.publisher({TOPIC!r}) as publisher:
        publisher.publish(type="n", data=0).result(10)
        pid = os.fork()
        if pid == 0:
            try:
                publisher.publish(type="n", data=-1)
            except ClosedError:
                pass
            else:
                os._exit(2)
            publisher.close()
            with pubsub.publisher({TOPIC!r}) as own:
                own.publish(type="n", data=1).result(10)
            pubsub.close()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        assert status == 0, status
        publisher.publish(type="n", data=2).result(10)
"""
    ended = run_script(server, basin, script)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert numbers(pubsub.get_history(TOPIC)) == [0, 1, 2]


# Exactly once.


def test_exactly_once_goes_on_at_the_tail(pubsub: S2PubSub) -> None:
    """It starts at the tail at its opening and gives the indices that follow."""
    pubsub.publish(TOPIC, type="n", data=-1)
    with pubsub.publisher(TOPIC, exactly_once=True) as publisher:
        futures = publish_all(publisher, range(2000))
        assert [future.result(LONG).index for future in futures] == list(range(1, 2001))


def test_exactly_once_reads_a_lost_acknowledgement_back(
    make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy
) -> None:
    """An append that is stored while its acknowledgement is lost is found by reading back, and not sent again."""
    pubsub = make_pubsub(endpoints=proxy.url)
    with pubsub.publisher(TOPIC, exactly_once=True) as publisher:
        publisher.publish(type="n", data=0).result(LONG)
        rule = proxy.lose_response(APPEND_SESSION, after=After(frames=0))
        proxy.cut()
        futures = publish_all(publisher, range(1, 50))
        rule.wait()
        assert [future.result(LONG).index for future in futures] == list(range(1, 50))
    assert numbers(pubsub.get_history(TOPIC)) == list(range(50))


def test_a_second_writer_is_an_error_that_says_so(pubsub: S2PubSub) -> None:
    """A foreign event under an exactly-once publisher ends it with StoreError 'second_writer'; nothing was stored."""
    publisher = pubsub.publisher(TOPIC, exactly_once=True)
    publisher.publish(type="n", data=0).result(LONG)
    pubsub.publish(TOPIC, type="n", data="foreign")
    error = publisher.publish(type="n", data=1).exception(LONG)
    assert isinstance(error, StoreError)
    assert (error.code, error.outcome) == ("second_writer", "not_stored")
    with pytest.raises(StoreError, match="second writer"):
        publisher.close()
    assert numbers(pubsub.get_history(TOPIC)) == [0, "foreign"]


def test_a_first_index_claims_a_new_topic(pubsub: S2PubSub) -> None:
    """Two publishers that both want index 0: one gets it, the other one is told of a second writer."""
    with pubsub.publisher(TOPIC, exactly_once=True, first_index=0) as first:
        assert first.publish(type="start", data=None).result(LONG).index == 0
        second = pubsub.publisher(TOPIC, exactly_once=True, first_index=0)
        error = second.publish(type="start", data=None).exception(LONG)
        assert isinstance(error, StoreError)
        assert error.code == "second_writer"
        assert first.publish(type="n", data=1).result(LONG).index == 1
    with pytest.raises(StoreError):
        second.close()


def test_exactly_once_steps_over_command_records(pubsub: S2PubSub) -> None:
    """A fence set by somebody else moves the tail but is no second writer of events."""
    from s2pubsub.runtime.deadline import Deadline

    with pubsub.publisher(TOPIC, exactly_once=True) as publisher:
        publisher.publish(type="n", data=0).result(LONG)
        pubsub._engine.store.fence(pubsub._engine.settings.stream_prefix + TOPIC, "token", "", Deadline.after(LONG))
        assert publisher.publish(type="n", data=1).result(LONG).index == 2


def test_exactly_once_notices_that_the_topic_was_deleted(pubsub: S2PubSub) -> None:
    """When the stream was deleted under it, it fails instead of going on at index 0."""
    publisher = pubsub.publisher(TOPIC, exactly_once=True)
    publish_all(publisher, range(10))
    publisher.flush()
    pubsub.clear_topic(TOPIC, strict=True)
    future = publisher.publish(type="n", data=10)
    error = future.exception(LONG)
    assert isinstance(error, StoreError)
    assert error.outcome is not None
    with pytest.raises(StoreError):
        publisher.close()


def test_close_never_passes_over_what_could_not_be_given_up_in_time(
    make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy
) -> None:
    """A close whose time is up raises although the appender takes longer to give up than it waits for that."""
    entered, release = threading.Event(), threading.Event()

    class Slow(logging.Handler):
        """Holds up the I/O loop, where an outage is announced."""

        def emit(self, record: logging.LogRecord) -> None:
            entered.set()
            release.wait(LONG)

    logger = logging.Logger("slow")
    logger.addHandler(Slow())
    pubsub = make_pubsub(endpoints=proxy.url, access_token="test", logger=logger)
    publisher = pubsub.publisher(TOPIC)
    publisher.publish(type="n", data=0).result(LONG)
    with proxy.refusing():
        proxy.cut()
        future = publisher.publish(type="n", data=1)
        assert entered.wait(LONG)
        try:
            with pytest.raises(OperationTimeoutError, match="1 events are still on their way") as caught:
                publisher.close(timeout=0.1)
        finally:
            release.set()
        assert caught.value.outcome == "unknown"
        with pytest.raises(ClosedError):
            future.result(LONG)
    publisher.close()  # it was said once
