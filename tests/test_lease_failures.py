"""Leases when the server or the network fails: nothing is guessed, nothing hangs, nothing blocks for long."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from s2pubsub import (
    ClosedError,
    LeaseUnavailableError,
    OperationTimeoutError,
    S2PubSub,
    S2PubSubError,
    StoreError,
)
from s2pubsub.errors import LeaseError
from tests.faults import APPEND, FaultProxy, Request
from tests.leasing import KEY, Register, lapse, now_ms, token_of
from tests.waiting import LONG, eventually

# Answers that fail or are lost.


def test_failed_look_up_is_not_a_free_lease(make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy) -> None:
    """C24: a look-up answered 503 twice asks again; one that stays so raises; neither says 'nobody'."""
    leases = make_pubsub(endpoints=proxy.url).leases
    leases.acquire_lease(KEY, "owner-a", 30)
    rule = proxy.answer(APPEND, status=503, times=2)
    assert leases.get_lease_owner(KEY) == "owner-a"
    assert rule.fired == 2
    proxy.answer(APPEND, status=503, times=None)
    with pytest.raises(StoreError) as caught:
        leases.get_lease_owner(KEY, timeout=0.5)
    assert caught.value.status == 503


def test_waiter_does_not_start_on_failed_look_ups(
    make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy, pubsub: S2PubSub
) -> None:
    """C24: while its questions fail a waiter goes on waiting; it starts when the lease was really released."""
    pubsub.leases.acquire_lease(KEY, "owner-a", 30)
    rule = proxy.answer(APPEND, status=503, times=None, skip=1)
    waiting = make_pubsub(endpoints=proxy.url).leases
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(waiting.hold, KEY, "owner-b", 30, timeout=LONG)
        rule.wait(3)
        assert not waiter.done()
        assert pubsub.leases.get_lease_owner(KEY) == "owner-a"
        proxy.remove(rule)
        pubsub.leases.release_lease(KEY, "owner-a")
        with waiter.result(LONG):
            assert pubsub.leases.get_lease_owner(KEY) == "owner-b"


def test_waiter_whose_look_ups_fail_for_good_raises(
    make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy, pubsub: S2PubSub
) -> None:
    """C24: at the end of its time a waiter that could not look does not hold the lease."""
    pubsub.leases.acquire_lease(KEY, "owner-a", 30)
    proxy.answer(APPEND, status=503, times=None, skip=1)
    with pytest.raises((StoreError, LeaseUnavailableError)):
        make_pubsub(endpoints=proxy.url).leases.hold(KEY, "owner-b", 30, timeout=0.7)
    assert pubsub.leases.get_lease_owner(KEY) == "owner-a"


@pytest.mark.parametrize("successor", ["owner-a", "owner-b"])
def test_failed_acquire_blocks_nobody_for_long(
    make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy, pubsub: S2PubSub, register: Register, successor: str
) -> None:
    """C29: after an acquire that was stored and raised, its owner gets the lease at once, others when it has lapsed."""
    behind = make_pubsub(endpoints=proxy.url)
    behind.leases.get_lease_owner("warm up")
    lost = proxy.lose_response(APPEND, times=None)
    with pytest.raises((StoreError, OperationTimeoutError)) as caught:
        behind.leases.acquire_lease(KEY, "owner-a", 1, timeout=0.4)
    assert caught.value.outcome == "unknown"
    assert lost.fired >= 1
    proxy.clear()
    result = pubsub.leases.acquire_lease(KEY, successor, 30)
    assert (result.acquired, result.owner) == (successor == "owner-a", "owner-a")
    if successor != "owner-a":
        lapse(register)
        assert pubsub.leases.acquire_lease(KEY, successor, 30).acquired


@pytest.mark.parametrize("answer", ["reset", "end", "missing"])
@pytest.mark.parametrize("verb", ["acquire", "renew", "transfer", "release"])
def test_lost_answer(
    make_pubsub: Callable[..., S2PubSub],
    proxy: FaultProxy,
    pubsub: S2PubSub,
    register: Register,
    verb: str,
    answer: str,
) -> None:
    """A request that was stored and whose answer is lost ends in success: the next answer names its token."""
    leases = make_pubsub(endpoints=proxy.url).leases
    if verb != "acquire":
        pubsub.leases.acquire_lease(KEY, "owner-a", 30)
    leases.acquire_lease("warm up", "owner-a", 30)
    how = {"reset": "rst", "end": "fin", "missing": None}[answer]
    lost = proxy.lose_response(Request(kind="append", stream=register.stream), how=how, skip=verb != "acquire")
    done = {
        "acquire": lambda: leases.acquire_lease(KEY, "owner-a", 30, timeout=4).acquired,
        "renew": lambda: leases.renew_lease(KEY, "owner-a", 60, timeout=4),
        "transfer": lambda: leases.transfer_lease(KEY, "owner-a", "owner-b", 30, timeout=4),
        "release": lambda: leases.release_lease(KEY, "owner-a", timeout=4),
    }[verb]()
    assert done
    assert lost.fired == 1
    assert register.owner() == {"transfer": "owner-b", "release": None}.get(verb, "owner-a")
    assert len(register.records()) == (1 if verb == "acquire" else 2)


def test_refused_connections_are_tried_again(make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy) -> None:
    """A server that is away for a moment delays an acquire and does not fail it."""
    leases = make_pubsub(endpoints=proxy.url).leases
    with ThreadPoolExecutor(1) as pool:
        with proxy.refusing():
            acquiring = pool.submit(leases.acquire_lease, KEY, "owner-a", 30)
            with pytest.raises(TimeoutError):
                acquiring.result(0.5)
        assert acquiring.result(LONG).acquired


@pytest.mark.parametrize("verb", ["transfer", "release"])
def test_unknown_outcome_is_not_guessed(
    make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy, pubsub: S2PubSub, register: Register, verb: str
) -> None:
    """Stored, its answer lost, and the lease changed by others before it could be asked about: an error says so."""
    leases = make_pubsub(endpoints=proxy.url).leases
    leases.acquire_lease(KEY, "owner-a", 30)
    assert leases.get_lease_owner(KEY) == "owner-a"  # both connections are open now
    lost = proxy.lose_response(Request(kind="append", stream=register.stream), skip=1)
    with ThreadPoolExecutor(1) as pool, proxy.refusing():
        if verb == "transfer":
            changing = pool.submit(leases.transfer_lease, KEY, "owner-a", "owner-b", 30)
        else:
            changing = pool.submit(leases.release_lease, KEY, "owner-a")
        lost.wait()
        register.write(token_of("owner-c", 30))
        proxy.accept()
        with pytest.raises(StoreError) as caught:
            changing.result(LONG)
    assert (caught.value.outcome, caught.value.code) == ("unknown", "outcome_unknown")
    assert register.owner() == "owner-c"


@pytest.mark.parametrize("fault", ["silent", "drip"])
def test_calls_end_in_time(make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy, fault: str) -> None:
    """C15: with a server that never answers, or one byte a second, each call ends within its limit."""
    leases = make_pubsub(endpoints=proxy.url).leases
    if fault == "silent":
        proxy.silent()
    else:
        proxy.drip(1)
    calls: list[Callable[[], object]] = [
        lambda: leases.acquire_lease(KEY, "owner-a", 10, timeout=1),
        lambda: leases.get_lease_owner(KEY, timeout=1),
        lambda: leases.renew_lease(KEY, "owner-a", 10, timeout=1),
        lambda: leases.hold(KEY, "owner-a", 10, timeout=1),
    ]
    for call in calls:
        begun = time.monotonic()
        with pytest.raises(OperationTimeoutError):
            call()
        assert time.monotonic() - begun < 2


def test_refusals_are_not_tried_again(make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy) -> None:
    """C71: an answer that will not change is raised at once, as it is."""
    leases = make_pubsub(endpoints=proxy.url).leases
    rule = proxy.answer(APPEND, status=403, code="permission_denied", times=None)
    for call in (lambda: leases.acquire_lease(KEY, "a", 1), lambda: leases.get_lease_owner(KEY)):
        with pytest.raises(StoreError) as caught:
            call()
        assert (caught.value.status, caught.value.outcome) == (403, "not_stored")
    assert rule.fired == 2


def test_basin_that_does_not_create_streams(
    make_basin: Callable[..., str], make_pubsub: Callable[..., S2PubSub]
) -> None:
    """Where nothing creates the stream nobody holds the lease, and acquiring it raises what the server says."""
    leases = make_pubsub(basin=make_basin()).leases
    assert leases.get_lease_owner(KEY) is None
    assert not leases.renew_lease(KEY, "owner-a", 10)
    with pytest.raises(StoreError) as caught:
        leases.acquire_lease(KEY, "owner-a", 10)
    assert caught.value.code == "stream_not_found"
    misspelt = make_pubsub(basin=f"t-{uuid.uuid4().hex[:20]}").leases
    with pytest.raises(StoreError, match="basin"):
        misspelt.get_lease_owner(KEY)


def test_closed_client(pubsub: S2PubSub) -> None:
    """C39: every call on the leases of a closed client raises the closed error at once."""
    leases = pubsub.leases
    leases.acquire_lease(KEY, "owner-a", 10)
    pubsub.close()
    for call in (
        lambda: leases.acquire_lease(KEY, "owner-a", 10),
        lambda: leases.get_lease_owner(KEY),
        lambda: leases.renew_lease(KEY, "owner-a", 10),
        lambda: leases.transfer_lease(KEY, "owner-a", "owner-b", 10),
        lambda: leases.release_lease(KEY, "owner-a"),
        lambda: leases.hold(KEY, "owner-a", 10),
    ):
        begun = time.monotonic()
        with pytest.raises(ClosedError):
            call()
        assert time.monotonic() - begun < 0.5


def test_close_ends_calls_that_wait(make_pubsub: Callable[..., S2PubSub], proxy: FaultProxy, pubsub: S2PubSub) -> None:
    """C39: closing the client ends an acquire without an answer and a waiting hold by the closed error."""
    pubsub.leases.acquire_lease(KEY, "owner-b", 30)
    waiting, silent = make_pubsub(), make_pubsub(endpoints=proxy.url)
    rule = proxy.silence(APPEND, times=None)
    with ThreadPoolExecutor(2) as pool:
        holder = pool.submit(waiting.leases.hold, KEY, "owner-a", 10, timeout=None)
        acquiring = pool.submit(silent.leases.acquire_lease, KEY, "owner-a", 10)
        eventually(lambda: rule.hits)
        for client, call in ((waiting, holder), (silent, acquiring)):
            client.close()
            with pytest.raises(ClosedError):
                call.result(2)


def test_leases_outlive_a_dropped_client_variable(make_pubsub: Callable[..., S2PubSub]) -> None:
    """A provider keeps its client alive."""
    leases = make_pubsub().leases
    assert leases.acquire_lease(KEY, "owner-a", 10).acquired


def test_errors_of_leases_are_of_one_kind() -> None:
    """The error that names the holder is a lease error and one of the library's."""
    error = LeaseUnavailableError(KEY, "owner-a")
    assert isinstance(error, LeaseError)
    assert isinstance(error, S2PubSubError)
    assert (error.key, error.holder) == (KEY, "owner-a")
    assert now_ms() > 0
