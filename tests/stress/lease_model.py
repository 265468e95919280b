"""Is a history of lease calls explained by one register with an expiry? A checker after Wing and Gong.

A history is what several processes asked of one lease and what they were told. It is linearizable if each call can be
given one moment between its begin and its end at which it took effect, so that the answers are those of a register
``(owner, expiry)``. Expiries are compared with the clock of the process that asks, somewhere within its call.

A call that raised may have taken effect at any moment after its begin, or never. A call during which its own lifetime
could pass may have held the lease for a while before its answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import attrs

FOREVER = float("inf")


@attrs.frozen(kw_only=True)
class Call:
    """One call and its answer. Times are in milliseconds; ``ahead`` is how far the process's clock is.

    Attributes:
        what: the call. ``owner`` asks in this name, ``to`` is whom a transfer is for, ``ttl`` the lifetime asked for.
        begun, ended: in true time.
        known: False if it raised.
        yes: whether it was granted.
        holder: whom the answer names; for ``look`` the owner found.
        expires: expiry that the answer names, None if it does not.
    """

    what: Literal["acquire", "renew", "transfer", "release", "look"]
    owner: str
    to: str = ""
    ttl: float = 0.0
    begun: float
    ended: float
    ahead: float = 0.0
    known: bool = True
    yes: bool = False
    holder: str | None = None
    expires: float | None = None

    @property
    def first(self) -> float:
        """The begin by the process's own clock."""
        return self.begun + self.ahead

    @property
    def last(self) -> float:
        """The end by the process's own clock."""
        return self.ended + self.ahead


@attrs.frozen
class State:
    """The register: who has it, and the bounds of an expiry that is not known exactly."""

    owner: str | None = None
    low: float = 0.0
    high: float = 0.0

    def live_for(self, call: Call) -> State | None:
        """The state that is left if ``call`` has seen it live; None if it cannot have."""
        low = max(self.low, call.first)
        return attrs.evolve(self, low=low) if self.owner is not None and self.high >= low else None

    def dead_for(self, call: Call) -> bool:
        """Whether ``call`` may have found the lease free."""
        return self.owner is None or self.low <= call.last


FREE = State()


def outcomes(state: State, call: Call) -> Iterator[State]:
    """The states after ``call`` took effect in ``state`` with its answer; none if that cannot be."""
    live = state.live_for(call)
    mine = live if live is not None and live.owner == call.owner else None
    given = (call.first + call.ttl, call.last + call.ttl)
    if call.what == "look":
        if call.holder is None and state.dead_for(call):
            yield state
        elif call.holder is not None and live is not None and live.owner == call.holder:
            yield live
    elif call.what == "acquire":
        if call.yes or not call.known:
            if state.owner == call.owner or state.dead_for(call):
                yield (
                    State(call.owner, *given) if call.expires is None else State(call.owner, call.expires, call.expires)
                )
        elif call.holder is None:
            yield state  # it lost several races, and the last winner was gone by then
        elif live is not None and live.owner == call.holder != call.owner:
            expires = live.low if call.expires is None else call.expires
            if live.low <= expires <= live.high:
                yield State(live.owner, expires, expires)
    elif call.yes or not call.known:
        if mine is not None and call.what == "release":
            yield FREE
        elif mine is not None:
            yield State(call.to if call.what == "transfer" else call.owner, *given)
    elif state.owner != call.owner or state.dead_for(call):
        yield state


def before(state: State, call: Call) -> Iterator[State]:
    """The states after an earlier request of ``call`` was stored, whose lease is over when the call ends."""
    if call.what not in ("acquire", "renew") or call.first + call.ttl > call.last:
        return
    live = state.live_for(call)
    own = state.owner == call.owner and (call.what == "acquire" or live is not None)
    if own or (call.what == "acquire" and state.dead_for(call)):
        yield State(call.owner, call.first + call.ttl, call.last)


def linearizable(history: Sequence[Call]) -> bool:
    """Whether some order of the calls, true to their times, gives their answers."""
    calls = sorted(history, key=lambda call: call.begun)
    needed = sum(1 << n for n, call in enumerate(calls) if call.known)
    seen: set[tuple[int, int, State]] = set()
    stack = [(0, 0, FREE)]
    while stack:
        done, early, state = position = stack.pop()
        if done & needed == needed:
            return True
        if position in seen:
            continue
        seen.add(position)
        left = [(n, call) for n, call in enumerate(calls) if not done >> n & 1]
        horizon = min(call.ended for _, call in left if call.known)
        for n, call in left:
            if call.begun > horizon:
                break
            stack += [(done | 1 << n, early, after) for after in outcomes(state, call)]
            if not early >> n & 1:
                stack += [(done, early | 1 << n, after) for after in before(state, call)]
    return False


def overlap(history: Sequence[Call]) -> float:
    """The longest time, beyond what clocks differ, for which two owners could both rely on answers that they had.

    An owner relies on a grant from its answer to its expiry by the own clock, or until it asks for a change.
    """
    claims = [claim for call in history for claim in _claims(call, history)]
    longest = -FOREVER
    for n, (owner, begun, ended, ahead) in enumerate(claims):
        for other, other_begun, other_ended, other_ahead in claims[:n]:
            if owner != other:
                shared = min(ended, other_ended) - max(begun, other_begun)
                longest = max(longest, shared - abs(ahead - other_ahead))
    return longest


def _claims(call: Call, history: Sequence[Call]) -> Iterator[tuple[str, float, float, float]]:
    if not (call.known and call.yes and call.what in ("acquire", "renew")):
        return
    expires = (call.first + call.ttl if call.expires is None else call.expires) - call.ahead
    replaced = [
        other.begun
        for other in history
        if other.owner == call.owner and other.what != "look" and other.begun >= call.begun and other is not call
    ]
    ended = min([expires, *replaced])
    if ended > call.ended:
        yield call.owner, call.ended, ended, call.ahead
