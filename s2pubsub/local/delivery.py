"""What a line deals with: its members, and one attempt to deliver one event. Plain values, no threads."""

from __future__ import annotations

import math

import attrs


class LineEnd(Exception):
    """The member has left, or the line has ended. ``error`` is what its reader has to know, if anything."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__(error)
        self.error = error


@attrs.define(eq=False)
class Member:
    """One reader.

    Attributes:
        iterates: a consumer asks for each event; else a worker calls a callback.
        batching: what it takes lies in a buffer until ``Line.begin``.
        buffered: whether that buffer holds something. Set by the member's worker.
        left: it gets no more events.
    """

    iterates: bool
    batching: bool = False
    buffered: bool = False
    left: bool = False


@attrs.define(eq=False)
class Delivery:
    """One attempt to deliver one event. The next attempt is another object, so that a late answer is recognised.

    Attributes:
        id: the event's id.
        body: the event, encoded.
        queued_at: when it came into the line (monotonic clock).
        attempt: counts from 1.
        member: who has it in hand; None while it waits.
        begun: whether it is being handled, not only buffered.
        limit_at: until when that may take.
    """

    id: str
    body: bytes
    queued_at: float
    attempt: int = 1
    member: Member | None = None
    begun: bool = False
    limit_at: float = math.inf
