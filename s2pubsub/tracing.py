"""Where a tracer takes part in what a client does. None is installed by default; ``contrib.otel`` has one.

Relies on the event alone. Whoever has something to trace looks at ``tracer`` first: without one that is all it costs.
Not for logs and counters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from s2pubsub.event import Event

T = TypeVar("T")


class Work(Protocol):
    """Something that takes time: an event on its way, a held lease, a run. Any thread may end it, once."""

    @property
    def carried(self) -> Mapping[str, str]:
        """What its events carry as further keys of their envelope, for their readers to refer to it."""

    def note(self, events: Sequence[Event] = (), outcome: str | None = None) -> None:
        """Tell what was stored, or how it ended."""

    def end(self, error: BaseException | None = None) -> None:
        """It is over, by ``error`` where that is given."""


class Tracer(Protocol):
    """Is told what begins."""

    def sending(self, topic: str, count: int) -> Work:
        """``count`` events are about to be published."""

    def processing(self, event: Event) -> AbstractContextManager[object]:
        """A callback is about to be called with ``event``; what it raises passes through."""

    def lease(self, key: str, owner: str) -> Work:
        """A lease is held."""

    def run(self, run_id: str, agent_id: str) -> Work:
        """A run is written; its events carry it, and are no work of their own."""


tracer: Tracer | None = None
"""The one in force for all clients of this process."""


def install(new: Tracer | None) -> None:
    """Put ``new`` in force from the next call on; None ends tracing."""
    global tracer
    tracer = new


def send(by: Tracer, topic: str, count: int, publish: Callable[[Mapping[str, str]], list[Event]]) -> list[Event]:
    """Publish with what the events are to carry, as one work."""
    work = by.sending(topic, count)
    try:
        events = publish(work.carried)
    except BaseException as error:
        work.end(error)
        raise
    work.note(events)
    work.end()
    return events
