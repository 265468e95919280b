"""A lease that is kept: its handle, and the thread that renews it.

The thread alone writes the lease's token; the handle asks it to. It knows the state, never the handle, so that a
handle which nobody refers to any more is noticed. Relies on ``lease_register``. Not for taking a lease (``leases``).
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from datetime import datetime
from types import TracebackType
from typing import Literal, Self

import attrs

from s2pubsub.errors import ClosedError, LeaseLostError, OperationTimeoutError, S2PubSubError
from s2pubsub.fence import check_owner
from s2pubsub.lease_register import Denied, Grant, HaltedError, Register, Send
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

_CLOSE_LIMIT = 1.0
"""Seconds in which a closing client frees its leases; those that are not freed end with their lifetime."""


class HeldLease:
    """A lease that this process holds and renews. Made by ``S2LeaseProvider.hold``; thread-safe.

    It ends by ``release``, ``transfer``, ``close`` or the end of a ``with`` block, and with its client; a handle that
    is dropped ends its lease, too. It is lost when the server names another holder, or when its lifetime has run out
    by the wall clock or by the clock that goes on while the machine sleeps. Then ``lost`` is set, ``on_lost`` is
    called, and ``check`` raises.
    """

    def __init__(self, holding: Holding) -> None:
        self._holding = holding

    @property
    def key(self) -> str:
        """The lease's name."""
        return self._holding.register.key

    @property
    def owner(self) -> str:
        """In whose name it is held."""
        return self._holding.owner

    @property
    def expires_at(self) -> datetime:
        """When it ends unless it is renewed again, aware."""
        return self._holding.grant.expires_at

    @property
    def token(self) -> str:
        """The fencing token that the last renewal wrote."""
        return self._holding.grant.text

    @property
    def lost(self) -> threading.Event:
        """Set when the lease is lost; not when it is given up."""
        return self._holding.lost

    @property
    def closed(self) -> bool:
        """Whether it is not held any more, for whatever reason."""
        return self._holding.state() is not None

    def check(self) -> None:
        """Return if the lease is held at this moment by both clocks. No request is made.

        Raises:
            LeaseLostError: it was lost.
            ClosedError: it was released, transferred or closed, or this is a child forked from its process.
        """
        error = self._holding.state()
        if error is not None:
            raise copy.copy(error)

    def renew(self, *, timeout: float | None = 30.0) -> None:
        """Renew now, for example before a step that cannot look at ``lost``.

        Raises:
            LeaseLostError, ClosedError: it is not held any more.
            StoreError, OperationTimeoutError: the server could not be asked; the lease is held until ``expires_at``.
        """
        self._holding.ask(Order("renew", Deadline.after(timeout)))

    def transfer(self, to: str, *, timeout: float | None = 30.0) -> None:
        """Give the lease to ``to``, for the same lifetime and without a moment in which nobody has it.

        Raises:
            LeaseLostError, ClosedError: it is not held any more.
            StoreError, OperationTimeoutError: the server could not be asked; if the transfer was stored all the same,
                the next renewal finds out and ends this handle.
            ValueError, TypeError: ``to`` cannot own a lease.
        """
        check_owner(to)
        self._holding.ask(Order("transfer", Deadline.after(timeout), to))

    def attach(self, make_send: Callable[[Send], Send], on_over: Callable[[S2PubSubError], object]) -> str:
        """For a fenced publisher of the lease's own topic: let it write the tokens, in order with its events.

        Args:
            make_send: gets what has written tokens so far, returns what writes them from now on.
            on_over: called once with the reason when the lease is not held any more; must be quick and not raise.

        Returns:
            the token in force; a renewal that is under way may replace it by another one of the same owner.

        Raises:
            ValueError: another publisher is attached.
        """
        self.check()
        self._holding.attach(make_send, on_over)
        return self.token

    def detach(self) -> None:
        """End ``attach``."""
        self._holding.detach()

    def mark_lost(self, reason: str) -> None:
        """For a publisher whose append was refused, since the token is not in force any more."""
        self._holding.end(LeaseLostError(self.key, self.owner, reason))

    def release(self, *, timeout: float | None = 5.0) -> None:
        """Give the lease up; nothing happens if it is not held any more.

        Raises:
            StoreError, OperationTimeoutError: the server could not be told; the lease ends by its lifetime.
        """
        order = self._holding.begin_release(Deadline.after(timeout), "the lease was released")
        if order is not None:
            order.wait()

    def close(self, timeout: float | None = 5.0) -> None:
        """``release`` that logs a failure instead of raising it, and waits for the thread. Idempotent."""
        deadline = Deadline.after(timeout)
        try:
            self.release(timeout=timeout)
        except S2PubSubError as error:
            self._holding.logger.warning("lease %r was not released, it ends by its lifetime: %s", self.key, error)
        self._holding.join(deadline)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        holding = getattr(self, "_holding", None)
        if holding is not None and holding.begin_release(Deadline.after(_CLOSE_LIMIT), "the handle was dropped"):
            warnings.warn(f"{self!r} was dropped unclosed, so it is released", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        over = self._holding.over
        state = "held" if over is None else "lost" if isinstance(over, LeaseLostError) else "closed"
        return f"<HeldLease {self.key!r} of {self.owner!r}, {state}>"


@attrs.define(eq=False)
class Order:
    """What a caller wants the lease's thread to do, and the caller's wait for it."""

    what: Literal["renew", "transfer", "release"]
    deadline: Deadline
    to: str = ""
    done: Future[None] = attrs.field(factory=Future)

    def wait(self) -> None:
        """Wait until it is carried out; raise what went wrong."""
        left = self.deadline.remaining()
        try:
            self.done.result(None if left is None else left + (_CLEAN_UP if self.done.running() else 0))
        except CancelledError:
            raise ClosedError("the lease was closed before it could be done") from None
        except TimeoutError:
            if self.done.done():
                raise  # the request's own
            if self.done.cancel():
                raise OperationTimeoutError(f"the lease was busy: no time was left to {self.what} it") from None
            self.done.result(_CLEAN_UP)


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
                if order.done.set_running_or_notify_cancel():
                    self._obey(order)
                continue
            due = self._renew_at - clock.boot()
            if due <= 0:
                self._renew_in_time()
            else:
                self._wake.wait(max(0.0, min(_LOOK, due, self.grant.remaining(clock))))

    def finish(self) -> None:
        """Call ``on_lost`` if it was lost."""
        if isinstance(self.over, LeaseLostError) and self._on_lost is not None:
            try:
                self._on_lost()
            except BaseException as error:  # SystemExit too: a hook cannot end our thread silently
                self.logger.error("the on_lost hook of lease %r raised", self.register.key, exc_info=error)

    def is_set(self) -> bool:
        """As the halt of a renewal: whether something else is to be done first."""
        return bool(self._orders) or self.state() is not None

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


class HeldLeases:
    """The leases that one client holds. Thread-safe."""

    def __init__(self) -> None:
        self._closing = False
        self._reset_in_child()
        reset_in_child(self)

    def _reset_in_child(self) -> None:
        self._lock = threading.RLock()
        self._holdings: set[Holding] = set()

    def __len__(self) -> int:
        with self._lock:
            return sum(holding.over is None for holding in self._holdings)

    def begin(self, holding: Holding) -> HeldLease:
        """Start to keep a lease.

        Raises:
            ClosedError: the client is closed; the lease ends by its lifetime.
        """
        with self._lock:
            if self._closing:
                raise ClosedError("the client is closed")
            self._holdings.add(holding)
        try:
            holding.start(self._forget)
        except BaseException:
            self._forget(holding)
            raise
        return HeldLease(holding)

    def _forget(self, holding: Holding) -> None:
        with self._lock:
            self._holdings.discard(holding)

    def release(self, deadline: Deadline) -> None:
        """Free all leases, as far as the server can be told in a second."""
        with self._lock:
            self._closing = True
            holdings = list(self._holdings)
        limit = Deadline.after(deadline.remaining_at_most(_CLOSE_LIMIT))
        orders = [(holding, holding.begin_release(limit, "the client is closed")) for holding in holdings]
        for holding, order in orders:
            if order is None:
                continue
            try:
                order.wait()
            except S2PubSubError as error:
                holding.logger.debug("lease %r ends by its lifetime: %s", holding.register.key, error)

    def join(self, deadline: Deadline) -> None:
        """Wait for the threads."""
        with self._lock:
            holdings = list(self._holdings)
        for holding in holdings:
            holding.join(deadline)
