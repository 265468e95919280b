"""Streams over real runs and topics, read in this process."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest

from s2pubsub import Event, sse
from s2pubsub.errors import ClosedError
from s2pubsub.runs import Runs
from s2pubsub.sse.shutdown import ShutdownWatch
from tests.raw import Streams
from tests.waiting import LONG
from tests.web.event_source import Parser, parse

MOMENT = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def runs(pubsub: Any) -> Runs:
    return Runs(pubsub, cleanup_timeout=0)


def test_a_run_is_replayed_and_ends(runs: Runs, make_run: Any):
    """A stream holds every event with its index as id, then the end, and lets go of its subscription."""
    make_run(chunks=3, finish=True)
    messages = parse(b"".join(sse.stream(runs.observe("run-7"))))
    assert [(m.type, m.last_event_id) for m in messages] == [
        ("chunk", "0"),
        ("chunk", "1"),
        ("chunk", "2"),
        ("finish", "3"),
        ("end", "3"),
    ]
    assert messages[-1].json == {"end": "finish"}
    assert runs.pubsub.stats().subscriptions == 0


def test_a_silent_run_gets_heartbeats(runs: Runs, make_run: Any):
    """Comments come at least every heartbeat, also while only events arrive that a format drops."""
    run = make_run(chunks=1)
    with sse.stream(runs.observe("run-7"), heartbeat=0.1) as stream:
        pieces = [next(stream) for _ in range(4)]
        assert pieces[-1] == b": keep-alive\n\n"
    stop = threading.Event()

    def publish() -> None:
        while not stop.wait(0.02):
            run.chunk("raw", x=1)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        with sse.stream(runs.observe("run-7"), format="ui-message-stream", heartbeat=0.2) as stream:
            began = time.monotonic()
            assert any(b"keep-alive" in next(stream) for _ in range(3))
            assert time.monotonic() - began < 5
    finally:
        stop.set()
        thread.join()


def test_a_lifetime_ends_a_stream_without_an_end(runs: Runs, make_run: Any):
    """C52: the body just stops, so that a browser comes back, at the position that it has seen."""
    make_run(chunks=2)
    began = time.monotonic()
    messages = parse(b"".join(sse.stream(runs.observe("run-7"), lifetime=1.5)))
    assert 1.4 < time.monotonic() - began < 6
    assert [m.last_event_id for m in messages] == ["0", "1"]
    with runs.observe("run-7") as observation, pytest.raises(ValueError, match="do not come back"):
        sse.stream(observation, format="mastra", lifetime=1.0)


def test_a_silent_run_fails_as_idle(runs: Runs, make_run: Any):
    """C16: heartbeats, which are shorter than the idle limit, do not keep it from being reached."""
    make_run(chunks=1)
    messages = parse(b"".join(sse.stream(runs.observe("run-7", idle_timeout=0.5), heartbeat=0.1)))
    assert messages[-1].type == "failure"
    assert messages[-1].json["code"] == "idle"
    assert "run-7" not in messages[-1].data


@pytest.mark.parametrize("format", ["events", "mastra", "ui-message-stream"])
def test_a_deleted_run_fails_as_gone(runs: Runs, make_run: Any, server: Any, basin: str, format: Any):
    """A run that somebody else deletes ends its streams with a failure in the format's own words."""
    run = make_run(chunks=1)
    with sse.stream(runs.observe("run-7"), format=format, heartbeat=5.0) as stream:
        next(stream)
        assert b"text-delta" in next(stream)
        Streams(server, basin).delete(run.topic)
        rest = b"".join(stream)
    messages = parse(rest)
    if format == "events":
        assert messages[-1].json == {"code": "gone", "message": "The run was deleted."}
    else:
        assert messages[-2].json["type"] == "error"
        assert messages[-1].data == "[DONE]"


def test_closing_before_the_first_byte_lets_go(runs: Runs, make_run: Any):
    """A server that never begins to send closes the body all the same: HEAD, a client that has gone already."""
    make_run(chunks=1)
    limiter = sse.Limiter(1)
    assert limiter.take()
    stream = sse.stream(runs.observe("run-7"), limiter=limiter)
    stream.close()
    stream.close()
    assert runs.pubsub.stats().subscriptions == 0
    assert limiter.active == 0
    assert list(stream) == []


