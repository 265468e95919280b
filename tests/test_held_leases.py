"""Held leases: they renew by themselves, are given away, and are waited for."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from s2pubsub import (
    ClosedError,
    LeaseUnavailableError,
    OperationTimeoutError,
    S2PubSub,
    StoreError,
)
from tests.faults import FaultProxy, Request
from tests.leasing import KEY, Hook, Register, lease_threads
from tests.waiting import LONG, eventually

TTL = 1.2
NOTICED = 0.5
"""Seconds within which a loss must be reported."""


# Keeping it.


def test_renews_by_itself(pubsub: S2PubSub, register: Register) -> None:
    """A lease is held for several of its lifetimes, its expiry and token always those in the register."""
    with pubsub.leases.hold(KEY, "owner-a", TTL) as lease:
        first = lease.expires_at
        assert (lease.key, lease.owner) == (KEY, "owner-a")
        eventually(lambda: lease.token == register.token())
        assert lease_threads() == ["s2pubsub-lease-user 1\\x00th/1"]
        assert pubsub.stats().leases == 1
        eventually(lambda: (lease.expires_at - first).total_seconds() > 2 * TTL)
        lease.check()
        assert not lease.lost.is_set()
        assert not lease.closed
        assert register.owner() == "owner-a"
        assert not pubsub.leases.acquire_lease(KEY, "owner-b", 1).acquired
    assert register.owner() is None
    assert lease_threads() == []
    assert pubsub.stats().leases == 0
    assert not lease.lost.is_set()
    with pytest.raises(ClosedError, match="released"):
        lease.check()
    lease.release()
    lease.close()


def test_a_renewal_is_one_append(make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy, register: Register) -> None:
    """A renewal asks nothing first: it replaces the token that it knows, by one request."""
    with make_pubsub(endpoints=proxy.url).leases.hold(KEY, "owner-a", 30) as lease:
        before = len(proxy.seen(Request(stream=register.stream)))
        for n in range(1, 4):
            lease.renew()
            assert len(proxy.seen(Request(stream=register.stream))) == before + n
        assert lease.token == register.token()


def test_in_an_exit_stack(pubsub: S2PubSub, register: Register) -> None:
    """Leases can be entered in an exit stack; all are released at its end, also after an error in the block."""

    def work() -> None:
        with contextlib.ExitStack() as stack:
            leases = [stack.enter_context(pubsub.leases.hold(f"key-{n}", "owner-a", 5)) for n in range(3)]
            assert pubsub.stats().leases == 3
            for lease in leases:
                lease.check()
            raise KeyError("work")

    with pytest.raises(KeyError):
        work()
    assert [pubsub.leases.get_lease_owner(f"key-{n}") for n in range(3)] == [None] * 3


def test_transfer(pubsub: S2PubSub, register: Register) -> None:
    """A lease that was transferred is the other one's at once; the handle is closed and not lost."""
    hook = Hook()
    with pubsub.leases.hold(KEY, "owner-a", 5, on_lost=hook) as lease:
        with pytest.raises(ValueError, match="owner"):
            lease.transfer("seventeen-bytes-x")
        lease.transfer("owner-b")
        assert register.owner() == "owner-b"
        for call in (lease.check, lease.renew, lambda: lease.transfer("owner-c")):
            with pytest.raises(ClosedError, match="owner-b"):
                call()
    assert register.owner() == "owner-b"
    assert not lease.lost.is_set()
    assert not hook.calls


def test_transfer_without_an_unowned_moment(pubsub: S2PubSub, make_pubsub: Callable[..., S2PubSub]) -> None:
    """Look-ups during transfers to and fro never find the lease free."""
    watching = make_pubsub().leases
    stop = threading.Event()
    seen: list[str | None] = []

    def watch() -> None:
        while not stop.is_set():
            seen.append(watching.get_lease_owner(KEY))

    pubsub.leases.acquire_lease(KEY, "owner-a", 30)
    with ThreadPoolExecutor(1) as pool:
        watcher = pool.submit(watch)
        for n in range(20):
            here, there = ("owner-a", "owner-b")[:: 1 if n % 2 == 0 else -1]
            assert pubsub.leases.transfer_lease(KEY, here, there, 30)
        stop.set()
        watcher.result(LONG)
    assert set(seen) <= {"owner-a", "owner-b"}


