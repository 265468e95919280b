"""The handle of a local subscription, and the worker that calls a callback.

The worker knows the line, never the handle: a handle which nobody refers to any more leaves the line by itself.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Self

from s2pubsub.batches import in_batches
from s2pubsub.codec import decode
from s2pubsub.errors import ClosedError, OperationTimeoutError
from s2pubsub.event import Event, build_event
from s2pubsub.local.batching import Buffer
from s2pubsub.local.delivery import Delivery, LineEnd, Member
from s2pubsub.local.line import Line
from s2pubsub.local.options import BatchOptions
from s2pubsub.runtime.closing import Closing
from s2pubsub.runtime.deadline import NEVER, Deadline, check_timeout
from s2pubsub.runtime.fork import reset_in_child
from s2pubsub.runtime.loop import Log
from s2pubsub.runtime.wake import Flag
from s2pubsub.runtime.worker import Worker
from s2pubsub.topic import thread_name
from s2pubsub.transport import Callback, ErrorHook


class LocalWorker(Worker):
    """The thread of a callback. Publishing on it never waits for room: it may be the one who makes room."""


class LocalSubscription(Closing, Iterator[Event]):
    """A subscription to a local topic. Made by ``LocalPubSub.subscribe``; thread-safe.

    Without a callback it is an iterator, as ``Subscription`` is: ``for`` blocks and ends after ``close()``, several
    threads may share it. In a group each event must be answered with ``ack`` or ``nack``; a member that closes gives
    what it has not answered to the others, with the next attempt's number.
    """

    def __init__(self, line: Line, member: Member, life: Life) -> None:
        self._line = line
        self._member = member
        self._life = life

    # -- events --------------------------------------------------------------------------------------------------

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        try:
            return self._take(NEVER)
        except LineEnd as end:
            if end.error is not None:
                raise copy.copy(end.error) from None
            raise StopIteration from None

    def get(self, timeout: float | None = None) -> Event:
        """The next event, waiting up to ``timeout`` seconds (None: for ever, 0: not at all).

        Raises:
            OperationTimeoutError: a ``TimeoutError``; no event came in time.
            ClosedError: the subscription is closed.
        """
        try:
            return self._take(Deadline.after(timeout))
        except LineEnd as end:
            error = end.error or ClosedError(f"the subscription to topic {self.topic!r} is closed")
            raise copy.copy(error) from None
        except TimeoutError:
            raise OperationTimeoutError(f"no event on topic {self.topic!r} within {timeout} s") from None

    def batches(self, max_size: int = 100, max_wait: float = 0.1) -> Iterator[list[Event]]:
        """Iterate over lists of at most ``max_size`` events, each sent ``max_wait`` seconds after its first event at
        the latest. Events come in order; the last list may be short. Never empty lists.
        """
        self._refuse_callback()
        return in_batches(self, self._take, LineEnd, max_size, max_wait)

    def ack(self, event: Event) -> bool:
        """Say that ``event`` was handled: the group does not deliver it again.

        Returns whether that made a difference: False if it was settled before. Outside a group always True.
        """
        return self._line.group is None or self._line.answer(event.id, event.delivery_attempt, True)

    def nack(self, event: Event) -> bool:
        """Refuse ``event``: after the pause the group delivers it again, unless this was its last attempt.

        Returns whether that made a difference: False if it was settled, or went to another member meanwhile. Outside
        a group always True, and nothing happens: others do not depend on this reader.
        """
        return self._line.group is None or self._line.answer(event.id, event.delivery_attempt, False)

    def _take(self, deadline: Deadline) -> Event:
        self._refuse_callback()
        return _read(self._line, self._line.take(self._member, deadline))

    def _refuse_callback(self) -> None:
        if not self._member.iterates:
            raise TypeError("this subscription delivers to its callback and cannot be iterated")

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._line.topic

    @property
    def group(self) -> str | None:
        """The group it is a member of."""
        return self._line.group

    @property
    def next_index(self) -> None:
        """Always None: local events have no index."""
        return

    @property
    def replaying(self) -> bool:
        """Always False: nothing is stored."""
        return False

    @property
    def queued(self) -> int:
        """How many events wait for this reader, or for its group."""
        return len(self._line)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._member.left

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the subscription has ended and its callback does not run any more.

        Raises:
            OperationTimeoutError: it had not ended after ``timeout`` seconds.
        """
        if not self._life.ended.wait(check_timeout(timeout)):
            raise OperationTimeoutError(f"the subscription to topic {self.topic!r} goes on after {timeout} s")

    def close(self, timeout: float | None = 5.0) -> None:
        """End the subscription; iteration just ends, what waits for it alone is discarded. Idempotent, any thread.

        Waits up to ``timeout`` seconds for a running callback; called from a callback it does not wait. No callback
        starts after it has returned.
        """
        deadline = Deadline.after(timeout)
        self.stop()
        self._life.finish(deadline)

    def stop(self) -> None:
        """``close()`` without waiting."""
        self._line.leave(self._member)
        if self._life.worker is None:
            self._life.end()

    def __del__(self) -> None:
        member = getattr(self, "_member", None)
        if member is not None and not member.left:
            message = f"unclosed {self!r}"
            self._line.leave(member)
            self._life.end()
            warnings.warn(message, ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        group = "" if self.group is None else f" in group {self.group!r}"
        return f"<LocalSubscription to {self.topic!r}{group}, {'closed' if self.closed else 'open'}>"


class Caller:
    """A user's callback, and where its errors go."""

    def __init__(self, line: Line, callback: Callback, on_error: ErrorHook | None, logger: Log) -> None:
        self._line = line
        self._callback = callback
        self._on_error = on_error
        self._logger = logger

    def __call__(self, event: Event) -> bool:
        """Call it; say whether it returned."""
        try:
            self._callback(event)
            return True
        except BaseException as error:  # noqa: BLE001  # SystemExit too: a callback cannot end our thread
            what = f"the callback for event {event.id} (attempt {event.delivery_attempt})"
            error.add_note(f"in {what} of topic {self._line.topic!r}")
            self._tell(error, what)
            return False

    def report(self, error: Exception, function: str) -> None:
        """Tell what a function of the batching options raised."""
        self._tell(error, function)

    def dropped(self, count: int) -> None:
        """Tell that a full buffer has cost events."""
        self._logger.warning(
            "topic %r: %d events were dropped, since more came than the batch's buffer holds", self._line.topic, count
        )

    def _tell(self, error: BaseException, what: str) -> None:
        if self._on_error is not None:
            try:
                self._on_error(error)
                return
            except BaseException as hook_error:  # logged with the first one
                hook_error.add_note("in the on_error hook")
                self._logger.error("the on_error hook of topic %r raised", self._line.topic, exc_info=hook_error)
        self._logger.error("%s of topic %r raised", what, self._line.topic, exc_info=error)


class Life:
    """How a subscription ends, and its worker if it has a callback."""

    def __init__(self, worker: LocalWorker | None, on_end: Callable[[], None]) -> None:
        self.ended = Flag()
        self.worker = worker
        self._on_end = on_end
        reset_in_child(self)

    def end(self) -> None:
        """It has ended."""
        self.ended.set()
        self._on_end()

    def finish(self, deadline: Deadline) -> None:
        """Wait for the worker."""
        if self.worker is not None:
            self.worker.finish(deadline)

    def _reset_in_child(self) -> None:
        self.ended = Flag()
        self.ended.set()


def begin(
    line: Line,
    member: Member,
    callback: Callback | None,
    batch: BatchOptions | None,
    on_error: ErrorHook | None,
    on_end: Callable[[], None],
    logger: Log,
) -> LocalSubscription:
    """Start the worker, if there is a callback, and return the handle. ``member`` has joined ``line``."""
    life = Life(None, on_end)
    subscription = LocalSubscription(line, member, life)
    if callback is not None:
        caller = Caller(line, callback, on_error, logger)
        life.worker = LocalWorker(thread_name("local", line.topic), _work, line, member, caller, batch, life)
        try:
            life.worker.start()
        except BaseException:
            line.leave(member)
            raise
    return subscription


def _work(line: Line, member: Member, caller: Caller, batch: BatchOptions | None, life: Life) -> None:
    try:
        if batch is None:
            _call_each(line, member, caller)
        else:
            _call_in_batches(line, member, caller, Buffer(batch, caller.report))
    except LineEnd:
        pass
    finally:
        line.leave(member)
        life.end()


def _call_each(line: Line, member: Member, caller: Caller) -> None:
    while True:
        delivery = line.take(member, NEVER)
        line.answer(delivery.id, delivery.attempt, caller(_read(line, delivery)))


def _call_in_batches(line: Line, member: Member, caller: Caller, buffer: Buffer) -> None:
    while True:
        _gather(line, member, buffer)
        member.buffered = len(buffer) > 0
        if not member.buffered or not (buffer.is_due() or line.urgent):
            continue
        kept, left_out, overflowed = buffer.take()
        for delivery, _ in left_out:
            line.answer(delivery.id, delivery.attempt, True)
        if overflowed:
            caller.dropped(overflowed)
        for delivery, event in kept:
            if line.begin(delivery):
                line.answer(delivery.id, delivery.attempt, caller(event))
        buffer.delivered()


def _gather(line: Line, member: Member, buffer: Buffer) -> None:
    """Take what there is; if that is nothing, wait until something comes or the batch is due."""
    due = buffer.due()
    count = len(line)
    if line.group is not None:
        count = min(count, buffer.room)
    try:
        # At least one try: it notices that the member has left. Without a limit a fast publisher would never let go.
        for _ in range(max(1, count)):
            delivery = line.take(member, Deadline(None if due == float("inf") else due))
            buffer.add(delivery, _read(line, delivery))
            member.buffered = True
            due = buffer.due()
    except TimeoutError:
        pass  # due, or somebody waits for it


def _read(line: Line, delivery: Delivery) -> Event:
    """The event, made anew for each reader and attempt, so that nobody sees what another one did to it."""
    event = decode(line.topic, None, delivery.body)
    if delivery.attempt == 1:
        return event
    return build_event(
        event.topic,
        event.type,
        event.data,
        event.run_id,
        event.id,
        event.created_at,
        None,
        delivery.attempt,
        event.extra,
    )
