"""Leases of one process: the same rules as on S2, and handles that need no renewal."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from s2pubsub import ClosedError, LeaseLostError, LeaseUnavailableError, LocalPubSub
from s2pubsub.local import LocalLeaseProvider
from s2pubsub.topic import thread_topic
from tests.waiting import LONG, eventually

KEY = "resource\0thread"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def leases(clock: Clock) -> Iterator[LocalLeaseProvider]:
    provider = LocalLeaseProvider(logging.getLogger("s2pubsub"), clock=clock)
    yield provider
    provider.close()


def test_acquire(leases, clock):
    """The first owner gets the lease, others hear who has it and until when; after its lifetime it is free."""
    first = leases.acquire_lease(KEY, "a", 10)
    assert (first.acquired, first.owner) == (True, "a")
    assert abs(first.expires_at - datetime.now(UTC) - timedelta(seconds=10)) < timedelta(seconds=5)
    second = leases.acquire_lease(KEY, "b", 10)
    assert (second.acquired, second.owner) == (False, "a")
    assert second.expires_at.tzinfo is not None
    assert leases.get_lease_owner(KEY) == "a"
    assert leases.get_lease_owner("other") is None
    clock.now += 10
    assert leases.get_lease_owner(KEY) is None
    assert leases.acquire_lease(KEY, "b", 10).acquired


def test_acquiring_again_renews(leases, clock):
    """The holder's own acquire renews the lease."""
    leases.acquire_lease(KEY, "a", 10)
    clock.now += 9
    assert leases.acquire_lease(KEY, "a", 10).acquired
    clock.now += 9
    assert leases.get_lease_owner(KEY) == "a"


def test_renew_transfer_release(leases, clock):
    """The holder renews, transfers and releases; each says whether it held the lease."""
    leases.acquire_lease(KEY, "a", 10)
    assert leases.renew_lease(KEY, "a", 20)
    clock.now += 15
    assert leases.transfer_lease(KEY, "a", "b", 5)
    assert leases.get_lease_owner(KEY) == "b"
    assert not leases.renew_lease(KEY, "a", 20)
    assert leases.transfer_lease(KEY, "b", "b", 30)
    clock.now += 20
    assert leases.release_lease(KEY, "b")
    assert leases.get_lease_owner(KEY) is None
    assert not leases.release_lease(KEY, "b")


def test_a_former_holder_cannot_touch_its_successors_lease(leases, clock):
    """C26: renew, transfer and release of a lapsed holder are False, and the successor's expiry does not change."""
    leases.acquire_lease(KEY, "a", 1)
    clock.now += 1
    leases.acquire_lease(KEY, "b", 10)
    assert not leases.renew_lease(KEY, "a", 100)
    assert not leases.transfer_lease(KEY, "a", "c", 100)
    assert not leases.release_lease(KEY, "a")
    clock.now += 9.9
    assert leases.get_lease_owner(KEY) == "b"
    clock.now += 0.1
    assert leases.get_lease_owner(KEY) is None


