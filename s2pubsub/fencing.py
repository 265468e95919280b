"""A publisher fenced by a lease: what it appends is stored only while its owner's token is in force.

On the lease's own topic the publisher writes the lease's renewals, as fence records among its events, each conditioned
on the token before it: so no event is refused because a renewal overtook it. On another topic it sets the token once,
unless somebody with a later lease has been there; who takes the lease afterwards and opens a publisher ends this one.

Relies on ``held_lease`` and ``publisher``. Not for taking leases (``leases``) or appending (``store.appending``).
"""

from __future__ import annotations

from s2pubsub.errors import ClosedError, LeaseLostError, OperationTimeoutError, S2PubSubError
from s2pubsub.fence import decode_token
from s2pubsub.held_lease import HeldLease
from s2pubsub.lease_register import Register, Send
from s2pubsub.publisher import Pending, Pipe
from s2pubsub.runtime.deadline import Deadline
from s2pubsub.runtime.worker import Stop
from s2pubsub.store import ConditionError, Store
from s2pubsub.topic import thread_topic

_RACES = 5
"""How often the token is looked at again because somebody else has just changed it."""

_UNFENCED = ("agent.stream.", "agent.control.")
"""Topics of runs hold events only, from index 0."""


def check_fenced(topic: str, lease: HeldLease, exactly_once: bool) -> None:
    """Raise TypeError or ValueError unless a publisher of ``topic`` may be fenced by ``lease``."""
    if not isinstance(lease, HeldLease):
        raise TypeError(f"lease must be what hold() returned, not {type(lease).__name__}")
    if exactly_once:
        raise ValueError("a publisher is fenced by a lease= or exactly_once, not both")
    if topic.startswith(_UNFENCED):
        raise ValueError(f"topic {topic!r} belongs to a run and holds events only: it cannot be fenced")


class Fencing:
    """Ties ``pipe`` to ``lease``: its token, its renewals, its loss."""

    def __init__(self, pipe: Pipe, lease: HeldLease) -> None:
        self._pipe = pipe
        self._lease = lease
        self._direct: Send | None = None
        pipe.explain = self._explain

    def begin(self, store: Store, stream: str, deadline: Deadline, stop: Stop) -> str:
        """The token to append under.

        Raises:
            LeaseLostError, ClosedError: the lease is not held any more, or another topic has a later lease's token.
        """
        if self._pipe.topic == thread_topic(self._lease.key):
            token = self._lease.attach(self._take_over, self._over)
            self._pipe.on_end.append(lambda _: self._lease.detach())
            return token
        self._lease.check()
        return self._fence_other(store, stream, deadline, stop)

    def is_own(self, text: str) -> bool:
        """Whether ``text`` is a token of the lease's owner while the lease is held."""
        token = decode_token(text)
        return token is not None and token.owner == self._lease.owner and not self._lease.closed

    # -- the lease's own topic -----------------------------------------------------------------------------------

    def _take_over(self, direct: Send) -> Send:
        self._direct = direct
        return self._send

    def _send(self, new: str, old: str, deadline: Deadline) -> None:
        """Write ``new`` among the events. On the lease's thread; raises as ``Store.fence`` does."""
        assert self._direct is not None
        token = decode_token(new)
        if token is None or token.owner != self._lease.owner:
            self._over(ClosedError("the lease was given up"))  # no event may follow it
        command = Pending(None, new.encode(), new)
        try:
            self._pipe.outbox.put(command, command.size, None, urgent=True)
            command.result(deadline.remaining())
        except TimeoutError as error:
            if command.done():
                raise
            late = OperationTimeoutError("the renewal was not acknowledged among the events within the timeout")
            late.outcome = "unknown"
            raise late from error
        except ClosedError:
            # The publisher has ended. If the token was stored all the same, the answer to this one will name it.
            self._direct(new, old, deadline)

    def _over(self, reason: S2PubSubError) -> None:
        """Accept nothing more; what was accepted goes on under its token."""
        if isinstance(reason, LeaseLostError):
            refusal: S2PubSubError = LeaseLostError(reason.key, reason.owner, reason.reason)
        else:
            refusal = ClosedError(f"the publisher of topic {self._pipe.topic!r} is closed: {reason}")
        refusal.outcome = "not_stored"
        self._pipe.outbox.finish(refusal)

    # -- another topic -------------------------------------------------------------------------------------------

    def _fence_other(self, store: Store, stream: str, deadline: Deadline, stop: Stop) -> str:
        register = Register(store, stream, self._lease.key)
        text = self._lease.token
        mine = decode_token(text)
        for _ in range(_RACES):
            current = register.look(deadline, stop)
            if current == text:
                return text
            other = decode_token(current)
            if mine is None or (
                other is not None and other.owner != mine.owner and other.expires_at_ms >= mine.expires_at_ms
            ):
                raise self._lost(current)
            try:
                store.fence(stream, text, current, deadline)
            except ConditionError:
                continue
            return text
        raise OperationTimeoutError(f"topic {self._pipe.topic!r}: its fencing token keeps changing")

    # -- the loss ------------------------------------------------------------------------------------------------

    def _explain(self, error: S2PubSubError) -> S2PubSubError:
        """The error for events; a mismatch of tokens is the loss of the lease."""
        if not isinstance(error, ConditionError) or error.token is None:
            return error
        lost = self._lost(error.token)
        lost.outcome = error.outcome
        lost.__cause__ = error
        if self._direct is not None:
            self._lease.mark_lost(lost.reason)
        return lost

    def _lost(self, token: str) -> LeaseLostError:
        found = decode_token(token)
        reason = "it was released or its topic was cleared" if found is None else f"{found.owner!r} has taken it"
        return LeaseLostError(self._lease.key, self._lease.owner, reason)
