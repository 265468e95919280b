"""Held leases that are lost, given up or left behind: when their holder is told, and what the register says."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from s2pubsub import (
    ClosedError,
    LeaseLostError,
    OperationTimeoutError,
    S2PubSub,
    StoreError,
)
from tests.faults import APPEND, FaultProxy
from tests.leasing import KEY, Hook, MovedClock, Register, lease_threads, token_of
from tests.waiting import LONG, eventually

TTL = 1.2
NOTICED = 0.5
"""Seconds within which a loss must be reported."""


# Losing it.


def test_first_renewal_fails(make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy) -> None:
    """C25: a renewal that is answered 503 and works when tried again leaves the lease held."""
    with make_pubsub(endpoints=proxy.url).leases.hold(KEY, "owner-a", TTL) as lease:
        first = lease.expires_at
        rule = proxy.answer(APPEND, status=503, times=1)
        eventually(lambda: (lease.expires_at - first).total_seconds() > TTL)
        assert rule.fired == 1
        lease.check()
        assert not lease.lost.is_set()


@pytest.mark.parametrize("fault", ["503", "403", "silent", "refused", "lost"])
def test_all_renewals_fail(make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy, fault: str) -> None:
    """C25: when every renewal fails the lease is lost at the end of its lifetime, not before and soon after."""
    hook = Hook()
    with make_pubsub(endpoints=proxy.url).leases.hold(KEY, "owner-a", 1, on_lost=hook) as lease:
        if fault in ("503", "403"):
            proxy.answer(APPEND, status=int(fault), code="fault", times=None)
        elif fault == "silent":
            proxy.silent()
            proxy.stall()
        elif fault == "refused":
            proxy.refuse()
            proxy.cut()
        else:
            proxy.lose_response(APPEND, times=None)
        end = lease.expires_at.timestamp()
        lease.check()
        assert hook.called.wait(LONG)
        ((at, thread),) = hook.calls
        if fault != "lost":  # there a renewal may have been stored, and found to be
            assert end <= at
        assert lease.expires_at.timestamp() - 0.001 <= at <= lease.expires_at.timestamp() + NOTICED
        assert thread.startswith("s2pubsub-lease-")
        assert lease.lost.is_set()
        with pytest.raises(LeaseLostError) as caught:
            lease.check()
        assert (caught.value.key, caught.value.owner) == (KEY, "owner-a")
        assert "lifetime" in caught.value.reason
    proxy.clear()


def test_renewal_whose_answer_is_lost(
    make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy, register: Register
) -> None:
    """C25: A renewal that was stored and whose answer is lost is found to be ours, and the lease goes on."""
    with make_pubsub(endpoints=proxy.url).leases.hold(KEY, "owner-a", 2) as lease:
        lost = proxy.lose_response(APPEND, times=1, how=None)
        lost.wait()
        first = lease.expires_at
        eventually(lambda: lease.expires_at > first)
        lease.check()
        eventually(lambda: lease.token == register.token())


def test_told_that_somebody_else_has_it(pubsub: S2PubSub, register: Register) -> None:
    """A holder whose token was replaced is told so by its next renewal; leaving then does not touch the successor."""
    hook = Hook()
    with pubsub.leases.hold(KEY, "owner-a", 2, on_lost=hook) as lease:
        register.write(token_of("owner-b", 30))
        with pytest.raises(LeaseLostError, match="owner-b"):
            lease.renew()
        assert hook.called.wait(LONG)
        assert lease.lost.is_set()
        with pytest.raises(LeaseLostError, match="owner-b"):
            lease.transfer("owner-c")
        eventually(lambda: not lease_threads())
    assert register.owner() == "owner-b"
    assert len(hook.calls) == 1


def test_topic_cleared(pubsub: S2PubSub) -> None:
    """Clearing the topic frees the lease: its holder loses it."""
    with pubsub.leases.hold(KEY, "owner-a", 30) as lease:
        pubsub.clear_topic(pubsub.leases.thread_topic(KEY), strict=True)
        with pytest.raises(LeaseLostError):
            eventually(lambda: renewed(lease.renew))


def renewed(renew: Callable[[], None]) -> bool:
    """Whether the stream can be written to again; a deletion takes its time."""
    try:
        renew()
    except StoreError:
        return False
    return True


@pytest.mark.parametrize("which", ["wall", "boot"])
def test_either_clock_ends_it(pubsub: S2PubSub, which: str) -> None:
    """The lease is over when the wall clock was set forward, and when the machine has slept through its lifetime."""
    moved, hook = MovedClock(), Hook()
    with pubsub.get_lease_provider(clock=moved.clock).hold(KEY, "owner-a", 30, on_lost=hook) as lease:
        lease.check()
        setattr(moved, f"{which}_ahead", 29.0)
        setattr(moved, f"{which}_ahead", 31.0)
        assert hook.called.wait(1)
        with pytest.raises(LeaseLostError, match="lifetime"):
            lease.check()


def test_check_looks_at_the_clocks(pubsub: S2PubSub) -> None:
    """Whoever asks gets the truth at once, before the lease's thread has looked."""
    moved = MovedClock()
    with pubsub.get_lease_provider(clock=moved.clock).hold(KEY, "owner-a", 30) as lease:
        moved.wall_ahead = 31
        with pytest.raises(LeaseLostError):
            lease.check()
        assert lease.closed
        assert lease.lost.is_set()


