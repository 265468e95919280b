"""Leases among the threads of one process, with the interface of ``S2LeaseProvider``.

The same arguments are valid, so that code tried here works on S2. A lease that is held by a handle needs no renewal:
it lasts as long as the handle, since holder and contenders live and stop together.
"""

from __future__ import annotations

import copy
import threading
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import attrs

from s2pubsub.errors import ClosedError, LeaseLostError, LeaseUnavailableError, S2PubSubError
from s2pubsub.fence import check_owner, check_ttl
from s2pubsub.lease_types import LeaseResult
from s2pubsub.runtime.closing import Closing
from s2pubsub.runtime.deadline import Deadline
from s2pubsub.runtime.fork import inherited, reset_in_child
from s2pubsub.runtime.loop import Log
from s2pubsub.runtime.wake import Wake
from s2pubsub.topic import thread_topic

_SWEEP = 64
"""Leases that are kept before those that are over are looked for."""

_LONGEST = 1e9
"""Seconds (thirty years) that a lease may last, so that its end is a date."""


@attrs.define(eq=False)
class _Lease:
    owner: str
    ends_at: float
    ttl: float
    holdings: set[_Holding] = attrs.field(factory=set)


@attrs.define(eq=False)
class _Holding:
    """What a handle and the provider share."""

    key: str
    owner: str
    ttl: float
    on_lost: Callable[[], object] | None
    lost: threading.Event = attrs.field(factory=threading.Event)
    over: S2PubSubError | None = None

    def _reset_in_child(self) -> None:
        self.lost = threading.Event()
        self.lost.set()  # whoever works as long as it is not set has to stop
        if self.over is None:
            self.over = inherited()


