"""Spans by the real OpenTelemetry SDK: what is traced, how readers refer to writers, and what it costs otherwise."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from s2pubsub import EncodeError, Event, LeaseLostError, S2PubSub, StoreError
from s2pubsub.contrib import otel
from s2pubsub.runs import Runs
from tests.faults import APPEND, FaultProxy
from tests.leasing import Register
from tests.raw import Streams
from tests.servers import ON_LITE, Server
from tests.topics import fill
from tests.waiting import LONG, eventually

TOPIC = "agent.thread-stream.traced"


@pytest.fixture
def provider() -> Iterator[TracerProvider]:
    provider = TracerProvider()
    yield provider
    provider.shutdown()


@pytest.fixture
def spans(provider: TracerProvider) -> Iterator[Callable[..., list[ReadableSpan]]]:
    """The spans of that name that have ended, at least so many."""
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    otel.instrument(provider)

    def ended(name: str, count: int = 1) -> list[ReadableSpan]:
        def found() -> list[ReadableSpan]:
            return [span for span in exporter.get_finished_spans() if span.name == name]

        eventually(lambda: len(found()) >= count)
        assert len(found()) == count
        return found()

    yield ended
    otel.uninstrument()


def value(span: ReadableSpan, name: str) -> Any:
    assert span.attributes is not None
    return span.attributes.get(name)


def test_a_callback_is_linked_to_its_publisher(pubsub: S2PubSub, spans: Any, provider: TracerProvider) -> None:
    """A publish is a producer's span below the caller's; a callback runs inside a consumer's span, which begins a trace
    of its own and links to the producer's, also across clients and later in a replay.
    """
    inside: list[trace.SpanContext] = []
    with pubsub.subscribe(TOPIC, lambda event: inside.append(trace.get_current_span().get_span_context())):
        with trace.get_tracer("app", tracer_provider=provider).start_as_current_span("request") as request:
            event = pubsub.publish(TOPIC, type="greeting", data={"secret": 1})
        (sent,), (processed,) = spans("send agent.thread-stream"), spans("process agent.thread-stream")
    assert sent.kind is SpanKind.PRODUCER
    assert sent.parent is not None
    assert sent.parent.span_id == request.get_span_context().span_id
    assert processed.kind is SpanKind.CONSUMER
    assert processed.parent is None
    assert [link.context.span_id for link in processed.links] == [sent.context.span_id]
    assert [link.context.trace_id for link in processed.links] == [sent.context.trace_id]
    assert inside[0].span_id == processed.context.span_id
    for span, operation in ((sent, "send"), (processed, "process")):
        assert value(span, "messaging.destination.name") == TOPIC
        assert value(span, "messaging.operation.name") == operation
        assert value(span, "messaging.message.id") == event.id
        assert value(span, "s2pubsub.index") == 0
        assert "secret" not in span.to_json()


def test_iterators_say_what_they_do_with_an_event(pubsub: S2PubSub, spans: Any) -> None:
    """``processing`` makes the consumer's span for an iterator's event; what its block raises is recorded."""
    fill(pubsub, TOPIC, 2)
    (sent,) = spans("send agent.thread-stream")
    assert value(sent, "messaging.batch.message_count") == 2
    with pubsub.subscribe_with_replay(TOPIC) as events:
        with otel.processing(events.get(LONG)):
            pass
        with pytest.raises(OSError, match="disk"), otel.processing(events.get(LONG)):
            raise OSError("disk")
    good, bad = spans("process agent.thread-stream", 2)
    assert [link.context.span_id for span in (good, bad) for link in span.links] == [sent.context.span_id] * 2
    assert good.status.status_code is StatusCode.UNSET
    assert bad.status.status_code is StatusCode.ERROR
    assert value(bad, "error.type") == "OSError"
    assert [value(span, "s2pubsub.index") for span in (good, bad)] == [0, 1]


def test_publishers_end_their_spans_with_the_acknowledgement(pubsub: S2PubSub, spans: Any) -> None:
    """Each event of a publisher has a span from its call until it is stored, with its index."""
    with pubsub.publisher(TOPIC) as publisher:
        futures = [publisher.publish(type="t", data=number) for number in range(5)]
        indices = [future.result(LONG).index for future in futures]
    found = spans("send agent.thread-stream", 5)
    assert sorted(value(span, "s2pubsub.index") for span in found) == indices
    carried = {event.extra["traceparent"].split("-")[2] for event in pubsub.get_history(TOPIC)}
    assert carried == {f"{span.context.span_id:016x}" for span in found}


@ON_LITE
def test_failures_are_the_spans_status(through: S2PubSub, proxy: FaultProxy, spans: Any) -> None:
    """A publish that is refused by us, by the server, or whose callback raises, ends its span as failed; errors are as
    without tracing.
    """
    through.tail(TOPIC)
    with pytest.raises(EncodeError):
        through.publish(TOPIC, type="t", data=float("nan"))
    proxy.answer(APPEND, status=403, code="permission_denied")
    with pytest.raises(StoreError) as caught:
        through.publish(TOPIC, type="t", data=1)
    assert caught.value.outcome == "not_stored"
    with through.publisher(TOPIC) as publisher, pytest.raises(EncodeError):
        publisher.publish(type="t", data=float("nan"))
    found = spans("send agent.thread-stream", 3)
    assert [span.status.status_code for span in found] == [StatusCode.ERROR] * 3
    assert [value(span, "error.type") for span in found] == ["EncodeError", "StoreError", "EncodeError"]
    errors: list[BaseException] = []

    def broken(event: Event) -> None:
        raise OSError("disk")

    with through.subscribe(TOPIC, broken, on_error=errors.append):
        through.publish(TOPIC, type="t", data=1)
        (span,) = spans("process agent.thread-stream")
    assert span.status.status_code is StatusCode.ERROR
    assert [type(error) for error in errors] == [OSError]


def test_a_run_is_one_span_that_its_events_carry(pubsub: S2PubSub, spans: Any) -> None:
    """From the start to the end of a run, whichever thread writes; its events make no spans and all carry the run's."""
    runs = Runs(pubsub, cleanup_timeout=0, agent_id="poet")
    with runs.start() as run:
        for number in range(20):
            run.text(f"{number} ")
    (span,) = spans("run poet")
    assert (value(span, "s2pubsub.run.id"), value(span, "s2pubsub.outcome")) == (run.id, "stop")
    events = list(runs.observe(run.id))
    assert len(events) == 24
    for event in events:
        found = otel.producer_of(event)
        assert found is not None
        assert found.span_id == span.context.span_id
    with pytest.raises(OSError, match="disk"), runs.start() as failing:
        raise OSError("disk")
    assert spans("run poet", 2)[1].status.status_code is StatusCode.ERROR
    suspended = runs.start()
    suspended.suspend("c", "pay", {})
    suspended.close()
    assert value(spans("run poet", 3)[2], "s2pubsub.outcome") is None
    assert failing.ended