@pytest.mark.parametrize("error", [ValueError("hook"), SystemExit(3)])
def test_hook_that_raises(
    pubsub: S2PubSub, register: Register, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """The loss is logged, and what ``on_lost`` raises, each with the lease's name; the process goes on."""

    def hook() -> None:
        raise error

    with pubsub.leases.hold("key-1", "owner-a", 30, on_lost=hook) as lease:
        Register(register._server, pubsub.basin, "key-1").write(token_of("owner-b", 30))
        with pytest.raises(LeaseLostError):
            lease.renew()
        eventually(lambda: len(caplog.records) == 2)
    lost, raised = caplog.records
    assert lost.getMessage() == "lease 'key-1' of 'owner-a' is lost: 'owner-b' has taken it"
    assert "'key-1'" in raised.getMessage()
    assert raised.exc_info is not None
    assert raised.exc_info[1] is error


def test_hook_may_close_everything(make_pubsub: Callable[..., S2PubSub], register: Register) -> None:
    """``on_lost`` may close the handle and the client, on the lease's own thread."""
    client = make_pubsub()
    done = threading.Event()

    def hook() -> None:
        lease.close()
        client.close()
        done.set()

    lease = client.leases.hold(KEY, "owner-a", 30, on_lost=hook)
    register.write(token_of("owner-b", 30))
    with pytest.raises(LeaseLostError):
        lease.renew()
    assert done.wait(LONG)


# Failing requests of the handle.


def test_failed_transfer_leaves_it_held(
    make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy, register: Register
) -> None:
    """A transfer that cannot be made raises; the lease stays held and can be transferred later."""
    with make_pubsub(endpoints=proxy.url).leases.hold(KEY, "owner-a", 20) as lease:
        rule = proxy.answer(APPEND, status=503, times=None)
        with pytest.raises((StoreError, OperationTimeoutError)):
            lease.transfer("owner-b", timeout=0.5)
        lease.check()
        proxy.remove(rule)
        lease.renew()
        lease.transfer("owner-b")
    assert register.owner() == "owner-b"


def test_transfer_whose_answers_are_lost_is_found_out(
    make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy, register: Register
) -> None:
    """A transfer that raised and was stored all the same is found by the next renewal, which ends the handle."""
    with make_pubsub(endpoints=proxy.url).leases.hold(KEY, "owner-a", 20) as lease:
        rule = proxy.lose_response(APPEND, times=None)
        with pytest.raises((StoreError, OperationTimeoutError)) as caught:
            lease.transfer("owner-b", timeout=0.4)
        assert caught.value.outcome == "unknown"
        proxy.remove(rule)
        with pytest.raises(ClosedError, match="owner-b"):
            lease.renew()
        assert not lease.lost.is_set()
    assert register.owner() == "owner-b"


def test_release_that_fails(
    make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """Release raises when the server cannot be told, leaving a block logs it; the handle is closed either way."""
    leases = make_pubsub(endpoints=proxy.url).leases
    lease = leases.hold(KEY, "owner-a", 20)
    rule = proxy.answer(APPEND, status=503, times=None)
    with pytest.raises((StoreError, OperationTimeoutError)):
        lease.release(timeout=0.3)
    with pytest.raises(ClosedError):
        lease.check()
    lease.close()
    proxy.remove(rule)
    with leases.hold("key-2", "owner-a", 20):
        proxy.answer(APPEND, status=403, times=None)
    assert "'key-2'" in caplog.text


# Ends of other things.


def test_dropped_handle(pubsub: S2PubSub, register: Register) -> None:
    """A handle that nobody keeps says so and releases its lease."""
    lease = pubsub.leases.hold(KEY, "owner-a", 30)
    with pytest.warns(ResourceWarning, match="dropped"):
        del lease
    eventually(lambda: register.owner() is None)
    eventually(lambda: not lease_threads())


def test_closing_the_client_releases(make_pubsub: Callable[..., S2PubSub], register: Register) -> None:
    """Closing the client frees its leases on the server and closes their handles."""
    client = make_pubsub()
    lease, other = client.leases.hold(KEY, "owner-a", 30), client.leases.hold("key-2", "owner-a", 30)
    client.close()
    assert register.owner() is None
    assert client.stats().leases == 0
    assert lease_threads() == []
    for handle in (lease, other):
        with pytest.raises(ClosedError, match="client is closed"):
            handle.check()
        assert not handle.lost.is_set()
        handle.close()
    with pytest.raises(ClosedError):
        client.leases.hold("key-3", "owner-a", 30)


@pytest.mark.parametrize("renewing", [False, True])
def test_closing_without_a_server(make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy, renewing: bool) -> None:
    """With a server that does not answer any more close takes little more than a second, also amid a renewal."""
    client = make_pubsub(endpoints=proxy.url)
    lease = client.leases.hold(KEY, "owner-a", 30)
    proxy.silent()
    rule = proxy.silence(APPEND, times=None)
    with ThreadPoolExecutor(1) as pool:
        if renewing:
            renewal = pool.submit(lease.renew, timeout=10)
            eventually(lambda: rule.hits)
        begun = time.monotonic()
        client.close()
        assert time.monotonic() - begun < 2.5
        if renewing:
            with pytest.raises(ClosedError):
                renewal.result(1)
    eventually(lambda: not lease_threads())


def test_warnings_go_to_the_clients_log(make_pubsub: Callable[..., S2PubSub]) -> None:
    """The client's own logger is the one that is used."""
    logger = logging.getLogger("test.leases")
    client = make_pubsub(logger=logger)
    with client.leases.hold(KEY, "owner-a", 5) as lease:
        assert lease._holding.logger is logger
