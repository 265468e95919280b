"""The state of a lease that is kept, and the thread that renews it.

The thread alone writes the lease's token; others ask it to. It knows the state, never the handle (``held_lease``), so
that a handle which nobody refers to any more is noticed. Relies on ``lease_register``.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Literal

import attrs

from s2pubsub.errors import ClosedError, LeaseLostError, OperationTimeoutError, S2PubSubError
from s2pubsub.lease_clock import Grant
from s2pubsub.lease_register import Denied, HaltedError, Register, Send
from s2pubsub.runtime.deadline import Deadline
from s2pubsub.runtime.fork import inherited, reset_in_child
from s2pubsub.runtime.loop import Log
from s2pubsub.runtime.wake import Wake
from s2pubsub.runtime.worker import Stop, Worker
from s2pubsub.topic import thread_name

_LOOK = 0.5
"""Seconds between two looks at the clocks: no wait notices that the wall clock was set or that the machine slept."""

_CLEAN_UP = 1.0
"""Seconds beyond its timeout that a request may take to end."""


@attrs.define(eq=False)
class Order:
    """What a caller wants the lease's thread to do, and the caller's wait for it."""

    what: Literal["renew", "transfer", "release"]
    deadline: Deadline
    to: str = ""
    done: Future[None] = attrs.field(factory=Future)

    def wait(self) -> None:
        """Wait until it is carried out; raise what went wrong."""
        try:
            self._result(self.deadline.remaining())
        except CancelledError:
            raise ClosedError("the lease was closed before it could be done") from None

    def _result(self, left: float | None) -> None:
        try:
            self.done.result(left)
        except TimeoutError:
            if not self.done.done() and self.done.cancel():
                raise OperationTimeoutError(f"the lease was busy: no time was left to {self.what} it") from None
        else:
            return
        # It is under way and has the same deadline, or has ended this moment.
        try:
            self.done.result(_CLEAN_UP)
        except TimeoutError:
            if self.done.done():
                raise  # the request's own
            raise OperationTimeoutError(f"the request to {self.what} the lease did not end in time") from None


class Holding:
    """The state of a held lease. ``grant`` is written by the lease's thread only.

    Args:
        register: the lease's; used by the thread alone from now on.
        grant: the token that took it.
        ttl_ms: lifetime in milliseconds that each renewal asks for.
        on_lost: called without arguments on the lease's thread.
        keep_alive: what must live as long as the thread: the client.
    """

    def __init__(
        self,
        register: Register,
        grant: Grant,
        ttl_ms: int,
        on_lost: Callable[[], object] | None,
        logger: Log,
        keep_alive: object,
    ) -> None:
        self.register = register
        self.owner = grant.owner
        self.grant = grant
        self.logger = logger
        self.over: S2PubSubError | None = None
        self.lost = threading.Event()
        self._ttl_ms = ttl_ms
        self._on_lost = on_lost
        self._keep_alive = keep_alive
        self._lock = threading.RLock()  # reentrant, since a finalizer may release in the middle of a call
        self._orders: deque[Order] = deque()
        self._wake = Wake()
        self._patience = Stop()  # never set: an order ends by its deadline
        self._left = False  # the thread takes no orders any more
        self._obeying = False  # what is being done was ordered
        self._own_send = register.send
        self._on_over: Callable[[S2PubSubError], object] | None = None
        self._renew_at = self._next_renewal()
        self._failure: Exception | None = None
        self._worker: Worker | None = None
        reset_in_child(self)

    # -- any thread ----------------------------------------------------------------------------------------------

    def start(self, on_end: Callable[[Holding], None]) -> None:
        """Start the thread; it calls ``on_end`` last."""
        self._worker = Worker(thread_name("lease", self.register.key), _keep, self, on_end)
        self._worker.start()

    def state(self) -> S2PubSubError | None:
        """None while the lease is held, else why it is not. Looks at the clocks."""
        if self.over is None and self.grant.is_over(self.register.clock):
            self._lose_by_time()
        return self.over

    def end(self, error: S2PubSubError) -> bool:
        """Say why the lease is not held any more; the first reason stays. Whether this was it."""
        with self._lock:
            if self.over is not None:
                return False
            self.over = error
        if isinstance(error, LeaseLostError):
            self.lost.set()
        if self._on_over is not None:
            self._on_over(error)
        self._wake.set()
        return True

    def attach(self, make_send: Callable[[Send], Send], on_over: Callable[[S2PubSubError], object]) -> None:
        """See ``HeldLease.attach``."""
        with self._lock:
            if self._on_over is not None:
                raise ValueError(f"lease {self.register.key!r} has a publisher already; several threads may share it")
            self._on_over = on_over
            self.register.send = make_send(self._own_send)

    def detach(self) -> None:
        """See ``HeldLease.detach``."""
        with self._lock:
            self._on_over = None
            self.register.send = self._own_send

    def ask(self, order: Order) -> None:
        """Have ``order`` carried out and wait for it."""
        with self._lock:
            error = self.state()
            if error is None:
                self._orders.append(order)
        if error is not None:
            raise copy.copy(error)
        self._wake.set()
        order.wait()

    def begin_release(self, deadline: Deadline, reason: str) -> Order | None:
        """Let nobody take the lease for held any more and have the server told. None: it was over already."""
        order = Order("release", deadline)
        with self._lock:
            if self.state() is not None or not self.end(ClosedError(reason)) or self._left:
                return None
            self._orders.append(order)
        self._wake.set()
        return order

    def join(self, deadline: Deadline) -> None:
        """Wait for the thread."""
        if self._worker is not None:
            self._worker.finish(deadline)

    def _reset_in_child(self) -> None:
        self._lock = threading.RLock()
        self._wake = Wake()
        self._orders.clear()
        self._worker = None
        self.lost = threading.Event()
        self.lost.set()  # whoever works as long as it is not set has to stop
        self._left = True
        if self.over is None:
            self.over = inherited()

    # -- the lease's thread --------------------------------------------------------------------------------------

    def keep(self) -> None:
        """Renew and obey until it is over."""
        clock = self.register.clock
        while True:
            with self._lock:
                order = self._orders.popleft() if self._orders else None
                if order is None and self.state() is not None:
                    self._left = True
                    return
            if order is not None:
                if order.done.running() or order.done.set_running_or_notify_cancel():
                    self._obeying = True
                    self._obey(order)
                    self._obeying = False
                continue
            due = self._renew_at - clock.boot()
            if due <= 0:
                self._renew_in_time()
            else:
                self._wake.wait(max(0.0, min(_LOOK, due, self.grant.remaining(clock))))

    def finish(self) -> None:
        """If it was lost, say so and call ``on_lost``."""
        if not isinstance(self.over, LeaseLostError):
            return
        self.logger.warning("lease %r of %r is lost: %s", self.register.key, self.owner, self.over.reason)
        if self._on_lost is not None:
            try:
                self._on_lost()
            except BaseException as error:  # SystemExit too: a hook cannot end our thread silently
                self.logger.error("the on_lost hook of lease %r raised", self.register.key, exc_info=error)

    def is_set(self) -> bool:
        """As the halt of a renewal: whether something else is to be done first. Ordered ones take turns."""
        with self._lock:
            first = any(not self._obeying or order.what != "renew" for order in self._orders)
        return first or self.state() is not None

    def wait(self, timeout: float | None = None) -> None:
        """As the halt of a renewal: wait, but not longer than until the next look at the clocks."""
        self._wake.wait(_LOOK if timeout is None else min(timeout, _LOOK))

    def _renew_in_time(self) -> None:
        clock = self.register.clock
        try:
            self._extend(Deadline.after(max(0.0, self.grant.remaining(clock))), self.owner)
        except HaltedError:
            pass  # it goes on when what is to be done first is done
        except LeaseLostError:
            pass  # `lost` says so
        except ClosedError as error:
            self._failure = error
            self._renew_at = self.grant.ends_at
        except S2PubSubError as error:
            self._failure = error
            self._renew_at = clock.boot() + min(1.0, self._ttl_ms / 10_000)

    def _obey(self, order: Order) -> None:
        try:
            if order.what == "release":
                if not self.grant.is_over(self.register.clock):
                    self.register.free(self.owner, self.grant.text, order.deadline, self._patience)
            else:
                error = self.state()
                if error is not None:
                    raise copy.copy(error)
                left = order.deadline.remaining_at_most(max(0.0, self.grant.remaining(self.register.clock)))
                self._extend(Deadline.after(left), order.to or self.owner)
        except HaltedError:
            with self._lock:
                over = self.state()
                if over is None:
                    self._orders.append(order)  # behind what is to be done first
            if over is not None:
                order.done.set_exception(copy.copy(over))
        except BaseException as error:  # noqa: BLE001  # the caller gets it, whatever it is
            order.done.set_exception(error)
        else:
            order.done.set_result(None)

    def _extend(self, deadline: Deadline, to: str) -> None:
        """Renew, or transfer to somebody else, and note the result. Raises LeaseLostError if it is not ours."""
        halt = self if to == self.owner else self._patience
        while True:
            result = self.register.extend(self.owner, to, self._ttl_ms, self.grant.text, deadline, halt)
            if isinstance(result, Denied):
                raise self._lose(_why(result, self.owner))
            if result.owner != self.owner:
                self.end(ClosedError(f"the lease was transferred to {result.owner!r}"))
                if result.owner != to:
                    raise ClosedError(f"the lease was transferred to {result.owner!r} before")
                return
            self.grant = result
            self._renew_at = self._next_renewal()
            self._failure = None
            if to == self.owner:
                return
            # That was an earlier renewal whose answer had been lost; the transfer is still to be made.

    def _next_renewal(self) -> float:
        return self.grant.ends_at - self._ttl_ms / 1000 * 2 / 3

    def _lose_by_time(self) -> None:
        failure = self._failure
        self._lose("its lifetime is over" + (f"; renewing failed: {failure}" if failure else ""))

    def _lose(self, reason: str) -> LeaseLostError:
        error = LeaseLostError(self.register.key, self.owner, reason)
        self.end(error)
        return error


def _why(denied: Denied, owner: str) -> str:
    if denied.token is None:
        return "it was released or its topic was cleared"
    if denied.token.owner == owner:
        return "its lifetime is over"
    return f"{denied.token.owner!r} has taken it"


def _keep(holding: Holding, on_end: Callable[[Holding], None]) -> None:
    """The thread's whole life."""
    try:
        holding.keep()
        holding.finish()
    finally:
        on_end(holding)
