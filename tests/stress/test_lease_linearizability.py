"""Leases under fire, and the checker that judges them."""

from __future__ import annotations

import os
import random

import attrs
import pytest

from tests.servers import LiteServer, find_lite
from tests.stress.lease_linearizability import run
from tests.stress.lease_model import Call, linearizable, overlap

A, B = "owner-a", "owner-b"


def call(what: str, owner: str, begun: float, ended: float, **more: object) -> Call:
    return Call(what=what, owner=owner, begun=begun, ended=ended, **more)  # type: ignore[arg-type]


def acquired(owner: str, begun: float, ended: float, expires: float, **more: object) -> Call:
    ttl = expires - begun
    return call("acquire", owner, begun, ended, ttl=ttl, yes=True, holder=owner, expires=expires, **more)


def refused(owner: str, begun: float, ended: float, holder: str, expires: float) -> Call:
    return call("acquire", owner, begun, ended, ttl=100, holder=holder, expires=expires)


GOOD = {
    "one after the other": [acquired(A, 0, 10, 100), acquired(B, 100, 110, 200)],
    "refused while held": [acquired(A, 0, 10, 100), refused(B, 20, 30, A, 100), acquired(B, 95, 101, 200)],
    "released": [acquired(A, 0, 10, 100), call("release", A, 20, 30, yes=True), acquired(B, 25, 40, 200)],
    "transferred": [
        acquired(A, 0, 10, 100),
        call("transfer", A, 20, 30, to=B, ttl=100, yes=True),
        call("look", A, 25, 35, holder=B),
        call("renew", B, 40, 50, ttl=100, yes=True),
    ],
    "clock that is ahead": [acquired(A, 0, 10, 100), acquired(B, 60, 70, 250, ahead=50)],
    "raised and stored": [
        call("acquire", A, 0, 10, ttl=100, known=False),
        call("look", B, 20, 30, holder=A),
        acquired(B, 120, 130, 300),
    ],
    "raised and not stored": [call("acquire", A, 0, 10, ttl=100, known=False), acquired(B, 20, 30, 300)],
    "held and lapsed within one call": [
        call("acquire", A, 0, 400, ttl=100, holder=B, expires=600),
        call("look", B, 50, 60, holder=A),
        acquired(B, 150, 160, 600),
    ],
}

BAD = {
    "two at once": [acquired(A, 0, 10, 100), acquired(B, 20, 30, 200)],
    "refused by nobody": [refused(B, 20, 30, A, 100)],
    "refused after the end": [acquired(A, 0, 10, 100), refused(B, 110, 120, A, 100)],
    "unowned moment in a transfer": [
        acquired(A, 0, 10, 100),
        call("transfer", A, 20, 30, to=B, ttl=100, yes=True),
        call("look", A, 25, 28, holder=None),
    ],
    "renewed by the former holder": [
        acquired(A, 0, 10, 100),
        acquired(B, 100, 110, 300),
        call("renew", A, 120, 130, ttl=100, yes=True),
    ],
    "renewed after the end": [acquired(A, 0, 10, 100), call("renew", A, 110, 120, ttl=100, yes=True)],
    "released by a stranger": [acquired(A, 0, 10, 100), call("release", B, 20, 30, yes=True)],
    "not renewed though held": [acquired(A, 0, 10, 100), call("renew", A, 20, 30, ttl=100)],
    "look-up behind the truth": [acquired(A, 0, 10, 100), call("look", B, 20, 30, holder=None)],
    "another expiry than granted": [acquired(A, 0, 10, 100), refused(B, 20, 30, A, 101)],
}


@pytest.mark.parametrize("name", GOOD)
def test_good_history(name: str) -> None:
    """The checker accepts what a register with an expiry explains."""
    assert linearizable(GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_bad_history(name: str) -> None:
    """The checker refuses what no such register could answer, whatever the order of the list."""
    assert not linearizable(BAD[name])
    assert not linearizable(BAD[name][::-1])


def test_overlap() -> None:
    """Two owners at once are measured, beyond what their clocks differ."""
    both = [acquired(A, 0, 10, 100), acquired(B, 20, 30, 200)]
    assert overlap(both) == 70
    assert overlap([both[0], attrs.evolve(both[1], ahead=50.0)]) == 20
    assert overlap([both[0], acquired(B, 100, 110, 200)]) == -10


@pytest.mark.stress
@pytest.mark.slow
@pytest.mark.lite
@pytest.mark.limit(180)
def test_leases_under_fire() -> None:
    """Random calls of three processes with pauses, skewed clocks and faults are those of one register with an expiry;
    no two processes find a held lease good at once.
    """
    assert find_lite() is not None
    seed = int(os.environ.get("S2PUBSUB_SEED", random.randrange(2**32)))
    print(f"S2PUBSUB_SEED={seed}")
    with LiteServer() as server:
        tally = run(server, 30, seed, lanes=4)
    assert not tally.problems
    assert tally.rounds == 30
    assert tally.calls["acquire yes"]
    assert tally.calls["hold yes"]
    assert set(tally.faults) >= {"lose", "stop"}