def test_a_dropped_stream_lets_go(runs: Runs, make_run: Any, eventually: Any):
    """A body that nobody closes gives everything back when it is collected."""
    make_run(chunks=1)
    limiter = sse.Limiter(1)
    assert limiter.take()
    stream = sse.stream(runs.observe("run-7"), limiter=limiter)
    next(stream)
    gone = weakref.ref(stream)
    del stream
    gc.collect()
    assert gone() is None
    assert limiter.active == 0
    eventually(lambda: runs.pubsub.stats().subscriptions == 0)


def test_a_worker_that_is_aborted_lets_go(runs: Runs, make_run: Any):
    """A server that gives a worker up raises SystemExit in the middle of it: the stream closes and passes it on."""
    make_run(chunks=1)

    def abort(event: Any) -> None:
        raise SystemExit(1)

    limiter = sse.Limiter(1)
    assert limiter.take()
    stream = sse.stream(runs.observe("run-7"), transform=abort, limiter=limiter)
    next(stream)
    with pytest.raises(SystemExit):
        next(stream)
    assert limiter.active == 0
    assert runs.pubsub.stats().subscriptions == 0
    assert list(stream) == []


class Countdown:
    """A source of a user's own: three events, then silence until it is closed."""

    def __init__(self) -> None:
        self.left = 3
        self.closed = threading.Event()

    def get(self, timeout: float | None = None) -> Event:
        if self.left == 0 and not self.closed.wait(timeout):
            raise TimeoutError
        if self.closed.is_set():
            raise ClosedError("closed")
        self.left -= 1
        return Event(topic="t", type="n", data=self.left, run_id="", id="e", created_at=MOMENT, index=None)

    def close(self, timeout: float | None = 5.0) -> None:
        self.closed.set()


def test_a_source_of_ones_own():
    """Whatever has ``get`` and ``close`` can be streamed; without positions and without an end of its own."""
    source = Countdown()
    stream = sse.stream(source, heartbeat=60.0)
    messages = parse(next(stream) + next(stream))
    assert [(m.type, m.data, m.last_event_id) for m in messages] == [("n", "2", ""), ("n", "1", ""), ("n", "0", "")]
    threading.Timer(0.05, stream.stop).start()
    assert list(stream) == []
    assert source.closed.is_set()


@pytest.mark.parametrize("how", ["close", "stop", "client"])
def test_a_waiting_stream_ends_when_told_from_elsewhere(runs: Runs, make_run: Any, how: str):
    """Closing the stream, stopping it, or closing the client ends a blocked ``next`` at once and without an end."""
    make_run(chunks=1)
    stream = sse.stream(runs.observe("run-7"), heartbeat=60.0)
    pieces: list[bytes] = []
    begun = threading.Event()

    def read() -> None:
        for piece in stream:
            pieces.append(piece)
            if b"id: 0" in piece:
                begun.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert begun.wait(LONG)
    {"close": stream.close, "stop": stream.stop, "client": runs.pubsub.close}[how]()
    thread.join(LONG)
    assert not thread.is_alive()
    assert [m.type for m in parse(b"".join(pieces))] == ["chunk"]


def test_transform_changes_and_drops(runs: Runs, make_run: Any):
    """The hook sees each event; None leaves it out, and the ids of the others stay."""
    make_run(chunks=3, finish=True)

    def redact(event: Any) -> Any:
        return None if event.index == 1 else attrs.evolve(event, data={"n": event.index})

    messages = parse(b"".join(sse.stream(runs.observe("run-7"), transform=redact)))
    assert [(m.last_event_id, m.json) for m in messages[:-1]] == [("0", {"n": 0}), ("2", {"n": 2}), ("3", {"n": 3})]


def test_a_failing_transform_sends_nothing_of_the_event(runs: Runs, make_run: Any, caplog: Any):
    """A hook that raises ends the stream with a failure; the event is not sent, the error goes to the log alone."""
    make_run(chunks=2)

    def fail(event: Any) -> Any:
        raise KeyError("inner detail")

    body = b"".join(sse.stream(runs.observe("run-7"), transform=fail))
    (message,) = parse(body)
    assert (message.type, message.json["code"]) == ("failure", "internal")
    assert b"inner detail" not in body
    assert "a stream has failed" in caplog.text


def test_errors_are_masked_unless_asked_for(runs: Runs, make_run: Any):
    """Error texts of a run go to browsers only where the application says so."""
    run = make_run()
    run.chunk("error", error={"name": "E", "message": "db-7 is down"})
    run.finish("error")
    assert b"db-7" not in b"".join(sse.stream(runs.observe("run-7")))
    assert b"db-7" in b"".join(sse.stream(runs.observe("run-7"), show_errors=True))


