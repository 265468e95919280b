"""What a client consists of, from its making to its end: connections, threads, and what is open.

``publishing``, ``subscribing``, ``stored`` and ``basins`` do their work with it. Whoever needs the client to live, such
as a subscription, refers to its engine; when nobody does, an engine that was not closed says so and signals its threads
to end. Not for: what a method means (``client``).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
import weakref
from typing import Any

import s2_sdk

from s2pubsub.errors import ClosedError
from s2pubsub.held_lease import HeldLeases
from s2pubsub.local import LocalPubSub
from s2pubsub.registry import Closable, Registry, close_at_exit
from s2pubsub.runtime.completer import Completer
from s2pubsub.runtime.deadline import Deadline
from s2pubsub.runtime.fork import reset_in_child
from s2pubsub.runtime.loop import IOLoop
from s2pubsub.runtime.worker import Stop
from s2pubsub.secrecy import hide_secrets
from s2pubsub.settings import Settings
from s2pubsub.stats import Counters, Stats
from s2pubsub.store import Store
from s2pubsub.topic import check_topic, is_durable, stream_name
from s2pubsub.transport import Transport


class Engine:
    """The parts of one client. Thread-safe. No I/O and no thread before the first use.

    Attributes:
        settings: the client's, completed.
        store: the basin, over connections of its own.
        open: subscriptions and publishers.
        held: leases.
        done: completes publishers' futures.
        inner: the transport of local topics, None before the default one's first use.
        stop: ends every wait when the client is closed.
        lock: for what must not happen while the client is being closed.
    """

    def __init__(self, settings: Settings) -> None:
        hide_secrets()
        self.settings = settings
        self.logger: Any = settings.logger or logging.getLogger("s2pubsub")
        self.done = Completer(self.logger)
        self._loop = IOLoop(self.logger)
        self.store = Store(
            self._loop,
            settings.basin or "",
            settings.make_client,
            lambda: settings.make_client(s2_sdk.Retry(max_attempts=1)),
            shared=isinstance(settings.client, s2_sdk.S2),
            stream_config=settings.run_config,
            encryption_key=settings.encryption_key,
        )
        self.counters = Counters()
        self.held = HeldLeases()
        self.closed = False
        self.inner: Transport | None = None
        self._parts: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._reset_in_child()
        reset_in_child(self)
        close_at_exit(self)

    def _reset_in_child(self) -> None:
        self.lock = threading.RLock()  # reentrant, since a signal handler may close in the middle of subscribe
        self.stop = Stop()
        self.open = Registry()
        # Runs and agents made before a fork work in the child, too, and end with its client. Local topics begin anew.
        self._parts = weakref.WeakSet(part for part in self._parts if part is not self.inner)
        self.inner = self.settings.inner

    # -- topics --------------------------------------------------------------------------------------------------

    def stream(self, topic: str) -> str | None:
        """The stream of a durable topic, None for a local one. ClosedError when the client is closed."""
        self.check_open()
        check_topic(topic)
        if not is_durable(topic, self.settings.topic_prefix):
            return None
        return stream_name(topic, self.settings.stream_prefix)

    def durable_stream(self, topic: str) -> str:
        """The stream of a durable topic. ValueError for a local one."""
        stream = self.stream(topic)
        if stream is None:
            raise ValueError(f"topic {topic!r} is local: it does not begin with {self.settings.topic_prefix!r}")
        return stream

    def local(self) -> Transport:
        """The transport of local topics; the default one is made at its first use, and closed with this client."""
        if self.inner is None:
            with self.lock:
                self.check_open()
                if self.inner is None:
                    made = LocalPubSub(default=self.settings.default, logger=self.logger)
                    self._parts.add(made)
                    self.inner = made
        return self.inner

    # -- life cycle ----------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """ClosedError when the client is closed."""
        if self.closed:
            error = ClosedError("the client is closed")
            error.outcome = "not_stored"
            raise error

    def open_stop(self) -> Stop:
        """``stop`` of an open client."""
        self.check_open()
        return self.stop

    def close_with(self, part: Closable) -> None:
        """Close ``part``, if it still lives, before everything else."""
        with self.lock:
            self.check_open()
            self._parts.add(part)

    def flush(self, deadline: Deadline) -> None:
        """Wait until everything accepted is stored or, on local topics, delivered."""
        self.open.flush(deadline)
        if self.inner is not None:
            self.inner.flush(deadline.remaining())

    def close(self, timeout: float | None = 5.0) -> None:
        """Close everything within ``timeout`` seconds, each part whatever the others raise."""
        deadline = Deadline.after(timeout)
        with self.lock:
            self.closed = True
            parts = list(self._parts)
        self.stop.set()
        with contextlib.ExitStack() as steps:  # from the last to the first
            steps.callback(self.done.close, deadline)
            steps.callback(self.held.join, deadline)
            steps.callback(self._loop.close, deadline)
            steps.callback(self.held.release, deadline)  # after callbacks and publishers, whose work they may guard
            steps.callback(self.open.close_publishers, deadline)
            steps.callback(self.open.close, deadline)
            for part in reversed(parts):
                steps.callback(_close, part, deadline)

    def stats(self) -> Stats:
        """A snapshot of counters."""
        subscriptions = self.open.subscriptions()
        pipes = self.open.pipes()
        return Stats(
            publishers=sum(not pipe.outbox.finished for pipe in pipes),
            in_flight=sum(pipe.outbox.unfinished for pipe in pipes),
            subscriptions=len(subscriptions),
            queued=sum(subscription.queued for subscription in subscriptions),
            leases=len(self.held),
            published=self.counters.published,
            delivered=self.counters.delivered,
            reconnects=self.counters.reconnects,
            parked=self.counters.parked,
            replaced_clients=self.store.replaced_clients,
        )

    def __del__(self) -> None:
        loop = getattr(self, "_loop", None)
        if loop is not None and loop.started:
            loop.signal_close()
            self.done.signal_close()
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        return f"<S2PubSub on basin {self.store.basin!r}, {'closed' if self.closed else 'open'}>"


def _close(part: Closable, deadline: Deadline) -> None:
    part.close(timeout=deadline.remaining())