def test_a_lease_is_a_span_while_it_is_held(pubsub: S2PubSub, server: Server, basin: str, spans: Any) -> None:
    """From the grant to the release, or to the loss, which is an error."""
    with pubsub.leases.hold("traced", "owner-a", 30):
        pass
    (span,) = spans("lease")
    assert (value(span, "s2pubsub.lease.key"), value(span, "s2pubsub.outcome")) == ("traced", "released")
    with pubsub.leases.hold("traced", "owner-a", 1.5) as lease:
        Register(server, basin, "traced").write("")
        assert lease.lost.wait(LONG)
        with pytest.raises(LeaseLostError):
            lease.check()
    _, lost = spans("lease", 2)
    assert value(lost, "s2pubsub.outcome") == "lost"
    assert lost.status.status_code is StatusCode.ERROR


@pytest.mark.parametrize(
    "value", ["5", '"00-zz"', '["00-11"]', "null", '""', '"00-' + "0" * 32 + "-" + "0" * 16 + '-01"']
)
def test_what_others_have_written_there(pubsub: S2PubSub, streams: Streams, spans: Any, value: str) -> None:
    """A foreign or malformed ``traceparent`` is no error: the span has no link, and the event keeps what it carries."""
    body = '{"type":"t","runId":"","data":1,"id":"1","createdAt":"2026-03-01T12:00:00.123Z","traceparent":%s}'
    streams.append(TOPIC, (body % value).encode())
    (event,) = pubsub.get_history(TOPIC)
    assert "traceparent" in event.extra
    assert otel.producer_of(event) is None
    with otel.processing(event):
        pass
    assert spans("process agent.thread-stream")[0].links == ()


def test_published_again_an_event_carries_its_new_publisher(pubsub: S2PubSub, spans: Any) -> None:
    """An event that is passed on keeps its unknown keys, but the context is that of who passes it on."""
    pubsub.publish_many(TOPIC, [{"type": "t", "data": 1, "extra": {"mine": [1], "traceparent": "old"}}])
    (event,) = pubsub.get_history(TOPIC)
    assert event.extra["mine"] == [1]
    pubsub.publish_many("agent.thread-stream.other", [event])
    first, second = spans("send agent.thread-stream", 2)
    (passed,) = pubsub.get_history("agent.thread-stream.other")
    assert passed.extra["mine"] == [1]
    assert [otel.producer_of(e).span_id for e in (event, passed)] == [first.context.span_id, second.context.span_id]


def test_without_it_nothing_is_different(pubsub: S2PubSub, spans: Any) -> None:
    """Uninstrumented, events carry nothing, no span is made, and ``processing`` is an empty block."""
    otel.uninstrument()
    event = pubsub.publish(TOPIC, type="t", data=1)
    assert dict(event.extra) == {}
    with otel.processing(event):
        assert not trace.get_current_span().get_span_context().is_valid
    assert pubsub.get_history(TOPIC) == [event]


def test_a_slow_exporter_holds_up_no_connection(pubsub: S2PubSub, provider: TracerProvider, spans: Any) -> None:
    """Spans of publishers and runs end on the thread of futures, never on that of the connections."""
    threads: set[str] = set()

    class Slow(SimpleSpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            threads.add(threading.current_thread().name)
            threading.Event().wait(0.05)

    provider.add_span_processor(Slow(InMemorySpanExporter()))
    with pubsub.publisher(TOPIC) as publisher:
        for number in range(5):
            publisher.publish(type="t", data=number)
    Runs(pubsub, cleanup_timeout=0).run(["a"])
    spans("run s2pubsub")
    began = time.monotonic()
    eventually(lambda: "s2pubsub-done" in threads)
    assert "s2pubsub-io" not in threads
    assert time.monotonic() - began < LONG


def test_the_core_does_not_know_it() -> None:
    """Importing and using the package imports nothing of OpenTelemetry; where that is missing the extra is named."""
    script = """if True:
        import sys
        from s2pubsub import S2PubSub
        import s2pubsub.runs, s2pubsub.agent, s2pubsub.contrib.flask
        with S2PubSub(basin="agent-runs", access_token="t") as pubsub:
            pubsub.publish("jobs", type="t", data=1)
        assert not [name for name in sys.modules if name.startswith("opentelemetry")]
        sys.modules["opentelemetry"] = None
        try:
            import s2pubsub.contrib.otel
        except ImportError as error:
            assert "s2pubsub[otel]" in str(error)
        else:
            raise AssertionError("imported without what it needs")
    """
    subprocess.run([sys.executable, "-c", script], check=True, timeout=LONG)
