"""Leases: who may do a piece of work, agreed on by processes in Python and TypeScript.

A lease of key K is the fencing token of the stream of topic ``thread_topic(K)``: owner, expiry and a nonce. It is
taken and changed by conditional appends of fence records (``lease_register``). Events appended to the same topic
carry no condition, so publishing never conflicts with leases.

Expiries are compared between processes: keep their clocks synchronized and lifetimes well above the difference. A
lease says who should work, but cannot stop somebody who has been paused: check before each step. Do not clear the
topic while it is in use, that frees the lease.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random, SystemRandom
from typing import TypeVar

from s2pubsub.errors import ClosedError, LeaseLostError, LeaseUnavailableError, OperationTimeoutError, StoreError
from s2pubsub.fence import MAX_EXPIRY_MS, Token, check_owner, check_ttl, decode_token
from s2pubsub.held_lease import HeldLease, HeldLeases
from s2pubsub.lease_clock import SYSTEM_CLOCK, Clock, Grant, expiry_date
from s2pubsub.lease_holding import Holding
from s2pubsub.lease_register import Denied, HaltedError, Register
from s2pubsub.lease_types import LeaseResult
from s2pubsub.runtime.deadline import Deadline
from s2pubsub.runtime.loop import Log
from s2pubsub.runtime.worker import Stop
from s2pubsub.store import Store
from s2pubsub.topic import stream_name, thread_topic

T = TypeVar("T")

_ASK_LIMIT = 5.0
"""Seconds in which ``hold`` without a timeout must have its answer."""

_LAST_ASK = 1.0
"""Seconds that a question gets which begins shortly before the end of ``hold``'s timeout."""

_PAUSE, _PAUSE_GROWTH, _PAUSE_MAX = 0.1, 1.5, 1.0
"""Seconds between two questions of a waiting ``hold``, each with jitter."""

_PAST_EXPIRY = 0.05
"""Waiters ask within so many seconds after the holder's lease has ended."""


