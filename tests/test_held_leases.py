"""Held leases: they renew by themselves, end when told so or when their time is over, and never a moment late."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from s2pubsub import (
    ClosedError,
    LeaseLostError,
    LeaseUnavailableError,
    OperationTimeoutError,
    S2PubSub,
    StoreError,
)
from tests.faults import APPEND, FaultProxy, Request
from tests.leasing import KEY, MovedClock, Register, lease_threads, token_of
from tests.servers import Server
from tests.waiting import LONG, eventually

TTL = 1.2
NOTICED = 0.5
"""Seconds within which a loss must be reported."""


@pytest.fixture
def register(server: Server, basin: str) -> Register:
    return Register(server, basin)


class Hook:
    """An ``on_lost`` hook that keeps when and on which thread it was called."""

    def __init__(self) -> None:
        self.called = threading.Event()
        self.calls: list[tuple[float, str]] = []

    def __call__(self) -> None:
        self.calls.append((time.time(), threading.current_thread().name))
        self.called.set()


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
    """A renewal that was stored and whose answer is lost is found to be ours, and the lease goes on."""
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
    """What ``on_lost`` raises is logged with the lease's name; the process goes on."""

    def hook() -> None:
        raise error

    with pubsub.leases.hold("key-1", "owner-a", 30, on_lost=hook) as lease:
        Register(register._server, pubsub.basin, "key-1").write(token_of("owner-b", 30))
        with pytest.raises(LeaseLostError):
            lease.renew()
        eventually(lambda: caplog.records)
    assert "'key-1'" in caplog.text
    assert caplog.records[0].exc_info is not None
    assert caplog.records[0].exc_info[1] is error


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