def test_a_long_replay_goes_out_in_few_writes(runs: Runs, pubsub: Any, make_run: Any):
    """What is there already is sent together, up to some tens of kilobytes a piece."""
    run = make_run()
    events = [{"type": "chunk", "data": {"type": "raw", "payload": {"n": n}}, "run_id": "run-7"} for n in range(1000)]
    pubsub.publish_many(run.topic, events)
    run.finish()
    pieces = list(sse.stream(runs.observe("run-7")))
    assert len(parse(b"".join(pieces))) == 1002
    assert len(pieces) < 100
    assert max(map(len, pieces)) < 200_000


def test_a_live_topic_can_be_resumed_before_its_first_event(pubsub: Any):
    """A stream that begins at the tail tells its position at once, so that what comes while it is away is not lost."""
    topic = "agent.stream.live"
    first = sse.stream(pubsub.subscribe(topic))
    parser = Parser()
    parser.feed(next(first))
    first.close()
    pubsub.publish(topic, type="a", data=1)
    offset = sse.parse_last_event_id(parser.last_event_id)
    assert offset == 0
    with sse.stream(pubsub.subscribe_from_offset(topic, offset)) as second:
        next(second)
        assert [m.json for m in parse(next(second))] == [1]


def test_a_local_topic_can_be_streamed(pubsub: Any):
    """Topics of this process only have no indices, so their messages have no ids."""
    stream = sse.stream(pubsub.subscribe("local.topic"), heartbeat=5.0)
    next(stream)
    pubsub.publish("local.topic", type="a", data={"n": 1})
    (message,) = parse(next(stream))
    assert (message.type, message.json, message.last_event_id) == ("a", {"n": 1}, "")
    stream.close()
    assert list(stream) == []


def test_silence_counts_over_several_short_waits(runs: Runs, make_run: Any):
    """An observer that asks again and again with a short timeout still finds the run idle in the end."""
    make_run(chunks=1)
    observation = runs.observe("run-7", idle_timeout=0.3)
    observation.get(LONG)
    with pytest.raises(Exception, match="silent"):
        for _ in range(100):
            try:
                observation.get(0.05)
            except TimeoutError:
                continue
    with pytest.raises(ClosedError):
        observation.get(0)


class _Told:
    def __init__(self) -> None:
        self.stopped = threading.Event()

    def stop(self) -> None:
        self.stopped.set()


def test_streams_are_stopped_when_the_server_stops():
    """The watch asks the server while streams are open, tells each stream once it stops, and its thread ends."""
    stopping = threading.Event()
    watch = ShutdownWatch(lambda: stopping.is_set)
    first, second = _Told(), _Told()
    watch.add(first)
    watch.add(second)
    assert not first.stopped.wait(0.4)
    watch.discard(second)
    stopping.set()
    assert first.stopped.wait(LONG)
    assert not second.stopped.is_set()
    watch.discard(first)


def test_without_a_known_server_nothing_watches():
    """No thread is started where the server does not say whether it stops."""
    watch = ShutdownWatch(lambda: None)
    stream = _Told()
    watch.add(stream)
    assert "s2pubsub-shutdown" not in {thread.name for thread in threading.enumerate()}
    watch.discard(stream)


def test_wrong_arguments_are_refused(runs: Runs, make_run: Any):
    """Each argument is checked before anything is taken."""
    make_run(chunks=1)
    with runs.observe("run-7") as observation:
        wrong: list[tuple[dict[str, Any], type[Exception]]] = [
            ({"heartbeat": 0}, ValueError),
            ({"heartbeat": None}, ValueError),
            ({"heartbeat": "1"}, TypeError),
            ({"lifetime": -1}, ValueError),
            ({"retry": True}, TypeError),
            ({"format": "sse"}, ValueError),
        ]
        for arguments, error in wrong:
            with pytest.raises(error):
                sse.stream(observation, **arguments)
        assert not observation.closed
    for limit in ("3", True, 1.5):
        with pytest.raises(TypeError):
            sse.Limiter(limit)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="negative"):
        sse.Limiter(-1)


def test_a_limiter_counts(make_run: Callable[..., Any]):
    """At most so many places are taken at once, from any number of threads."""
    limiter = sse.Limiter(3)
    taken = []
    threads = [threading.Thread(target=lambda: taken.append(limiter.take())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert sorted(taken) == [False] * 5 + [True] * 3
    limiter.give_back()
    assert limiter.take()
