"""A line: the events of a topic that wait for one reader, or for the members of one group.

Members pull. Whoever is free takes the next event, and those who wait get one in the order in which they began to
wait; so members take turns, and one that is stuck holds up nothing but what it has in hand. Not for decoding events
or calling callbacks. Thread-safe; never takes another lock under its own.
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
from s2pubsub.runtime.wake import Wake


@attrs.define(eq=False)
class _Waiter:
    member: Member
    wake: Wake = attrs.field(factory=Wake)
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
        self._bytes = 0  # of all unsettled
        self._delayed: deque[tuple[float, Delivery]] = deque()  # in order of time, since the pause is always the same
        self._limits: dict[str, Delivery] = {}  # begun, in order of time, for the same reason
        self._given_up: deque[Delivery] = deque()  # to be logged when the lock is free
        self._ended = False
        self._error: Exception | None = None
        self._make_locks()
        reset_in_child(self)

    def _make_locks(self) -> None:
        # A finalizer of a dropped subscription, or a signal handler, may leave in the middle of our own calls. So the
        # lock is reentrant, and whoever waits enlists first, then looks, and sleeps without the lock.
        self._lock = threading.RLock()
        self._waiting: deque[_Waiter] = deque()
        self._publishers: list[Wake] = []  # who wait for room
        self._flushers: list[Wake] = []

    # -- publishers ----------------------------------------------------------------------------------------------

    def put(self, event_id: str, body: bytes) -> None:
        """Add an event; nothing happens when the line has ended. Never waits: see ``full``."""
        with self._lock:
            if self._ended:
                return
            delivery = Delivery(event_id, body, time.monotonic())
            self._unsettled[event_id] = delivery
            self._bytes += len(body)
            self._pending.append(delivery)
            self._match()

    def full(self) -> bool:
        """Whether a publisher should wait."""
        with self._lock:
            return self._full()

    def wait_for_room(self, deadline: Deadline) -> bool:
        """Wait until the line is not full, or has ended, and say whether that was before ``deadline``."""
        wake = Wake()
        self._publishers.append(wake)
        try:
            with self._lock:
                self._rouse()
            while self.full():
                if deadline.expired:
                    return False
                wake.wait(deadline.remaining())
            return True
        finally:
            self._publishers.remove(wake)

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
            TimeoutError: nothing came in time; or somebody waits for what the member has in its buffer.
            LineEnd: the member has left.
        """
        try:
            with self._lock:
                self._refuse_departed(member)
                self._advance()
                if (delivery := self._next()) is not None:
                    return self._hand_over(delivery, member)
            return self._wait(member, deadline)
        finally:
            self._log(0)

    def begin(self, delivery: Delivery) -> bool:
        """Begin to handle what was taken into a buffer. False: it is not the member's any more, leave it."""
        with self._lock:
            if delivery.member is None or delivery.member.left or not self._is_current(delivery):
                return False
            self._start(delivery)
            return True

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
                    self._settle(event_id)
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
    def urgent(self) -> bool:
        """Whether somebody waits in ``flush`` or for room: buffers are delivered before their time."""
        return len(self._flushers) + len(self._publishers) > 0

    def __len__(self) -> int:
        """How many events wait."""
        return len(self._pending)

    def flush(self, deadline: Deadline) -> bool:
        """Wait until all events of now are settled, and say whether that was before ``deadline``.

        A line which is only iterated is not waited for: when its events are taken is up to the consumer.
        """
        wake = Wake()
        with self._lock:
            ids = deque(self._unsettled)
        self._flushers.append(wake)
        try:
            while True:
                with self._lock:
                    while ids and ids[0] not in self._unsettled:
                        ids.popleft()
                    if not ids or all(member.iterates for member in tuple(self._members)):
                        return True
                    self._rouse()  # to deliver what they have in buffers
                if deadline.expired:
                    return False
                wake.wait(deadline.remaining())
        finally:
            self._flushers.remove(wake)

    def end(self, *, on_purpose: bool) -> None:
        """Discard what waits; every member's iteration ends. A group's loss is logged unless it is ``on_purpose``."""
        with self._lock:
            lost = self._end(None)
        self._log(0 if on_purpose else lost)

    def _wait(self, member: Member, deadline: Deadline) -> Delivery:
        waiter = _Waiter(member)
        try:
            self._waiting.append(waiter)
            while True:
                with self._lock:
                    self._refuse_departed(member)
                    self._advance()
                    if waiter.delivery is not None:
                        return self._hand_over(waiter.delivery, member)
                    if deadline.expired or self._is_wanted(member):
                        raise TimeoutError
                    nap = self._nap(deadline)
                waiter.wake.wait(nap)
        except BaseException:  # also Ctrl-C, which may arrive together with an event
            with self._lock:
                self._withdraw(waiter)
            raise

    # -- under the lock ------------------------------------------------------------------------------------------

    def _withdraw(self, waiter: _Waiter) -> None:
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        elif waiter.delivery is not None and self._is_current(waiter.delivery):
            self._return(waiter.delivery)
            self._match()

    def _refuse_departed(self, member: Member) -> None:
        if member.left or self._ended:
            raise LineEnd(self._error)

    def _is_wanted(self, member: Member) -> bool:
        return member.buffered and self.urgent

    def _nap(self, deadline: Deadline) -> float | None:
        """How long nothing happens by itself."""
        at = [due for due, _ in tuple(self._delayed)[:1]]
        at += [delivery.limit_at for delivery in tuple(self._limits.values())[:1]]
        if not at:
            return deadline.remaining()
        return deadline.remaining_at_most(max(0.0, min(at) - time.monotonic()))

    def _hand_over(self, delivery: Delivery, member: Member) -> Delivery:
        delivery.member = member
        if self.group is None and member.iterates:
            self._settle(delivery.id)
        elif not member.batching:
            self._start(delivery)
        return delivery

    def _start(self, delivery: Delivery) -> None:
        delivery.begun = True
        if self._rules.handling_limit is not None and self.group is not None:
            delivery.limit_at = time.monotonic() + self._rules.handling_limit
            self._limits[delivery.id] = delivery
            if len(self._limits) == 1:
                self._rouse()

    def _rouse(self) -> None:
        """Have those who wait look again: something becomes due that they do not know of."""
        for waiter in tuple(self._waiting):
            waiter.wake.set()

    def _advance(self) -> None:
        """Do what has become due, then give what is pending to those who wait."""
        now = time.monotonic()
        while self._delayed and self._delayed[0][0] <= now:
            self._pending.append(self._delayed.popleft()[1])
        while self._limits:
            delivery = next(iter(self._limits.values()))
            if delivery.limit_at > now:
                break
            self._expire(delivery)
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
            waiter.wake.set()

    def _next(self) -> Delivery | None:
        while self._pending:
            delivery = self._pending.popleft()
            if self._is_current(delivery):
                return delivery
        return None

    def _return(self, delivery: Delivery) -> None:
        """Back to the front, as if it had never been given out."""
        again = Delivery(delivery.id, delivery.body, delivery.queued_at, delivery.attempt)
        self._unsettled[delivery.id] = again
        self._pending.appendleft(again)

    def _again(self, delivery: Delivery, pause: float) -> None:
        """Deliver again after ``pause``, behind what waits, so that a failing event does not hold up the others."""
        self._limits.pop(delivery.id, None)
        limit = self._rules.max_attempts
        if limit is not None and delivery.attempt >= limit:
            self._given_up.append(delivery)
            self._settle(delivery.id)
            return
        now = time.monotonic()
        again = Delivery(delivery.id, delivery.body, now, delivery.attempt + 1)
        self._unsettled[delivery.id] = again
        if pause > 0:
            self._delayed.append((now + pause, again))
            if len(self._delayed) == 1:
                self._rouse()
        else:
            self._pending.append(again)

    def _settle(self, event_id: str) -> None:
        self._bytes -= len(self._unsettled.pop(event_id).body)
        self._limits.pop(event_id, None)
        _wake_all(self._flushers)
        if self._publishers and not self._full():
            _wake_all(self._publishers)

    def _is_current(self, delivery: Delivery) -> bool:
        return self._unsettled.get(delivery.id) is delivery

    def _full(self) -> bool:
        rules = self._rules
        return not self._ended and (len(self._unsettled) >= rules.queue_size or self._bytes >= rules.queue_bytes)

    def _wake(self, member: Member | None) -> None:
        for waiter in tuple(self._waiting):
            if member is None or waiter.member is member:
                self._waiting.remove(waiter)
                waiter.wake.set()

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
        self._bytes = 0
        _wake_all(self._publishers)
        _wake_all(self._flushers)
        return lost

    # -- without the lock ----------------------------------------------------------------------------------------

    def _log(self, lost: int) -> None:
        if lost and self.group is not None:
            self._logger.warning("group %r ended with %d events of topic %r unhandled", self.group, lost, self.topic)
        while self._given_up:
            with self._lock:  # another thread may log it
                delivery = self._given_up.popleft() if self._given_up else None
            if delivery is None:
                return
            message = "event %s of topic %r was given up: group %r did not handle it in %d attempts"
            self._logger.error(message, delivery.id, self.topic, self.group, delivery.attempt)

    def _reset_in_child(self) -> None:
        self._make_locks()
        self._end(inherited())


def _wake_all(waiting: list[Wake]) -> None:
    for wake in tuple(waiting):
        wake.set()
