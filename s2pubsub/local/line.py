"""A line: the events of a topic that wait for one reader, or for the members of one group.

Members pull. Whoever is free takes the next event, and those who wait get one in the order in which they began to
wait; so members take turns, and one that is stuck holds up nothing but what it has in hand. Relies on the runtime's
deadlines only; not for decoding events or calling callbacks. Thread-safe; never takes another lock under its own.
"""

from __future__ import annotations

import threading
import time
from collections import deque

import attrs

from s2pubsub.local.delivery import Delivery, LineEnd, Member
from s2pubsub.local.options import Rules
from s2pubsub.runtime.deadline import Deadline
from s2pubsub.runtime.fork import inherited, reset_in_child
from s2pubsub.runtime.loop import Log


@attrs.define(eq=False)
class _Waiter:
    member: Member
    woken: threading.Condition
    delivery: Delivery | None = None


class Line:
    """The line of one plain reader (``group`` None), where taking an event settles it, or of one group."""

    def __init__(self, topic: str, group: str | None, rules: Rules, logger: Log) -> None:
        self.topic = topic
        self.group = group
        self._rules = rules
        self._logger = logger
        self._members: set[Member] = set()
        self._unsettled: dict[str, Delivery] = {}  # by event id: the current attempt, waiting or in hand
        self._pending: deque[Delivery] = deque()  # may hold settled ones, which are passed over
        self._pending_bytes = 0
        self._delayed: deque[tuple[float, Delivery]] = deque()  # in order of time, since the pause is always the same
        self._limits: deque[Delivery] = deque()  # begun, in order of time, for the same reason
        self._given_up: deque[Delivery] = deque()  # to be logged when the lock is free
        self._ended = False
        self._error: Exception | None = None
        self._make_locks()
        reset_in_child(self)

    def _make_locks(self) -> None:
        # Reentrant, since a finalizer of a dropped subscription may leave in the middle of one of our own calls.
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._progress = threading.Condition(self._lock)
        self._waiting: deque[_Waiter] = deque()  # if somebody waits here, nothing is pending
        self._room_waiters = 0
        self._flushers = 0

    # -- publishers ----------------------------------------------------------------------------------------------

    def put(self, event_id: str, body: bytes) -> None:
        """Add an event; nothing happens when the line has ended. Never waits: see ``full``."""
        with self._lock:
            if self._ended:
                return
            delivery = Delivery(event_id, body, time.monotonic())
            self._unsettled[event_id] = delivery
            self._append(delivery)
            self._match()

    def full(self) -> bool:
        """Whether a publisher should wait."""
        with self._lock:
            return self._full()

    def wait_for_room(self, deadline: Deadline) -> bool:
        """Wait until the line is not full, or has ended, and say whether that was before ``deadline``."""
        with self._lock:
            self._room_waiters += 1
            try:
                while self._full():
                    if not self._room.wait(deadline.remaining()) and deadline.expired:
                        return not self._full()
                return True
            finally:
                self._room_waiters -= 1

    # -- members -------------------------------------------------------------------------------------------------

    def join(self, member: Member) -> bool:
        """Add a member; False when the line has ended."""
        with self._lock:
            if self._ended:
                return False
            self._members.add(member)
            return True

    def leave(self, member: Member) -> None:
        """Remove a member. What it has in hand goes to the others; without others the line ends. Idempotent.

        The event whose callback runs at this moment stays with it: its outcome still counts.
        """
        with self._lock:
            if member.left:
                return
            member.left = True
            self._members.discard(member)
            self._wake(member)
            if not self._members:
                lost = self._end(None)
            else:
                lost = 0
                in_hand = [delivery for delivery in tuple(self._unsettled.values()) if delivery.member is member]
                for delivery in reversed(in_hand):  # each goes to the front
                    if not delivery.begun:
                        self._return(delivery)
                    elif member.iterates:
                        self._again(delivery, pause=0.0)
                self._match()
        self._log(lost)

    def take(self, member: Member, deadline: Deadline) -> Delivery:
        """Take the next event, waiting until ``deadline``.

        Raises:
            TimeoutError: nothing came in time; or a flush waits for what the member has in its buffer.
            LineEnd: the member has left.
        """
        try:
            with self._lock:
                return self._take(member, deadline)
        finally:
            self._log(0)

    def begin(self, delivery: Delivery) -> bool:
        """Begin to handle what was taken into a buffer. False: it is not the member's any more, leave it."""
        with self._lock:
            if delivery.member is None or delivery.member.left or not self._is_current(delivery):
                return False
            self._start(delivery)
            return True

    def settle(self, delivery: Delivery, done: bool) -> bool:
        """Say how the handling of ``delivery`` has ended: done, or to be delivered again. See ``answer``."""
        return self.answer(delivery.id, delivery.attempt, done)

    def answer(self, event_id: str, attempt: int, done: bool) -> bool:
        """Acknowledge (``done``) or refuse an attempt to deliver an event; say whether that made a difference.

        An event that is done is done, also when the answer comes after the limit and another member has it by now.
        A late refusal is not heard: the next attempt is on its way already.
        """
        try:
            with self._lock:
                current = self._unsettled.get(event_id)
                if current is None or current.attempt < attempt:
                    return False
                if done or self.group is None:
                    self._settled(event_id)
                elif current.attempt > attempt or current.member is None:
                    return False
                else:
                    self._again(current, self._rules.retry_pause)
                    self._match()
                return True
        finally:
            self._log(0)

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether all members have left, or ``end`` was called."""
        return self._ended

    @property
    def flushing(self) -> bool:
        """Whether somebody waits in ``flush``: buffers are delivered before their time."""
        return self._flushers > 0

    def __len__(self) -> int:
        """How many events wait."""
        return len(self._pending)

    def flush(self, deadline: Deadline) -> bool:
        """Wait until all events of now are settled, and say whether that was before ``deadline``.

        A line which is only iterated is not waited for: when its events are taken is up to the consumer.
        """
        with self._lock:
            ids = deque(self._unsettled)
            self._flushers += 1
            try:
                while not all(member.iterates for member in tuple(self._members)):
                    while ids and ids[0] not in self._unsettled:
                        ids.popleft()
                    if not ids:
                        return True
                    for waiter in tuple(self._waiting):
                        if waiter.member.buffered:
                            waiter.woken.notify()
                    if deadline.expired:
                        return False
                    self._progress.wait(deadline.remaining())
                return True
            finally:
                self._flushers -= 1

    def end(self, *, on_purpose: bool) -> None:
        """Discard what waits; every member's iteration ends. A group's loss is logged unless it is ``on_purpose``."""
        with self._lock:
            lost = self._end(None)
        self._log(0 if on_purpose else lost)

    # -- under the lock ------------------------------------------------------------------------------------------

    def _take(self, member: Member, deadline: Deadline) -> Delivery:
        self._refuse_departed(member)
        self._advance()
        if (delivery := self._next()) is not None:
            return self._hand_over(delivery, member)
        waiter = _Waiter(member, threading.Condition(self._lock))
        self._waiting.append(waiter)
        try:
            while (delivery := waiter.delivery) is None:
                if deadline.expired or self._is_wanted(member):
                    raise TimeoutError
                waiter.woken.wait(self._nap(deadline))
                self._refuse_departed(member)
                self._advance()
        except BaseException:  # also Ctrl-C, which may arrive together with an event
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif waiter.delivery is not None and self._is_current(waiter.delivery):
                self._return(waiter.delivery)
                self._match()
            raise
        return self._hand_over(delivery, member)

    def _refuse_departed(self, member: Member) -> None:
        if member.left or self._ended:
            raise LineEnd(self._error)

    def _is_wanted(self, member: Member) -> bool:
        return member.buffered and self._flushers > 0

    def _nap(self, deadline: Deadline) -> float | None:
        """How long nothing happens by itself."""
        at = [self._delayed[0][0]] if self._delayed else []
        if self._limits and self._limits[0].limit_at is not None:
            at.append(self._limits[0].limit_at)
        if not at:
            return deadline.remaining()
        return deadline.remaining_at_most(max(0.0, min(at) - time.monotonic()))

    def _hand_over(self, delivery: Delivery, member: Member) -> Delivery:
        delivery.member = member
        if self.group is None and member.iterates:
            self._settled(delivery.id)
        elif not member.batching:
            self._start(delivery)
        return delivery

    def _start(self, delivery: Delivery) -> None:
        delivery.begun = True
        if self._rules.handling_limit is not None and self.group is not None:
            delivery.limit_at = time.monotonic() + self._rules.handling_limit
            self._limits.append(delivery)
            if len(self._limits) == 1:
                self._rouse()

    def _rouse(self) -> None:
        """Have those who wait look at the clock again: something becomes due that they do not know of."""
        for waiter in tuple(self._waiting):
            waiter.woken.notify()

    def _advance(self) -> None:
        """Do what has become due, then give what is pending to those who wait."""
        now = time.monotonic()
        while self._delayed and self._delayed[0][0] <= now:
            self._append(self._delayed.popleft()[1])
        while self._limits:
            delivery = self._limits[0]
            if self._is_current(delivery):
                if delivery.limit_at is not None and delivery.limit_at > now:
                    break
                self._expire(delivery)
            self._limits.popleft()
        self._match()

    def _expire(self, delivery: Delivery) -> None:
        member = delivery.member
        self._again(delivery, pause=0.0)
        # Its member is stuck, so what lies in the member's buffer would wait there for nothing.
        for other in tuple(self._unsettled.values()):
            if other.member is member and not other.begun:
                self._return(other)

    def _match(self) -> None:
        while self._waiting and (delivery := self._next()) is not None:
            waiter = self._waiting.popleft()
            waiter.delivery = delivery
            delivery.member = waiter.member
            waiter.woken.notify()

    def _next(self) -> Delivery | None:
        found = None
        while self._pending and found is None:
            delivery = self._pending.popleft()
            self._pending_bytes -= len(delivery.body)
            if self._is_current(delivery):
                found = delivery
        if self._room_waiters and not self._full():
            self._room.notify_all()
        return found

    def _append(self, delivery: Delivery) -> None:
        self._pending.append(delivery)
        self._pending_bytes += len(delivery.body)

    def _return(self, delivery: Delivery) -> None:
        """Back to the front, as if it had never been given out."""
        again = Delivery(delivery.id, delivery.body, delivery.queued_at, delivery.attempt)
        self._unsettled[delivery.id] = again
        self._pending.appendleft(again)
        self._pending_bytes += len(again.body)

    def _again(self, delivery: Delivery, pause: float) -> None:
        """Deliver again after ``pause``, behind what waits, so that a failing event does not hold up the others."""
        limit = self._rules.max_attempts
        if limit is not None and delivery.attempt >= limit:
            self._given_up.append(delivery)
            self._settled(delivery.id)
            return
        now = time.monotonic()
        again = Delivery(delivery.id, delivery.body, now, delivery.attempt + 1)
        self._unsettled[delivery.id] = again
        if pause > 0:
            self._delayed.append((now + pause, again))
            if len(self._delayed) == 1:
                self._rouse()
        else:
            self._append(again)

    def _settled(self, event_id: str) -> None:
        del self._unsettled[event_id]
        if self._flushers:
            self._progress.notify_all()

    def _is_current(self, delivery: Delivery) -> bool:
        return self._unsettled.get(delivery.id) is delivery

    def _full(self) -> bool:
        return not self._ended and (
            len(self._pending) >= self._rules.queue_size or self._pending_bytes >= self._rules.queue_bytes
        )

    def _wake(self, member: Member | None) -> None:
        for waiter in tuple(self._waiting):
            if member is None or waiter.member is member:
                self._waiting.remove(waiter)
                waiter.woken.notify()

    def _end(self, error: Exception | None) -> int:
        """End the line; say how many events were not handled by anybody and will not be."""
        if self._ended:
            return 0
        self._ended = True
        self._error = error
        lost = sum(1 for d in tuple(self._unsettled.values()) if d.member is None or d.member.iterates or not d.begun)
        for member in tuple(self._members):
            member.left = True
        self._members.clear()
        self._wake(None)
        self._unsettled.clear()
        self._pending.clear()
        self._delayed.clear()
        self._limits.clear()
        self._pending_bytes = 0
        self._room.notify_all()
        self._progress.notify_all()
        return lost

    # -- without the lock ----------------------------------------------------------------------------------------

    def _log(self, lost: int) -> None:
        if lost and self.group is not None:
            message = "group %r of topic %r has ended and leaves %d events unhandled"
            self._logger.warning(message, self.group, self.topic, lost)
        while self._given_up:
            try:
                delivery = self._given_up.popleft()
            except IndexError:  # another thread logs it
                return
            message = "event %s of topic %r was given up: group %r did not handle it in %d attempts"
            self._logger.error(message, delivery.id, self.topic, self.group, delivery.attempt)

    def _reset_in_child(self) -> None:
        self._make_locks()
        self._end(inherited())
