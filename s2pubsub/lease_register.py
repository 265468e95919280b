"""The register of one lease: the fencing token of a stream, looked at and changed by compare-and-set.

The token is all there is: no record is read and nothing is remembered between calls but tokens whose fate is unknown.
A request whose answer is lost is sent again under the same condition, so that the server's next answer says what
became of it: a mismatch that names a token of ours means that it was stored. Relies on ``store`` and ``fence``. Not
for keeping a lease (``held_lease``). A register is for one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random, SystemRandom
from typing import Protocol, TypeVar

import attrs
from tenacity import Retrying, retry_if_exception_type
from tenacity.wait import wait_exponential, wait_random

from s2pubsub.errors import OperationTimeoutError, S2PubSubError, StoreError
from s2pubsub.fence import Token, decode_token, encode_token
from s2pubsub.lease_clock import SYSTEM_CLOCK, Clock, Grant
from s2pubsub.retry import MISSING_STREAM_TRIES
from s2pubsub.runtime.deadline import Deadline
from s2pubsub.store import ConditionError, Store

T = TypeVar("T")

Send = Callable[[str, str, Deadline], None]
"""Sets a fencing token if the second one is in force, by a deadline; raises as ``Store.fence`` does."""

MAX_RACES = 3
"""How often an attempt goes on after somebody else has changed the token under it."""

_ATTEMPT_LIMIT = 5.0
"""Seconds that one request may take of a longer budget: then its connection counts as silent and gets replaced."""

_ATTEMPT_LEAST = 0.3
"""A request gets half of what is left, so that there is time for another one; but not less than this."""

_NO_TOKEN = "!"
"""Nobody's token: an append conditioned on it fails and names the current one. Were it a stream's token all the same,
the look-up would replace it by itself."""


class Halt(Protocol):
    """Ends waits between requests: a ``Stop``, a ``threading.Event`` or the like."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> object: ...


class HaltedError(Exception):
    """The halt was set before the outcome was known."""


@attrs.frozen
class Denied:
    """The token was not changed, or it is not known that it was.

    Attributes:
        token: the one in force, if it is a lease's.
        uncertain: a request of ours may have been stored before that one was.
    """

    token: Token | None
    uncertain: bool