def test_renewals_that_a_release_overtakes(make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy) -> None:
    """Calls of ``renew`` that wait for a server which is away end when the lease is released: with a ClosedError."""
    pubsub = make_pubsub(endpoints=proxy.url, access_token="test")
    lease = pubsub.leases.hold(KEY, "owner-a", 30)
    errors: list[BaseException | None] = []

    def renew() -> None:
        try:
            lease.renew(timeout=20)
        except BaseException as error:
            errors.append(error)

    with proxy.refusing():
        proxy.cut()
        threads = [threading.Thread(target=renew) for _ in range(2)]
        for thread in threads:
            thread.start()
            thread.join(0.3)
        with contextlib.suppress(StoreError, OperationTimeoutError):
            lease.release(timeout=0.5)
        for thread in threads:
            thread.join(LONG)
            assert not thread.is_alive()
    assert [type(error) for error in errors] == [ClosedError] * 2
    assert all("released" in str(error) for error in errors)


def test_renewals_of_several_threads_wait_for_the_server(
    make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy
) -> None:
    """Two calls of ``renew`` in an outage: both are done when the server is back."""
    pubsub = make_pubsub(endpoints=proxy.url, access_token="test")
    with pubsub.leases.hold(KEY, "owner-a", 30) as lease, ThreadPoolExecutor(2) as pool:
        with proxy.refusing():
            proxy.cut()
            renewals = [pool.submit(lease.renew, timeout=LONG) for _ in range(2)]
            time.sleep(0.5)
            assert not any(renewal.done() for renewal in renewals)
        for renewal in renewals:
            renewal.result(LONG)


def test_renewed_from_elsewhere(pubsub: S2PubSub, register: Register) -> None:
    """A renewal in the same name from elsewhere does not make the holder lose its lease."""
    with pubsub.leases.hold(KEY, "owner-a", TTL) as lease:
        assert pubsub.leases.renew_lease(KEY, "owner-a", 30)
        lease.renew()
        lease.check()
        eventually(lambda: lease.token == register.token())


# Waiting for it.


def test_held_by_somebody_else(pubsub: S2PubSub) -> None:
    """Without a timeout hold says at once who has the lease; with one it waits for it and says so then."""
    pubsub.leases.acquire_lease(KEY, "owner-b", 30)
    for timeout in (0, 0.4):
        begun = time.monotonic()
        with pytest.raises(LeaseUnavailableError) as caught:
            pubsub.leases.hold(KEY, "owner-a", 5, timeout=timeout)
        assert timeout <= time.monotonic() - begun < timeout + 0.8
        assert (caught.value.key, caught.value.holder) == (KEY, "owner-b")


def test_waits_for_release_and_for_expiry(pubsub: S2PubSub) -> None:
    """A waiter gets the lease soon after it was released, and soon after the lifetime of a holder that is gone."""
    pubsub.leases.acquire_lease(KEY, "owner-b", 30)
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(pubsub.leases.hold, KEY, "owner-a", 5, timeout=LONG)
        with pytest.raises(TimeoutError):
            waiter.result(0.2)
        pubsub.leases.release_lease(KEY, "owner-b")
        with waiter.result(2):
            pass
    gone = pubsub.leases.acquire_lease(KEY, "owner-b", 1)
    with pubsub.leases.hold(KEY, "owner-a", 5, timeout=LONG) as lease:
        assert gone.expires_at is not None
        late = (lease.expires_at - gone.expires_at).total_seconds() - 5
        assert 0 <= late < NOTICED


def test_waiters_take_turns(make_pubsub: Callable[..., S2PubSub]) -> None:
    """Several waiters of several clients each hold the lease once, and never two at a time."""
    inside: list[int] = []
    overlaps: list[int] = []

    def work(number: int) -> None:
        with clients[number % 2].leases.hold(KEY, f"owner-{number}", 5, timeout=LONG) as lease:
            inside.append(number)
            overlaps.append(len(inside))
            lease.renew()
            inside.remove(number)

    clients = [make_pubsub(), make_pubsub()]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert overlaps == [1] * 4
