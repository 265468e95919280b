"""What a transport for local topics must offer: the type of ``S2PubSub(inner=…)``.

``LocalPubSub`` is the default one. Any other class with these methods will do; it need not inherit from anything.
What the client counts on, beyond the signatures:

- every subscriber gets its own copy of an event, so that nobody sees what another reader does to it; ``codec.encode``
  and ``codec.decode`` make copies and refuse what is not strict JSON (``EncodeError``);
- events have no index (``index`` is None), and each publisher's arrive in the order of its calls;
- the same callback on the same topic (and group) is one subscription; what it raises goes to ``on_error`` or to a log,
  never to the publisher or to other subscribers, and the next event follows;
- a subscription may be closed from its own callback, and more than once; no callback starts after that;
- what a transport cannot do it refuses: groups with ``GroupNotSupportedError``, batches with ``ValueError``;
- after ``close`` its methods raise ``ClosedError``; the client never closes a transport that was passed to it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from s2pubsub.event import Event

Callback = Callable[..., object]
ErrorHook = Callable[[BaseException], object]


class TransportSubscription(Protocol):
    """What ``subscribe`` of a transport returns: the same face as ``Subscription``."""

    @property
    def topic(self) -> str:
        """The topic's name."""

    @property
    def closed(self) -> bool:
        """Whether it has ended."""

    def __iter__(self) -> Self: ...

    def __next__(self) -> Event: ...

    def get(self, timeout: float | None = None) -> Event:
        """The next event; TimeoutError when none came in time."""

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it ends; raise what ended it."""

    def close(self, timeout: float | None = 5.0) -> None:
        """End it."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class Transport(Protocol):
    """Publish/subscribe for topics that are not stored in S2. Must be thread-safe."""

    def publish(self, topic: str, *, type: str, data: Any, run_id: str = "", timeout: float | None = 30.0) -> Event:
        """Deliver an event to the topic's subscribers; return it with ``index`` None."""

    def subscribe(
        self,
        topic: str,
        callback: Callback | None = None,
        *,
        start: str | int = "latest",
        group: str | None = None,
        batch: Any = None,
        on_error: ErrorHook | None = None,
        timeout: float | None = 30.0,
    ) -> TransportSubscription:
        """Subscribe from now on; a transport without history ignores ``start``."""

    def unsubscribe(self, topic: str, callback: Callback) -> None:
        """End the callback's subscription to the topic; nothing happens if there is none."""

    def get_history(self, topic: str, offset: int = 0, *, timeout: float | None = 30.0) -> list[Event]:
        """Stored events from ``offset``; ``[]`` where nothing is stored."""

    def clear_topic(self, topic: str) -> None:
        """End the topic's subscriptions and forget what is kept of it."""

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything published was delivered."""

    def close(self, timeout: float | None = 5.0) -> None:
        """End all subscriptions."""
