"""Pipelined publishing on one topic: events leave in the order of the calls, and futures say what became of them.

The handle (``Publisher``) encodes on its caller's thread and puts events into an outbox. An appender on the I/O loop
(``store.appending``) sends them in batches and survives outages. The thread ``s2pubsub-done`` completes the futures.
The loop and that thread know only the parts (``Pipe``), so a handle that nobody refers to any more is noticed: what
is pending is stored all the same.

Not for: a single acknowledged event (``S2PubSub.publish``).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Self

from tenacity import RetryCallState

from s2pubsub import tracing
from s2pubsub.codec import RECORD_OVERHEAD, Default, Draft, compose
from s2pubsub.errors import ClosedError, OperationTimeoutError, S2PubSubError
from s2pubsub.event import Event
from s2pubsub.following import Outage
from s2pubsub.runtime.completer import Completer
from s2pubsub.runtime.deadline import Deadline, check_timeout
from s2pubsub.runtime.fork import inherited, reset_in_child
from s2pubsub.runtime.loop import Log
from s2pubsub.runtime.outbox import Outbox, fresh
from s2pubsub.runtime.promise import Promise
from s2pubsub.stats import Counters
from s2pubsub.store import Appending

_AT_A_TIME = 64
"""So many futures are completed before those who wait for room are let in."""

_ABORT_LIMIT = 1.0
"""Seconds for futures to fail once a close has given up."""

_CLOSE_TIMEOUT = 5.0
_HURRIED_TIMEOUT = 1.0
"""Seconds to wait for acknowledgements at the end of a ``with`` block, and when Ctrl-C or an exit ends it."""


class Pending(Promise[Any]):
    """The future of an event on its way; with ``fence``, of the command that sets a fencing token.

    One object for what the caller waits on and what the loop sends: making two took half as long again.
    """

    def __init__(self, draft: Draft | None, body: bytes, fence: str | None = None) -> None:
        self.draft = draft
        self.body = body
        self.fence = fence
        self.size = RECORD_OVERHEAD + len(body)  # metered


class Pipe:
    """What the I/O loop and the completing thread know of a publisher. Thread-safe."""

    def __init__(
        self, topic: str, max_in_flight: int, max_bytes: int, completer: Completer, counters: Counters, logger: Log
    ) -> None:
        self.topic = topic
        self.outbox: Outbox[Pending] = Outbox(max_in_flight, max_bytes, exempt=lambda: completer.is_current)
        self._pending: set[Pending] = set()
        self.failure: S2PubSubError | None = None
        self.reported = False  # the failure, to a caller
        self.kept_alive: object = None  # by an appender that works on behalf of a dropped handle
        self.explain: Callable[[S2PubSubError], S2PubSubError] = lambda error: error
        self.on_end: list[Callable[[Pipe], object]] = []
        self._completer = completer
        self._counters = counters
        self._logger = logger
        self._outage = Outage(f"publisher of topic {topic!r}", logger)
        self._appending: Appending | None = None
        self._not_stored = 0
        self._unknown = 0
        reset_in_child(self)

    def _reset_in_child(self) -> None:
        error = inherited()
        error.outcome = "unknown"
        for pending in self._pending:
            pending.end_in_child(fresh(error))
        self._pending.clear()

    def run(self, start: Callable[[], Appending]) -> None:
        """Start the appender."""
        self._appending = start()
        self._appending.ended.add_done_callback(lambda _: self.end())

    def put(self, pending: Pending, timeout: float | None) -> None:
        """Take an event; raises as ``Outbox.put`` does."""
        self._pending.add(pending)
        try:
            self.outbox.put(pending, pending.size, timeout)
        except BaseException:
            self._pending.discard(pending)
            raise

    def end(self) -> None:
        """The appender has ended, or was not started."""
        error = ClosedError(f"the publisher of topic {self.topic!r} is closed")
        error.outcome = "not_stored"
        if left := self.outbox.refuse(error):  # the loop ended before the appender began
            self.failed(left, error)
        self.kept_alive = None
        for action in self.on_end:
            action(self)

    # -- told on the I/O loop ------------------------------------------------------------------------------------

    def stored(self, items: Sequence[Pending], first: int) -> None:
        """See ``store.appending.Outlet``."""
        self._completer.soon(partial(self._complete, items, first))

    def failed(self, items: Sequence[Pending], error: S2PubSubError) -> None:
        """See ``store.appending.Outlet``."""
        explained = self.explain(error)
        if self.failure is None:
            self.failure = explained
        events = sum(item.fence is None for item in items)
        if error.outcome == "unknown":
            self._unknown += events
        else:
            self._not_stored += events
        self._completer.soon(partial(self._break, items, explained, error))

    def interrupted(self, state: RetryCallState) -> None:
        """See ``store.appending.Outlet``."""
        self._counters.reconnects += 1
        self._outage.wait_announced(state)

    def resumed(self) -> None:
        """See ``store.appending.Outlet``."""
        self._outage.over()

    def soon(self, action: Callable[[], object]) -> None:
        """Call ``action`` on the completing thread: it is not the library's own, and may take its time."""
        self._completer.soon(action)

    # -- on the completing thread --------------------------------------------------------------------------------

    def _complete(self, items: Sequence[Pending], first: int) -> None:
        for start in range(0, len(items), _AT_A_TIME):
            some = items[start : start + _AT_A_TIME]
            size = 0
            for index, pending in enumerate(some, first + start):
                size += pending.size
                event = None if pending.draft is None else pending.draft.event(self.topic, index)
                pending.draft, pending.body = None, b""  # its user may keep the future
                try:
                    pending.set_result(event)
                except BaseException:  # a done-callback's SystemExit or KeyboardInterrupt
                    self._logger.exception("a done-callback of an event of topic %r", self.topic)
            self._counters.published += sum(pending.fence is None for pending in some)
            self._pending.difference_update(some)
            self.outbox.complete(len(some), size)

    def _break(self, items: Sequence[Pending], error: S2PubSubError, bare: S2PubSubError) -> None:
        for pending in items:
            try:
                pending.set_exception(fresh(error if pending.fence is None else bare))
            except BaseException:  # as above
                self._logger.exception("a done-callback of an event of topic %r", self.topic)
        self._pending.difference_update(items)
        self.outbox.complete(len(items), sum(pending.size for pending in items))

    # -- waiting and closing -------------------------------------------------------------------------------------

    def flush(self, deadline: Deadline) -> None:
        """Wait until everything accepted before is complete; raise what could not be stored."""
        if self.outbox.is_inherited:
            raise inherited()
        if self._completer.is_current:
            raise RuntimeError("flush() in a done-callback would wait for itself")
        if not self.outbox.wait_completed(self.outbox.accepted, deadline):
            raise self._on_their_way()
        self._report()

    def _on_their_way(self) -> OperationTimeoutError:
        error = OperationTimeoutError(f"topic {self.topic!r}: {self.outbox.unfinished} events are still on their way")
        error.outcome = "unknown"
        return error

    def finish(self) -> None:
        """Accept nothing more; do not wait."""
        closed = ClosedError(f"the publisher of topic {self.topic!r} is closed")
        closed.outcome = "not_stored"
        self.outbox.finish(closed)

    def close(self, deadline: Deadline) -> None:
        """Accept nothing more, wait for acknowledgements, give up at ``deadline``; raise what was not stored."""
        self.finish()
        if self._completer.is_current:
            return  # the futures are completed by this thread, after the callback that called us
        done = self.outbox.wait_completed(self.outbox.accepted, deadline)
        if not done and self._appending is not None:
            self._appending.abort()
            done = self.outbox.wait_completed(self.outbox.accepted, Deadline.after(_ABORT_LIMIT))
        if not done and self.failure is None and not self.reported:
            # The loop is busy, or a session takes long to end: nobody has said yet that these are not stored.
            self.reported = True
            raise self._on_their_way()
        self._report()

    def _report(self) -> None:
        if self.failure is None or self.reported:
            return
        self.reported = True
        lost = self._not_stored + self._unknown
        text = f"topic {self.topic!r}: {lost} events of a publisher were not stored"
        if self._unknown:
            text += f" or are not known to be ({self._unknown} of them)"
        cause = self.failure
        error: S2PubSubError
        if isinstance(cause, ClosedError):  # not refused: the time was up
            error = OperationTimeoutError(
                text + (f"; the last failure was: {cause.__cause__}" if cause.__cause__ else "")
            )
            error.__cause__ = cause.__cause__
        else:
            error = fresh(cause)
            error.args = (f"{text}: {cause}", *cause.args[1:])
        error.outcome = "unknown" if self._unknown else "not_stored"
        raise error