def test_one_of_many_wins(leases):
    """C28: of 20 threads exactly one gets the lease, and all agree on who."""
    for _ in range(50):
        results: list[Any] = []
        barrier = threading.Barrier(20)

        def take(owner: str, barrier: threading.Barrier = barrier, results: list[Any] = results) -> None:
            barrier.wait(LONG)
            results.append((owner, leases.acquire_lease(KEY, owner, 10)))

        threads = [threading.Thread(target=take, args=(f"owner-{n}",)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        [winner] = [owner for owner, result in results if result.acquired]
        assert {result.owner for _, result in results} == {winner}
        assert leases.release_lease(KEY, winner)


def test_arguments_are_those_of_s2(leases):
    """Owners, keys and lifetimes that S2 would refuse are refused here, so that code tried here works there."""
    for owner, error in (("x" * 17, ValueError), ("", ValueError), (5, TypeError)):
        with pytest.raises(error, match="owner"):
            leases.acquire_lease(KEY, owner, 10)
    for ttl, error in (
        (0, ValueError),
        (-1, ValueError),
        (float("nan"), ValueError),
        ("1", TypeError),
        (True, TypeError),
    ):
        with pytest.raises(error, match="ttl"):
            leases.renew_lease(KEY, "a", ttl)
    with pytest.raises(ValueError, match="key"):
        leases.get_lease_owner("")
    with pytest.raises(TypeError, match="on_lost"):
        leases.hold(KEY, "a", 1, on_lost=5)
    assert leases.thread_topic(KEY) == thread_topic(KEY)


def test_a_held_lease_has_no_end(leases, clock):
    """C25: a lease lasts as long as its handle, whatever its lifetime; then it is free at once."""
    with leases.hold(KEY, "a", 1) as held:
        clock.now += 100
        held.check()
        held.renew()
        assert not held.closed
        assert (held.key, held.owner) == (KEY, "a")
        assert held.expires_at > datetime.now(UTC)
        refused = leases.acquire_lease(KEY, "b", 1)
        assert (refused.acquired, refused.owner) == (False, "a")
        assert refused.expires_at > datetime.now(UTC)
        with pytest.raises(LeaseUnavailableError) as caught:
            leases.hold(KEY, "b", 1)
        assert caught.value.holder == "a"
    assert held.closed
    assert not held.lost.is_set()
    with pytest.raises(ClosedError):
        held.check()
    assert leases.get_lease_owner(KEY) is None
    held.close()
    held.release()


@pytest.mark.parametrize("how", ["release", "expire"])
def test_hold_waits(how):
    """``hold`` with a timeout waits until the lease is released, or its lifetime is over, and no longer."""
    leases = LocalLeaseProvider(logging.getLogger("s2pubsub"))
    got: list[Any] = []
    if how == "expire":
        leases.acquire_lease(KEY, "a", 0.05)
    else:
        first = leases.hold(KEY, "a", 10)
    waiter = threading.Thread(target=lambda: got.append(leases.hold(KEY, "b", 10, timeout=LONG)))
    waiter.start()
    if how == "release":
        eventually(lambda: leases._waiting)
        first.close()
    waiter.join(LONG)
    assert leases.get_lease_owner(KEY) == "b"
    with pytest.raises(LeaseUnavailableError):
        leases.hold(KEY, "c", 10, timeout=0.01)
    got[0].close()


@pytest.mark.parametrize("how", ["release", "transfer"])
def test_a_lost_lease_says_so(leases, how):
    """C27: when somebody ends it in the owner's name, ``lost`` is set, ``on_lost`` is called, ``check`` raises."""
    calls: list[bool] = []
    held = leases.hold(KEY, "a", 10, on_lost=lambda: calls.append(True))
    if how == "release":
        leases.release_lease(KEY, "a")
    else:
        leases.transfer_lease(KEY, "a", "b", 10)
    assert held.lost.is_set()
    assert calls == [True]
    with pytest.raises(LeaseLostError, match="released" if how == "release" else "transferred to 'b'"):
        held.check()
    with pytest.raises(LeaseLostError):
        held.transfer("c")
    held.close()
    assert leases.get_lease_owner(KEY) == (None if how == "release" else "b")


def test_an_error_of_on_lost_is_logged(leases, caplog):
    """What ``on_lost`` raises does not fail the one who took the lease away."""
    held = leases.hold(KEY, "a", 10, on_lost=lambda: 1 / 0)
    assert leases.release_lease(KEY, "a")
    assert held.closed
    assert "on_lost" in caplog.text


def test_transfer_of_a_held_lease(leases):
    """``transfer`` ends the handle without a loss; the new owner has the lease for its lifetime."""
    with leases.hold(KEY, "a", 10) as held:
        held.transfer("a")
        held.check()
        held.transfer("b")
        assert leases.get_lease_owner(KEY) == "b"
        assert not held.lost.is_set()
        with pytest.raises(ClosedError, match="'b'"):
            held.check()
    assert leases.get_lease_owner(KEY) == "b"


def test_in_an_exit_stack(leases):
    """Several leases are held and freed together."""
    with ExitStack() as stack:
        for key in ("1", "2"):
            stack.enter_context(leases.hold(key, "a", 10))
        assert leases.get_lease_owner("2") == "a"
    assert leases.get_lease_owner("1") is leases.get_lease_owner("2") is None


def test_a_dropped_handle_frees_its_lease(leases):
    """A handle that nobody refers to any more complains and frees its lease."""
    held: Any = leases.hold(KEY, "a", 10)
    with pytest.warns(ResourceWarning, match="LocalHeldLease"):
        del held
    assert leases.get_lease_owner(KEY) is None


def test_leases_that_are_over_are_forgotten(leases, clock):
    """C38: keys that are used once do not pile up."""
    for n in range(1000):
        leases.acquire_lease(f"key-{n}", "a", 1)
        clock.now += 1
    assert len(leases._leases) < 200


def test_closing_the_transport_ends_its_leases():
    """Handles of a closed transport are closed, those who wait get ClosedError."""
    with LocalPubSub() as local:
        assert local.get_lease_provider() is local.leases
        held = local.leases.hold(KEY, "a", 10)
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                local.leases.hold(KEY, "b", 10, timeout=None)
            except ClosedError as error:
                errors.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
        eventually(lambda: local.leases._waiting)
    waiter.join(LONG)
    assert len(errors) == 1
    assert held.closed
    assert not held.lost.is_set()
    held.close()
