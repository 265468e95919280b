"""OpenTelemetry spans of what clients do: publishing, callbacks, held leases, runs. Needs the extra ``otel``.

::

    from s2pubsub.contrib import otel

    otel.instrument()                        # all clients of this process
    with otel.processing(event): ...         # for iterators; callbacks have their span by themselves

An event carries the context of its publisher's span in its envelope, as the W3C's ``traceparent``; the span of a reader
is linked to it. ``docs/observability.md`` in the package lists spans and attributes. Not for local topics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

try:
    from opentelemetry import trace
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    raise ImportError("spans need the extra 'otel': pip install 's2pubsub[otel]'") from error

from s2pubsub import __version__, tracing
from s2pubsub.event import Event

__all__ = ["instrument", "processing", "producer_of", "uninstrument"]

_CONTEXT = TraceContextTextMapPropagator()  # not the user's: baggage, which may be private, would be stored
_KEYS = ("traceparent", "tracestate")


def instrument(tracer_provider: TracerProvider | None = None) -> None:
    """Make spans from now on, for all clients of this process. Called again, it takes the new provider.

    Args:
        tracer_provider: where the spans go; None is the application's global one.
    """
    tracing.install(_Tracer(trace.get_tracer("s2pubsub", __version__, tracer_provider)))


def uninstrument() -> None:
    """Make no more spans; those that are open end in their own time."""
    tracing.install(None)


def processing(event: Event) -> AbstractContextManager[object]:
    """A ``with`` block as the consumer's span of ``event``. Without ``instrument()`` it does nothing."""
    tracer = tracing.tracer
    return _nothing() if tracer is None else tracer.processing(event)


def producer_of(event: Event) -> trace.SpanContext | None:
    """The context of the span that published ``event``; None where it carries none, or one that is malformed."""
    carried = {key: value for key in _KEYS if isinstance(value := event.extra.get(key), str)}
    found = trace.get_current_span(_CONTEXT.extract(carried)).get_span_context() if carried else None
    return found if found is not None and found.is_valid else None


@contextmanager
def _nothing() -> Iterator[None]:
    yield


class _Work:
    """See ``tracing.Work``: one span."""

    def __init__(self, span: Span) -> None:
        self._span = span
        carried: dict[str, str] = {}
        _CONTEXT.inject(carried, trace.set_span_in_context(span))
        self.carried: Mapping[str, str] = carried

    def note(self, events: Sequence[Event] = (), outcome: str | None = None) -> None:
        if len(events) == 1:
            self._span.set_attribute("messaging.message.id", events[0].id)
        if events and events[0].index is not None:
            self._span.set_attribute("s2pubsub.index", events[0].index)
        if outcome is not None:
            self._span.set_attribute("s2pubsub.outcome", outcome)
            if outcome in ("error", "lost"):
                self._span.set_status(Status(StatusCode.ERROR, outcome))

    def end(self, error: BaseException | None = None) -> None:
        if error is not None:
            _fail(self._span, error)
        self._span.end()


class _Tracer:
    """See ``tracing.Tracer``."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def sending(self, topic: str, count: int) -> _Work:
        attributes: dict[str, str | int] = {**_attributes(topic, "send"), "messaging.batch.message_count": count}
        return _Work(self._tracer.start_span(f"send {_short(topic)}", kind=SpanKind.PRODUCER, attributes=attributes))

    @contextmanager
    def processing(self, event: Event) -> Iterator[Span]:
        producer = producer_of(event)
        attributes: dict[str, str | int] = {
            **_attributes(event.topic, "process"),
            "messaging.message.id": event.id,
            "s2pubsub.event.type": event.type,
            "s2pubsub.delivery_attempt": event.delivery_attempt,
        }
        if event.index is not None:
            attributes["s2pubsub.index"] = event.index
        with self._tracer.start_as_current_span(
            f"process {_short(event.topic)}",
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[Link(producer)] if producer is not None else None,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                _fail(span, error)
                raise

    def lease(self, key: str, owner: str) -> _Work:
        attributes = {"s2pubsub.lease.key": key, "s2pubsub.lease.owner": owner}
        return _Work(self._tracer.start_span("lease", attributes=attributes))

    def run(self, run_id: str, agent_id: str) -> _Work:
        return _Work(self._tracer.start_span(f"run {agent_id}", attributes={"s2pubsub.run.id": run_id}))


def _short(topic: str) -> str:
    """The kind of a topic: names of spans must be few, and topics are not."""
    return ".".join(topic.split(".")[:2])


def _attributes(topic: str, operation: str) -> dict[str, str]:
    return {
        "messaging.system": "s2",
        "messaging.destination.name": topic,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }


def _fail(span: Span, error: BaseException) -> None:
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