class S2LeaseProvider:
    """Leases on an S2 basin. Made by ``S2PubSub.get_lease_provider``; thread-safe.

    ``key`` is any text whose ``thread_topic`` makes a stream name of at most 512 bytes. An ``owner`` is a lower-case
    UUID or at most 16 bytes of UTF-8. ``ttl`` is in seconds; a lifetime counts from before its request was sent.
    Every call may raise, besides what it names: ``ValueError`` and ``TypeError`` for an argument that does not fit,
    ``StoreError`` and ``OperationTimeoutError`` when the server could not be asked, ``ClosedError``. An error never
    means that the lease is free; one whose ``outcome`` is ``'unknown'`` may have changed it.
    """

    def __init__(
        self,
        store: Store,
        stream_prefix: str,
        open_stop: Callable[[], Stop],
        held: HeldLeases,
        logger: Log,
        *,
        clock: Clock = SYSTEM_CLOCK,
        random: Random | None = None,
    ) -> None:
        self._store = store
        self._stream_prefix = stream_prefix
        self._open_stop = open_stop
        self._held = held
        self._logger = logger
        self._clock = clock
        self._random = random or SystemRandom()

    # -- single requests -----------------------------------------------------------------------------------------

    def acquire_lease(self, key: str, owner: str, ttl: float, *, timeout: float | None = 30.0) -> LeaseResult:
        """Take the lease if nobody else holds it; the holder itself renews it so.

        Returns:
            whether ``owner`` holds it now; if not, who does. With a lifetime shorter than the server takes to answer
            ``expires_at`` has passed already.
        """
        ttl_ms = self._checked(owner, ttl)
        register = self._register(key)
        result = self._run(lambda stop: register.acquire(owner, ttl_ms, Deadline.after(timeout), stop))
        if isinstance(result, Grant):
            return LeaseResult(acquired=True, owner=owner, expires_at=result.expires_at)
        token = self._live(result.token)
        if token is None:
            return LeaseResult(acquired=False, owner=None, expires_at=None)
        return LeaseResult(acquired=False, owner=token.owner, expires_at=expiry_date(token.expires_at_ms))

    def get_lease_owner(self, key: str, *, timeout: float | None = 30.0) -> str | None:
        """Who holds the lease; None if nobody does. On a basin with create-on-append it creates the key's stream."""
        register = self._register(key)
        token = self._run(lambda stop: register.holder(Deadline.after(timeout), stop))
        return None if token is None else token.owner

    def renew_lease(self, key: str, owner: str, ttl: float, *, timeout: float | None = 30.0) -> bool:
        """Let the lease of ``owner`` last for ``ttl`` from now. False: ``owner`` does not hold it (any more)."""
        ttl_ms = self._checked(owner, ttl)
        register = self._register(key)
        result = self._run(lambda stop: register.extend(owner, owner, ttl_ms, None, Deadline.after(timeout), stop))
        # A process that was stopped during the call may see its answer when the lease is over.
        return isinstance(result, Grant) and not result.is_over(self._clock)

    def transfer_lease(
        self, key: str, from_owner: str, to_owner: str, ttl: float, *, timeout: float | None = 30.0
    ) -> bool:
        """Give the lease of ``from_owner`` to ``to_owner`` for ``ttl``, without a moment in which nobody has it.

        False: ``from_owner`` does not hold it.
        """
        check_owner(from_owner)
        ttl_ms = self._checked(to_owner, ttl)
        register = self._register(key)
        result = self._run(
            lambda stop: register.extend(from_owner, to_owner, ttl_ms, None, Deadline.after(timeout), stop)
        )
        if isinstance(result, Grant):
            return result.owner == to_owner
        if result.uncertain and result.token is not None and result.token.owner == to_owner:
            return True
        return self._known_to_have_failed(key, result)

    def release_lease(self, key: str, owner: str, *, timeout: float | None = 30.0) -> bool:
        """Free the lease of ``owner``. False, and nothing happens: ``owner`` does not hold it."""
        check_owner(owner)
        register = self._register(key)
        result = self._run(lambda stop: register.free(owner, None, Deadline.after(timeout), stop))
        return True if isinstance(result, Grant) else self._known_to_have_failed(key, result)

    def thread_topic(self, key: str) -> str:
        """The topic whose stream carries the lease, which is also that of the conversation ``key``."""
        return thread_topic(key)

    # -- holding -------------------------------------------------------------------------------------------------

    def hold(
        self,
        key: str,
        owner: str,
        ttl: float,
        timeout: float | None = 0.0,
        on_lost: Callable[[], object] | None = None,
    ) -> HeldLease:
        """Take the lease and keep it, renewing every third of ``ttl`` on a thread of its own.

        Args:
            key: as for ``acquire_lease``.
            owner: likewise.
            ttl: likewise.
            timeout: seconds to wait while somebody else holds it; None waits for ever. 0 asks once, which may take
                up to five seconds.
            on_lost: called without arguments, once, on the lease's thread when the lease is lost.

        Raises:
            LeaseUnavailableError: ``holder`` has it.
            StoreError, OperationTimeoutError: the server could not be asked.
        """
        if on_lost is not None and not callable(on_lost):
            raise TypeError(f"on_lost must be callable, not {on_lost!r}")
        ttl_ms = self._checked(owner, ttl)
        register = self._register(key)
        wait = Deadline.after(timeout)
        grant = self._run(lambda stop: self._take(register, owner, ttl_ms, wait, timeout == 0, stop))
        if grant.is_over(self._clock):
            raise LeaseLostError(key, owner, f"the server took longer than the lifetime of {ttl} s to answer")
        return self._held.begin(Holding(register, grant, ttl_ms, on_lost, self._logger, self._open_stop))

    def _take(self, register: Register, owner: str, ttl_ms: int, wait: Deadline, once: bool, stop: Stop) -> Grant:
        result = register.acquire(owner, ttl_ms, Deadline.after(_ASK_LIMIT) if once else _asking(wait), stop)
        pause = _PAUSE
        while isinstance(result, Denied):
            token = self._live(result.token)
            if token is not None and token.owner != owner:
                left = (token.expires_at_ms - self._clock.now_ms()) / 1000 + self._random.random() * _PAST_EXPIRY
                stop.wait(wait.remaining_at_most(min(left, pause * (0.5 + self._random.random()))))
                pause = min(_PAUSE_MAX, pause * _PAUSE_GROWTH)
            if stop.is_set():
                raise HaltedError
            holder = None if token is None else token.owner
            if wait.expired:
                raise LeaseUnavailableError(register.key, holder)
            try:
                text = register.look(_asking(wait), stop)
            except OperationTimeoutError as error:
                raise LeaseUnavailableError(register.key, holder) from error  # as far as is known
            token = self._live(decode_token(text))
            if token is None or token.owner == owner:
                result = register.acquire(owner, ttl_ms, _asking(wait), stop, text)
            else:
                result = Denied(token, uncertain=False)
        return result

    # -- parts ---------------------------------------------------------------------------------------------------

    def _register(self, key: str) -> Register:
        topic = thread_topic(key)
        try:
            stream = stream_name(topic, self._stream_prefix)
        except ValueError as error:
            raise ValueError(f"lease key {key[:60]!a} cannot be used: {error}") from None
        return Register(self._store, stream, key, clock=self._clock, random=self._random)

    def _checked(self, owner: str, ttl: float) -> int:
        """``ttl`` in milliseconds; raises unless ``owner`` and ``ttl`` fit into a token."""
        check_owner(owner)
        check_ttl(ttl)
        ttl_ms = max(1, round(ttl * 1000))
        if self._clock.now_ms() + ttl_ms > MAX_EXPIRY_MS:
            raise ValueError(f"ttl of {ttl!r} s is too long: a lease must end before 2**48 epoch milliseconds")
        return ttl_ms

    def _run(self, work: Callable[[Stop], T]) -> T:
        try:
            return work(self._open_stop())
        except HaltedError:
            raise ClosedError("the client was closed during the call") from None

    def _live(self, token: Token | None) -> Token | None:
        return token if token is not None and token.is_live(self._clock.now_ms()) else None

    def _known_to_have_failed(self, key: str, denied: Denied) -> bool:
        """False; raises where an earlier copy of the request may have been stored."""
        if not denied.uncertain:
            return False
        error = StoreError(
            f"lease {key!r}: the first answer was lost and the lease has changed since; look who holds it",
            code="outcome_unknown",
            status=None,
            kind="outage",
        )
        error.outcome = "unknown"
        raise error


def _asking(wait: Deadline) -> Deadline:
    """The deadline of a question within ``wait``, with time enough for its answer."""
    left = wait.remaining()
    return Deadline.after(None if left is None else max(left, _LAST_ASK))
