"""A lease that is kept: its handle, and all that one client holds.

Relies on ``lease_holding``, whose thread renews. Not for taking a lease (``leases``).
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from datetime import datetime
from functools import partial

from s2pubsub import tracing
from s2pubsub.errors import ClosedError, LeaseLostError, S2PubSubError
from s2pubsub.fence import check_owner
from s2pubsub.lease_holding import Holding, Order
from s2pubsub.lease_register import Send
from s2pubsub.runtime.closing import Closing
from s2pubsub.runtime.deadline import Deadline
from s2pubsub.runtime.fork import reset_in_child

_CLOSE_LIMIT = 1.0
"""Seconds in which a closing client frees its leases; those that are not freed end with their lifetime."""


class HeldLease(Closing):
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

    def __del__(self) -> None:
        holding = getattr(self, "_holding", None)
        if holding is not None and holding.begin_release(Deadline.after(_CLOSE_LIMIT), "the handle was dropped"):
            warnings.warn(f"{self!r} was dropped unclosed, so it is released", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        over = self._holding.over
        state = "held" if over is None else "lost" if isinstance(over, LeaseLostError) else "closed"
        return f"<HeldLease {self.key!r} of {self.owner!r}, {state}>"


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
        tracer = tracing.tracer
        work = None if tracer is None else tracer.lease(holding.register.key, holding.owner)
        try:
            holding.start(self._forget if work is None else partial(self._forget_traced, work))
        except BaseException:
            self._forget(holding)
            raise
        return HeldLease(holding)

    def _forget(self, holding: Holding) -> None:
        with self._lock:
            self._holdings.discard(holding)

    def _forget_traced(self, work: tracing.Work, holding: Holding) -> None:
        self._forget(holding)
        lost = isinstance(holding.over, LeaseLostError)
        work.note(outcome="lost" if lost else "released")
        work.end(holding.over if lost else None)

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
