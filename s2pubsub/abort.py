"""Abort requests: an event of type ``abort-request`` on the run's control topic, as TypeScript programs send it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from s2pubsub.errors import S2PubSubError
from s2pubsub.event import Event
from s2pubsub.topic import control_topic

if TYPE_CHECKING:
    from s2pubsub.client import S2PubSub
    from s2pubsub.runtime.loop import Log
    from s2pubsub.subscription import Subscription

ABORT_REQUEST = "abort-request"


class AbortWatch:
    """Listens for abort requests from the first time that somebody wants to know. Thread-safe.

    The control topic is read from its beginning, so that a request counts that was made before the run listened.
    """

    def __init__(self, pubsub: S2PubSub, run_id: str, logger: Log) -> None:
        self._pubsub = pubsub
        self._run_id = run_id
        self._logger = logger
        self._lock = threading.Lock()
        self._requested = threading.Event()
        self._subscription: Subscription | None = None
        self._callbacks: list[Callable[[], object]] = []
        self._closed = False

    @property
    def opened(self) -> bool:
        """Whether anybody has listened."""
        return self._subscription is not None

    @property
    def aborted_already(self) -> bool:
        """Whether a request has been heard; does not begin to listen."""
        return self._requested.is_set()

    @property
    def aborted(self) -> bool:
        """Whether an abort was asked for; begins to listen. The first look waits for what is stored already."""
        self._listen()
        return self._requested.is_set()

    def call(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` once an abort is asked for; at once if it was."""
        with self._lock:
            heard = self._requested.is_set()
            if not heard:
                self._callbacks.append(callback)
        if heard:
            callback()
        self._listen()

    def _listen(self) -> None:
        with self._lock:
            if self._subscription is not None or self._closed or self._requested.is_set():
                return
            topic = control_topic(self._run_id)
            if any(event.type == ABORT_REQUEST for event in self._pubsub.iter_history(topic)):
                self._requested.set()
            self._subscription = self._pubsub.subscribe_with_replay(topic, self._hear)  # type: ignore[assignment]
        if self._requested.is_set():
            self._run_callbacks()

    def _hear(self, event: Event) -> None:
        if event.type == ABORT_REQUEST:
            self._requested.set()
            self._run_callbacks()

    def _run_callbacks(self) -> None:
        with self._lock:
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception as error:  # a user's callback must not end the watch
                self._logger.error("an on_abort callback of run %r raised", self._run_id, exc_info=error)

    def close(self, *, forget: bool = False) -> None:
        """Stop listening; with ``forget``, when the run has ended, delete the control topic if it was opened.

        Without it a request that was made stays for the next writer of the run. Idempotent.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            subscription = self._subscription
        if subscription is not None:
            subscription.close(1.0)
        if subscription is not None and forget:
            with contextlib.suppress(S2PubSubError):  # best effort; run_config catches what stays
                self._pubsub.clear_topic(control_topic(self._run_id))
