"""A run or subscription as the body of a response: an iterator of bytes that always lets go of its source.

A blocking server learns that a client has gone only when it writes, so heartbeats are written; then it closes the body.
Nothing here knows a web framework; ``answer`` and ``contrib`` do the rest of a response.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol, Self

from s2pubsub.errors import (
    ClosedError,
    DecodeError,
    ReplayGapError,
    RunIdleError,
    S2PubSubError,
    StoreError,
    TopicGoneError,
)
from s2pubsub.event import Event
from s2pubsub.runtime.deadline import check_timeout
from s2pubsub.sse.formats import HEARTBEAT, Format, FormatName, make_format
from s2pubsub.sse.limiter import Limiter
from s2pubsub.sse.masking import mask_errors
from s2pubsub.sse.shutdown import watch

Transform = Callable[[Event], Event | None]
"""Changes an event before it is sent, or leaves it out by None."""

_GATHER = 32 * 1024
"""Bytes of blocks that are sent at once where more events are there already."""

_FAILURES: tuple[tuple[type[Exception], str, str], ...] = (
    (RunIdleError, "idle", "The run has been silent for too long."),
    (TopicGoneError, "gone", "The run was deleted."),
    (ReplayGapError, "gap", "Earlier events are no longer stored."),
    (DecodeError, "unreadable", "An event cannot be read."),
    (StoreError, "unavailable", "The events are not available."),
)


class Source(Protocol):
    """What can be streamed: an ``Observation``, a ``Subscription``, or a subscription to a local topic."""

    def get(self, timeout: float | None = None) -> Event:
        """The next event; TimeoutError when none came in time, ClosedError when none will."""

    def close(self, timeout: float | None = 5.0) -> None:
        """Let go of it; ends a ``get`` in another thread."""


def headers(format: FormatName = "events") -> dict[str, str]:
    """The headers of a response with a stream in it. None of them belongs to the connection, so any server takes them.

    ``identity`` is what makes compressing middleware leave the response alone: it would hold events back.
    """
    fields = {
        "Content-Type": "text/event-stream",
        "Cache-Control": "no-cache, no-transform",
        "X-Accel-Buffering": "no",
        "Content-Encoding": "identity",
    }
    if format == "ui-message-stream":
        fields["x-vercel-ai-ui-message-stream"] = "v1"
    return fields


def stream(
    source: Source,
    *,
    format: FormatName = "events",
    heartbeat: float = 15.0,
    lifetime: float | None = None,
    retry: float = 1.0,
    transform: Transform | None = None,
    show_errors: bool = False,
    limiter: Limiter | None = None,
) -> EventStream:
    """The body of a response that shows ``source``. See ``headers`` for what belongs to it.

    Args:
        source: an observation or a subscription without a callback; the stream closes it.
        format: see ``formats``.
        heartbeat: seconds between two writes at the latest. Also the time within which a gone client is noticed.
        lifetime: seconds after which the stream ends; the browser comes back by itself and misses nothing. Only for
            ``events``: the clients of the other formats do not come back.
        retry: seconds after which a browser comes back.
        transform: called with each event, on the server's thread.
        show_errors: send the texts of errors as they are stored, not masked.
        limiter: a place in it was taken for this stream, and is given back when it is closed.

    Raises:
        ValueError, TypeError: an argument does not fit; ``source`` and the place remain the caller's.
    """
    check_timeout(heartbeat, "heartbeat")
    check_timeout(lifetime, "lifetime")
    check_timeout(retry, "retry")
    if not heartbeat or heartbeat == math.inf:
        raise ValueError("heartbeat must be a number of seconds above 0: without one a gone client is never noticed")
    made = make_format(format, retry)
    if lifetime is not None and not made.resumable:
        raise ValueError(f"lifetime= is for the format 'events' only: clients of {format!r} do not come back")
    return EventStream(source, made, heartbeat, lifetime, transform, show_errors, limiter)


class EventStream(Iterator[bytes]):
    """Made by ``stream``. One thread iterates; any thread may ``close`` or ``stop`` it.

    A class and not a generator, because servers close bodies which they never began to send (HEAD, a client that has
    gone already): a generator's ``finally`` would not run then.
    """

    def __init__(
        self,
        source: Source,
        format: Format,
        heartbeat: float,
        lifetime: float | None,
        transform: Transform | None,
        show_errors: bool,
        limiter: Limiter | None,
    ) -> None:
        self._source = source
        self._format = format
        self._heartbeat = heartbeat
        self._transform = transform
        self._show_errors = show_errors
        self._places = [] if limiter is None else [limiter]
        self._begun = False
        self._over = False
        self._beat_at = time.monotonic() + heartbeat
        self._ends_at = None if lifetime is None else time.monotonic() + lifetime

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        try:
            sent = b"" if self._over else self._next()
        except BaseException:
            self.close()
            raise
        if not sent:
            self.close()
            raise StopIteration
        self._beat_at = time.monotonic() + self._heartbeat
        return sent

    def _next(self) -> bytes:
        if not self._begun:
            self._begun = True
            watch.add(self)
            live = not hasattr(self._source, "end")  # a subscription, not the observation of a run
            return self._format.start(getattr(self._source, "next_index", None) if live else None)
        while not self._over:
            now = time.monotonic()
            if self._ends_at is not None and now >= self._ends_at:
                self._over = True
                return b""
            if now >= self._beat_at:
                return HEARTBEAT
            limit = self._beat_at if self._ends_at is None else min(self._beat_at, self._ends_at)
            blocks = self._gather(limit - now)
            if blocks:
                return blocks
        return b""

    def _gather(self, wait: float) -> bytes:
        """The blocks of what comes within ``wait`` seconds and of what is there already behind it."""
        blocks: list[bytes] = []
        size = 0
        try:
            while size < _GATHER:
                block = self._block(self._source.get(wait))
                blocks.append(block)
                size += len(block)
                wait = 0
        except TimeoutError:
            pass
        except ClosedError:
            self._over = True
            end = getattr(self._source, "end", None)
            if end is not None:  # else it was closed under us: no end, so that the browser comes back
                blocks.append(self._format.end(end))
        except Exception as error:  # noqa: BLE001  # the response has begun: a block is all that can tell
            self._over = True
            blocks.append(self._failure(error))
        return b"".join(blocks)

    def _block(self, event: Event) -> bytes:
        changed = event if self._transform is None else self._transform(event)
        if changed is None:
            return b""
        return self._format.event(changed if self._show_errors else mask_errors(changed))

    def _failure(self, error: Exception) -> bytes:
        for kind, code, message in _FAILURES:
            if isinstance(error, kind):
                return self._format.failure(code, str(error) if self._show_errors else message)
        if not isinstance(error, S2PubSubError):
            _log.error("a stream has failed", exc_info=error)
        return self._format.failure("internal", str(error) if self._show_errors else "The stream has failed.")

    def stop(self) -> None:
        """``close()`` without waiting: the iterating thread ends, and the browser comes back by itself."""
        stop: Any = getattr(self._source, "stop", None)
        if callable(stop):
            stop()
        else:
            self._source.close(0)

    def close(self) -> None:
        """Let go of the source and of the place in the limiter. Idempotent."""
        self._over = True
        try:
            self._source.close()
        finally:
            self._let_go()

    def abandon(self) -> None:
        """``close()`` without waiting."""
        self._over = True
        try:
            self.stop()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        watch.discard(self)
        while self._places:
            try:
                place = self._places.pop()
            except IndexError:  # another thread has given it back
                return
            place.give_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_places", None) or not getattr(self, "_over", True):
            self.abandon()


_log = logging.getLogger("s2pubsub")
