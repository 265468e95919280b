"""Acquires that fail, and holders whose time is over: nothing of them is in anybody's way. More of C26 and C29."""

from __future__ import annotations

import pytest

from s2pubsub import LeaseLostError, OperationTimeoutError, S2PubSub, StoreError
from tests.faults import APPEND, FaultProxy
from tests.leasing import KEY, Hook, MovedClock, Register
from tests.topics import MakePubSub
from tests.waiting import LONG


@pytest.mark.parametrize("fault", ["never sent", "refused", "503"])
def test_an_acquire_that_never_arrived(
    make_pubsub: MakePubSub, proxy: FaultProxy, pubsub: S2PubSub, fault: str
) -> None:
    """C29: where nothing was stored the lease is free for anybody at once, whatever it was that failed."""
    behind = make_pubsub(endpoints=proxy.url)
    behind.leases.get_lease_owner("warm up")
    if fault == "never sent":
        proxy.stall("to_server")
        proxy.silent()
    elif fault == "refused":
        proxy.refuse()
        proxy.cut()
    else:
        proxy.answer(APPEND, status=503, times=None)
    with pytest.raises((StoreError, OperationTimeoutError)):
        behind.leases.acquire_lease(KEY, "owner-a", 30, timeout=0.5)
    assert pubsub.leases.get_lease_owner(KEY) is None
    assert pubsub.leases.acquire_lease(KEY, "owner-b", 30).acquired
    proxy.cut()  # what was held back must not arrive later
    proxy.clear()
    assert behind.leases.get_lease_owner(KEY) == "owner-b"


def test_a_hold_that_failed(make_pubsub: MakePubSub, proxy: FaultProxy, pubsub: S2PubSub, register: Register) -> None:
    """C29: a ``hold`` that was stored and raised renews nothing: it lapses by itself, or its owner holds it again."""
    behind = make_pubsub(endpoints=proxy.url)
    behind.leases.get_lease_owner("warm up")
    proxy.lose_response(APPEND, times=None)
    with pytest.raises((StoreError, OperationTimeoutError)):
        behind.leases.hold(KEY, "owner-a", 1.5, timeout=0.5)
    assert behind.stats().leases == 0
    proxy.clear()
    with pubsub.leases.hold(KEY, "owner-a", 30):
        assert register.owner() == "owner-a"
    with pubsub.leases.hold(KEY, "owner-b", 30, timeout=LONG):
        assert register.owner() == "owner-b"


def test_the_handle_of_a_holder_that_lapsed(pubsub: S2PubSub, make_pubsub: MakePubSub, register: Register) -> None:
    """C26: a held lease whose holder's clock jumped past its end while another one took it: transfer and release of the
    old handle change nothing, its loss is told, and the successor keeps its expiry and token.
    """
    moved, hook = MovedClock(), Hook()
    first = pubsub.get_lease_provider(clock=moved.clock).hold(KEY, "owner-a", 30, on_lost=hook)
    ahead = MovedClock()
    ahead.wall_ahead = ahead.boot_ahead = 60
    successor = make_pubsub().get_lease_provider(clock=ahead.clock)
    result = successor.acquire_lease(KEY, "owner-b", 30)
    assert result.acquired
    token = register.token()
    moved.wall_ahead = moved.boot_ahead = 60
    with pytest.raises(LeaseLostError):
        first.transfer("owner-c")
    with pytest.raises(LeaseLostError):
        first.renew()
    first.release()
    assert hook.called.wait(LONG)
    assert register.token() == token
    assert successor.get_lease_owner(KEY) == "owner-b"