class LocalLeaseProvider:
    """Leases of one process. Made by ``LocalPubSub``; thread-safe.

    ``key`` is any text. An ``owner`` is a lower-case UUID or at most 16 bytes of UTF-8. ``ttl`` is in seconds. Every
    call may raise ``ValueError`` and ``TypeError`` for an argument that does not fit, and ``ClosedError``. Nothing is
    waited for but in ``hold``, so ``timeout`` has no effect elsewhere.
    """

    def __init__(self, logger: Log, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._closed = False
        self._sweep_at = _SWEEP
        self._reset()
        reset_in_child(self)

    def _reset(self) -> None:
        # Reentrant, since a finalizer of a dropped handle may free its lease in the middle of a call.
        self._lock = threading.RLock()
        self._waiting: list[Wake] = []
        self._leases: dict[str, _Lease] = {}

    # -- single requests -----------------------------------------------------------------------------------------

    def acquire_lease(self, key: str, owner: str, ttl: float, *, timeout: float | None = 30.0) -> LeaseResult:
        """Take the lease if nobody else holds it; the holder itself renews it so.

        Returns:
            whether ``owner`` holds it now; if not, who does.
        """
        self._check(key, owner, ttl)
        with self._lock:
            lease = self._take(key, owner, ttl)
            return LeaseResult(acquired=lease.owner == owner, owner=lease.owner, expires_at=self._expires_at(lease))

    def get_lease_owner(self, key: str, *, timeout: float | None = 30.0) -> str | None:
        """Who holds the lease; None if nobody does."""
        thread_topic(key)
        with self._lock:
            lease = self._live(key)
            return None if lease is None else lease.owner

    def renew_lease(self, key: str, owner: str, ttl: float, *, timeout: float | None = 30.0) -> bool:
        """Let the lease of ``owner`` last for ``ttl`` from now. False: ``owner`` does not hold it (any more)."""
        self._check(key, owner, ttl)
        with self._lock:
            lease = self._of(key, owner)
            if lease is not None:
                lease.ttl, lease.ends_at = ttl, self._clock() + ttl
            return lease is not None

    def transfer_lease(
        self, key: str, from_owner: str, to_owner: str, ttl: float, *, timeout: float | None = 30.0
    ) -> bool:
        """Give the lease of ``from_owner`` to ``to_owner`` for ``ttl``, without a moment in which nobody has it.

        False: ``from_owner`` does not hold it.
        """
        check_owner(from_owner)
        self._check(key, to_owner, ttl)
        with self._lock:
            lease = self._of(key, from_owner)
            if lease is None:
                return False
            if from_owner == to_owner:
                return self.renew_lease(key, from_owner, ttl)
            self._leases[key] = _Lease(to_owner, self._clock() + ttl, ttl)
            self._wake_all()
            ended = _end(lease, lambda h: LeaseLostError(key, h.owner, f"it was transferred to {to_owner!r}"))
        self._tell(ended)
        return True

    def release_lease(self, key: str, owner: str, *, timeout: float | None = 30.0) -> bool:
        """Free the lease of ``owner``. False, and nothing happens: ``owner`` does not hold it."""
        check_owner(owner)
        thread_topic(key)
        with self._lock:
            lease = self._of(key, owner)
            if lease is None:
                return False
            ended = self._free(key, lease)
        self._tell(ended)
        return True

    def thread_topic(self, key: str) -> str:
        """The topic of the conversation ``key``. Nothing of the lease is written there."""
        return thread_topic(key)

    # -- holding -------------------------------------------------------------------------------------------------

    def hold(
        self,
        key: str,
        owner: str,
        ttl: float,
        timeout: float | None = 0.0,
        on_lost: Callable[[], object] | None = None,
    ) -> LocalHeldLease:
        """Take the lease and keep it until the handle is closed. No thread is needed for it.

        Args:
            key: any text.
            owner: as for ``acquire_lease``.
            ttl: seconds for which the lease lasts when it is transferred.
            timeout: seconds to wait while somebody else holds it; None waits for ever, 0 asks once.
            on_lost: called without arguments, once, on the thread that takes the lease away: somebody called
                ``transfer_lease`` or ``release_lease`` in this owner's name.

        Raises:
            LeaseUnavailableError: ``holder`` has it.
        """
        if on_lost is not None and not callable(on_lost):
            raise TypeError(f"on_lost must be callable, not {on_lost!r}")
        self._check(key, owner, ttl)
        deadline = Deadline.after(timeout)
        wake = Wake()
        self._waiting.append(wake)  # first: a lease that is freed after the look below is not missed
        try:
            while True:
                with self._lock:
                    lease = self._take(key, owner, ttl)
                    if lease.owner == owner:
                        return LocalHeldLease(self, self._add_holding(lease, key, ttl, on_lost))
                    if deadline.expired:
                        raise LeaseUnavailableError(key, lease.owner)
                    left = None if lease.holdings else max(0.0, lease.ends_at - self._clock())
                wake.wait(deadline.remaining() if left is None else deadline.remaining_at_most(left))
        finally:
            self._waiting.remove(wake)

    def _add_holding(self, lease: _Lease, key: str, ttl: float, on_lost: Callable[[], object] | None) -> _Holding:
        holding = _Holding(key, lease.owner, ttl, on_lost)
        reset_in_child(holding)
        lease.holdings.add(holding)
        return holding

    def _wake_all(self) -> None:
        for wake in tuple(self._waiting):
            wake.set()

    def close(self) -> None:
        """End all leases and the waiting for them. Idempotent."""
        with self._lock:
            self._closed = True
            for lease in self._leases.values():
                _end(lease, lambda _: ClosedError("the local transport is closed"))
            self._leases.clear()
            self._wake_all()

    def _give_up(self, holding: _Holding, error: S2PubSubError) -> bool:
        """End a holding and free its lease; False if it was over."""
        with self._lock:
            if holding.over is not None:
                return False
            holding.over = error
            lease = self._leases[holding.key]
            lease.holdings.discard(holding)
            ended = self._free(holding.key, lease)
        self._tell(ended)
        return True

    def _hand_on(self, holding: _Holding, to: str) -> None:
        with self._lock:
            _refuse_over(holding)
            if to == holding.owner:
                return
            holding.over = ClosedError(f"the lease was transferred to {to!r}")
            self._leases[holding.key].holdings.discard(holding)
            self.transfer_lease(holding.key, holding.owner, to, holding.ttl)

    # -- parts ---------------------------------------------------------------------------------------------------

    def _check(self, key: str, owner: str, ttl: float) -> None:
        thread_topic(key)
        check_owner(owner)
        check_ttl(ttl)
        if ttl >= _LONGEST:
            raise ValueError(f"ttl must be below {_LONGEST:.0e} seconds, got {ttl!r}")

    def _take(self, key: str, owner: str, ttl: float) -> _Lease:
        """The lease, of ``owner`` if it was free or had this owner."""
        lease = self._live(key)
        if lease is None:
            if len(self._leases) >= self._sweep_at:
                for other in list(self._leases):
                    self._live(other)
                self._sweep_at = max(_SWEEP, 2 * len(self._leases))
            lease = self._leases[key] = _Lease(owner, self._clock() + ttl, ttl)
        elif lease.owner == owner:
            lease.ttl, lease.ends_at = ttl, self._clock() + ttl
        return lease

    def _live(self, key: str) -> _Lease | None:
        if self._closed:
            raise ClosedError("the local transport is closed")
        lease = self._leases.get(key)
        if lease is not None and not lease.holdings and lease.ends_at <= self._clock():
            del self._leases[key]
            return None
        return lease

    def _of(self, key: str, owner: str) -> _Lease | None:
        lease = self._live(key)
        return lease if lease is not None and lease.owner == owner else None

    def _free(self, key: str, lease: _Lease) -> list[_Holding]:
        del self._leases[key]
        self._wake_all()
        return _end(lease, lambda h: LeaseLostError(key, h.owner, "it was released"))

    def _expires_at(self, lease: _Lease) -> datetime:
        left = lease.ttl if lease.holdings else lease.ends_at - self._clock()
        return datetime.now(UTC) + timedelta(seconds=left)

    def _tell(self, ended: list[_Holding]) -> None:
        for holding in ended:
            if holding.on_lost is not None:
                try:
                    holding.on_lost()
                except BaseException as error:  # it must not fail the one who took the lease
                    self._logger.error("the on_lost hook of lease %r raised", holding.key, exc_info=error)

    def _reset_in_child(self) -> None:
        self._reset()


class LocalHeldLease(Closing):
    """A lease that a handle keeps. Made by ``LocalLeaseProvider.hold``; thread-safe.

    It ends by ``release``, ``transfer``, ``close`` or the end of a ``with`` block, and with its transport; a handle
    that is dropped frees its lease. It is lost when somebody else ends it in its owner's name. Then ``lost`` is set,
    ``on_lost`` is called, and ``check`` raises.
    """

    def __init__(self, provider: LocalLeaseProvider, holding: _Holding) -> None:
        self._provider = provider
        self._holding = holding

    @property
    def key(self) -> str:
        """The lease's name."""
        return self._holding.key

    @property
    def owner(self) -> str:
        """In whose name it is held."""
        return self._holding.owner

    @property
    def expires_at(self) -> datetime:
        """A lifetime from now while it is held, aware: it has no end of its own."""
        return datetime.now(UTC) + timedelta(seconds=0 if self.closed else self._holding.ttl)

    @property
    def lost(self) -> threading.Event:
        """Set when the lease is lost; not when it is given up."""
        return self._holding.lost

    @property
    def closed(self) -> bool:
        """Whether it is not held any more, for whatever reason."""
        return self._holding.over is not None

    def check(self) -> None:
        """Return if the lease is held at this moment.

        Raises:
            LeaseLostError: it was lost.
            ClosedError: it was released, transferred or closed, or this is a child forked from its process.
        """
        _refuse_over(self._holding)

    def renew(self, *, timeout: float | None = 30.0) -> None:
        """``check``: there is nothing to renew."""
        _refuse_over(self._holding)

    def transfer(self, to: str, *, timeout: float | None = 30.0) -> None:
        """Give the lease to ``to``, for the same lifetime and without a moment in which nobody has it.

        Raises:
            LeaseLostError, ClosedError: it is not held any more.
            ValueError, TypeError: ``to`` cannot own a lease.
        """
        check_owner(to)
        self._provider._hand_on(self._holding, to)

    def release(self, *, timeout: float | None = 5.0) -> None:
        """Give the lease up; nothing happens if it is not held any more."""
        self._provider._give_up(self._holding, ClosedError("the lease was released"))

    def close(self, timeout: float | None = 5.0) -> None:
        """``release``. Idempotent."""
        self.release()

    def __del__(self) -> None:
        holding = getattr(self, "_holding", None)
        if holding is not None and self._provider._give_up(holding, ClosedError("the handle was dropped")):
            warnings.warn(f"{self!r} was dropped unclosed, so it is released", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        over = self._holding.over
        state = "held" if over is None else "lost" if isinstance(over, LeaseLostError) else "closed"
        return f"<LocalHeldLease {self.key!r} of {self.owner!r}, {state}>"


def _refuse_over(holding: _Holding) -> None:
    if holding.over is not None:
        raise copy.copy(holding.over)


def _end(lease: _Lease, why: Callable[[_Holding], S2PubSubError]) -> list[_Holding]:
    """End all holdings of ``lease``; return them, so that they can be told without the lock."""
    ended = []
    for holding in tuple(lease.holdings):
        if holding.over is None:
            holding.over = why(holding)
            if isinstance(holding.over, LeaseLostError):
                holding.lost.set()
            ended.append(holding)
    lease.holdings.clear()
    return ended