class _AgainError(Exception):
    """The request failed for ``reason``, and another one may tell more."""

    def __init__(self, reason: S2PubSubError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Register:
    """The lease ``key`` in ``stream``. All calls raise StoreError or OperationTimeoutError when they cannot tell.

    Args:
        store: where the stream is.
        stream: its name.
        key: the lease's name, for messages.
        clock, random: of this process.

    Attributes:
        send: writes a token; a fenced publisher of the same stream takes this over, to keep the order.
    """

    def __init__(
        self, store: Store, stream: str, key: str, *, clock: Clock = SYSTEM_CLOCK, random: Random | None = None
    ) -> None:
        self.key = key
        self.clock = clock
        self._store = store
        self._stream = stream
        self._random = random or SystemRandom()
        self.send: Send = partial(store.fence, stream)
        self._sent: dict[str, Grant] = {}  # may have been stored

    # -- what callers want ---------------------------------------------------------------------------------------

    def holder(self, deadline: Deadline, halt: Halt) -> Token | None:
        """The live lease, if there is one."""
        token = decode_token(self.look(deadline, halt))
        return token if token is not None and token.is_live(self.clock.now_ms()) else None

    def acquire(self, owner: str, ttl_ms: int, deadline: Deadline, halt: Halt, expected: str = "") -> Grant | Denied:
        """Take the lease if it is free or ``owner``'s own; ``expected`` is the token that the first try replaces."""

        def usable(token: Token | None) -> bool:
            return token is None or token.owner == owner or not token.is_live(self.clock.now_ms())

        for last in (False, False, True):
            result = self._write(lambda: self.grant(owner, ttl_ms), expected, usable, deadline, halt)
            if isinstance(result, Denied):
                token = result.token
                if token is not None and token.owner == owner and token.is_live(self.clock.now_ms()):
                    return self._adopt(token)  # other threads of the same owner were faster each time
                return result
            if last or not result.is_over(self.clock):
                return result
            expected = result.text  # the answer took longer than the lease lasts
        raise AssertionError("the loop returns")

    def extend(
        self, owner: str, to: str, ttl_ms: int, expected: str | None, deadline: Deadline, halt: Halt
    ) -> Grant | Denied:
        """Give the live lease of ``owner`` to ``to`` (who may be the same) for ``ttl_ms`` from now.

        ``expected`` is the token in force as far as the caller knows; None looks first.
        """
        found = self._expected(owner, expected, deadline, halt)
        if isinstance(found, Denied):
            return found
        return self._write(lambda: self.grant(to, ttl_ms), found, self._is_live_of(owner), deadline, halt)

    def free(self, owner: str, expected: str | None, deadline: Deadline, halt: Halt) -> Grant | Denied:
        """End the live lease of ``owner``; ``expected`` as for ``extend``."""
        found = self._expected(owner, expected, deadline, halt)
        if isinstance(found, Denied):
            return found
        return self._write(lambda: Grant("", "", 0, 0.0), found, self._is_live_of(owner), deadline, halt)

    def _expected(self, owner: str, expected: str | None, deadline: Deadline, halt: Halt) -> str | Denied:
        if expected is not None:
            return expected
        text = self.look(deadline, halt)
        token = decode_token(text)
        return text if self._is_live_of(owner)(token) else Denied(token, uncertain=False)

    def _is_live_of(self, owner: str) -> Callable[[Token | None], bool]:
        return lambda token: token is not None and token.owner == owner and token.is_live(self.clock.now_ms())

    def grant(self, owner: str, ttl_ms: int) -> Grant:
        """A new token, to be sent after this call: its life begins here."""
        ends_at = self.clock.boot() + ttl_ms / 1000
        token = encode_token(owner, self.clock.now_ms() + ttl_ms, random=self._random.randbytes)
        return Grant(owner, token.text, token.expires_at_ms, ends_at)

    def _adopt(self, token: Token) -> Grant:
        left = (token.expires_at_ms - self.clock.now_ms()) / 1000
        return Grant(token.owner, token.text, token.expires_at_ms, self.clock.boot() + left)

    # -- requests ------------------------------------------------------------------------------------------------

    def look(self, deadline: Deadline, halt: Halt) -> str:
        """The fencing token in force, empty if there is none. On the read lane; never changes anything."""
        missing = 0

        def ask() -> str:
            nonlocal missing
            try:
                self._store.fence(self._stream, _NO_TOKEN, _NO_TOKEN, _attempt(deadline), lookup=True)
            except ConditionError as mismatch:
                if mismatch.token is None:
                    raise
                return mismatch.token
            except (StoreError, OperationTimeoutError) as error:
                missing += _is_missing(error)
                if missing >= MISSING_STREAM_TRIES:
                    return ""  # the basin does not create streams, and without one there is no lease
                _check_passing(error)
                raise _AgainError(error) from error
            return _NO_TOKEN

        return self._ask_until(ask, deadline, halt)

    def _write(
        self,
        make: Callable[[], Grant],
        expected: str,
        usable: Callable[[Token | None], bool],
        deadline: Deadline,
        halt: Halt,
    ) -> Grant | Denied:
        """Replace the token ``expected``, or one that is ``usable``, by a new one; return that."""
        uncertain = bool(self._sent)
        races = missing = 0

        def ask() -> Grant | Denied:
            nonlocal expected, uncertain, races, missing
            while True:
                # Each request has a token of its own, since a repeated one would keep the first one's expiry.
                grant = make()
                self._sent[grant.text] = grant
                try:
                    self.send(grant.text, expected, _attempt(deadline))
                except ConditionError as mismatch:
                    if mismatch.token is None:
                        raise
                    # It may be about a second copy, which the SDK has sent after the first one's answer was lost.
                    uncertain = uncertain or mismatch.outcome != "not_stored"
                    stored = self._sent.get(mismatch.token)
                    # The empty token carries no mark of whose request it was.
                    if stored is not None and (stored.text or uncertain):
                        return self._settle(stored)
                    if not uncertain:
                        self._sent.pop(grant.text)
                    token = decode_token(mismatch.token)
                    races += 1
                    if races > MAX_RACES or not usable(token):
                        return Denied(token, uncertain)
                    expected = mismatch.token
                except (StoreError, OperationTimeoutError) as error:
                    if error.outcome == "not_stored":
                        self._sent.pop(grant.text)
                    else:
                        uncertain = True
                    missing += _is_missing(error)
                    if uncertain:
                        error.outcome = "unknown"
                    if missing >= MISSING_STREAM_TRIES:
                        raise
                    _check_passing(error)
                    raise _AgainError(error) from error
                else:
                    return self._settle(grant)

        return self._ask_until(ask, deadline, halt)

    def _settle(self, grant: Grant) -> Grant:
        # What was sent before was conditioned on older tokens, which do not come back.
        self._sent.clear()
        return grant

    def _ask_until(self, ask: Callable[[], T], deadline: Deadline, halt: Halt) -> T:
        """Call ``ask`` until it returns, through outages, up to ``deadline``."""
        last: S2PubSubError | None = None
        outage: StoreError | None = None

        def attempt() -> T:
            nonlocal last, outage
            if halt.is_set():
                raise HaltedError
            if last is not None and deadline.expired:
                raise _AgainError(last)
            try:
                return ask()
            except _AgainError as again:
                last = again.reason
                outage = last if isinstance(last, StoreError) else outage
                raise

        def pause(seconds: float) -> None:
            halt.wait(deadline.remaining_at_most(seconds))

        schedule = Retrying(
            retry=retry_if_exception_type(_AgainError),
            wait=wait_exponential(multiplier=0.05, max=1) + wait_random(0, 0.05),
            stop=lambda state: deadline.expired,
            sleep=pause,
            reraise=True,
        )
        try:
            return schedule(attempt)
        except _AgainError as again:
            # What the server answered says more than that the last request had no time left.
            reason = outage or OperationTimeoutError(f"lease {self.key!r}: the server did not answer in time")
            if again.reason.outcome != "not_stored" or reason.outcome is None:
                reason.outcome = again.reason.outcome
            raise reason from (outage.__cause__ if outage else again.reason)


def _attempt(deadline: Deadline) -> Deadline:
    left = deadline.remaining()
    limit = _ATTEMPT_LIMIT if left is None else min(_ATTEMPT_LIMIT, max(_ATTEMPT_LEAST, left / 2))
    return Deadline.after(deadline.remaining_at_most(limit))


def _is_missing(error: S2PubSubError) -> bool:
    return isinstance(error, StoreError) and error.code == "stream_not_found"


def _check_passing(error: StoreError | OperationTimeoutError) -> None:
    """Raise ``error`` if another request would fail alike."""
    if isinstance(error, StoreError) and error.kind not in ("outage", "gone"):
        raise error