class Publisher:
    """Publishes on one topic without waiting for each event. Made by ``S2PubSub.publisher``; thread-safe.

    Events are stored in the order of the calls, whatever is in flight and through reconnects. An outage is waited out,
    for as long as the publisher is open. What was in flight when it began is sent again, whatever the SDK's retry
    policy, so it may be stored twice, with the same ``id`` (``exactly_once=True`` excludes that). A refusal is final:
    that event and all after it fail, in order, and later calls raise the same error.

    Close it, or use it in a ``with`` block: then what could not be stored is raised at the latest there.
    """

    def __init__(self, pipe: Pipe, client: object, default: Default | None) -> None:
        self._pipe = pipe
        self._client = client
        self._default = default
        self._topic = pipe.topic
        self._put = pipe.put
        self._carried: Mapping[str, str] | None = None

    def publish(self, *, type: str, data: Any, run_id: str = "", timeout: float | None = 30.0) -> Future[Event]:
        """Take an event for publishing; return the future of it with its ``index``, when S2 has stored it.

        ``type``, ``data`` and ``run_id`` are as for ``S2PubSub.publish``. Futures complete in order, on one thread of
        the client; a done-callback that waits holds up the others. They cannot be cancelled.

        ``timeout`` is in seconds and for finding room when too much is in flight; None for no limit. Once taken, an
        event has no time limit: give one to ``result``, ``flush`` or ``close``.

        Raises:
            EncodeError: ``data`` is not strict JSON or too large.
            OperationTimeoutError: no room in time; ``outcome`` is ``'not_stored'``.
            ClosedError: the publisher or its client is closed.
            S2PubSubError: the publisher has failed before, of this.
        """
        if timeout.__class__ is not float or not timeout >= 0:  # the common case costs nothing
            check_timeout(timeout)
        tracer = tracing.tracer
        if tracer is None or self._carried is not None:
            return self._take(type, data, run_id, timeout, self._carried)
        work = tracer.sending(self._topic, 1)
        try:
            pending = self._take(type, data, run_id, timeout, work.carried)
        except BaseException as error:
            work.end(error)
            raise
        pending.add_done_callback(partial(_traced, work))
        return pending

    def _take(
        self, type: str, data: Any, run_id: str, timeout: float | None, extra: Mapping[str, str] | None
    ) -> Pending:
        draft = compose(type, data, run_id, None, None, extra, self._default)
        pending = Pending(draft, draft.body)
        try:
            self._put(pending, timeout)
        except S2PubSubError as refusal:
            self._pipe.reported = self._pipe.reported or not isinstance(refusal, ClosedError)
            raise
        except TimeoutError:
            error = OperationTimeoutError(
                f"topic {self._topic!r}: no room within {timeout} s, {self.in_flight} events are on their way"
            )
            error.outcome = "not_stored"
            raise error from None
        return pending

    def carry(self, work: tracing.Work) -> None:
        """Let events carry ``work``, which ends with this publisher, instead of being works of their own."""
        self._carried = work.carried
        self._pipe.on_end.append(lambda pipe: pipe.soon(lambda: work.end(pipe.failure)))

    def flush(self, timeout: float | None = 30.0) -> None:
        """Wait until everything taken before this call is stored, up to ``timeout`` seconds.

        Raises:
            OperationTimeoutError: not yet; it goes on all the same.
            S2PubSubError: the publisher has failed; what was not stored is counted in the message.
        """
        self._pipe.flush(Deadline.after(timeout))

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._topic

    @property
    def in_flight(self) -> int:
        """How many events were taken and are neither stored nor failed."""
        return self._pipe.outbox.unfinished

    @property
    def closed(self) -> bool:
        """Whether nothing more is taken: it was closed or has failed."""
        return self._pipe.outbox.finished

    def close(self, timeout: float | None = 5.0) -> None:
        """Take nothing more and wait up to ``timeout`` seconds for what is in flight. Idempotent, from any thread.

        In a done-callback it does not wait.

        Raises:
            S2PubSubError: events could not be stored, with their number; once, unless a call has raised it before.
                ``OperationTimeoutError`` when the time was up.
        """
        self._pipe.close(Deadline.after(timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close(_CLOSE_TIMEOUT)
            return
        try:
            self.close(_CLOSE_TIMEOUT if isinstance(error, Exception) else _HURRIED_TIMEOUT)
        except S2PubSubError as lost:
            error.add_note(f"besides, {lost}")  # what is on its way out says more

    def __del__(self) -> None:
        pipe = getattr(self, "_pipe", None)
        if pipe is None or pipe.outbox.finished:
            return
        if pipe.outbox.unfinished:
            pipe.kept_alive = self._client  # until all is stored
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)
        pipe.finish()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Publisher to {self._topic!r}, {state}, {self.in_flight} in flight>"


def _traced(work: tracing.Work, future: Future[Event]) -> None:
    error = future.exception()
    if error is None:
        work.note([future.result()])
    work.end(error)


def check_bounds(max_in_flight: int, max_bytes: int) -> None:
    """Raise TypeError or ValueError unless both are integers of at least 1."""
    for name, value in (("max_in_flight", max_in_flight), ("max_bytes", max_bytes)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an int, not {value!r}")
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
