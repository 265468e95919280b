"""Leases by single requests: who gets one, who may change it, and what becomes of answers that are lost."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

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
from s2pubsub.fence import decode_token
from s2pubsub.leases import S2LeaseProvider
from tests.faults import APPEND, FaultProxy, Request
from tests.leasing import KEY, MovedClock, Register, now_ms, token_of
from tests.servers import Server
from tests.waiting import LONG, eventually

MEMBER = "0f8fad5b-d9cb-469f-a165-70867728950e"
SOON = 0.2
"""Seconds of a lifetime whose end a test waits for."""


@pytest.fixture
def leases(pubsub: S2PubSub) -> S2LeaseProvider:
    return pubsub.get_lease_provider()


@pytest.fixture
def register(server: Server, basin: str) -> Register:
    return Register(server, basin)


def lapse(register: Register) -> None:
    """Wait until nobody has the lease any more."""
    eventually(lambda: register.owner() is None)


# Who gets it.


def test_acquire_free_own_and_held(leases: S2LeaseProvider, register: Register) -> None:
    """A free lease is given, the holder's own is renewed by asking again, and others are told who holds it."""
    before = datetime.now(UTC)
    first = leases.acquire_lease(KEY, "owner-a", 30)
    assert (first.acquired, first.owner) == (True, "owner-a")
    assert first.expires_at is not None
    assert 28 < (first.expires_at - before).total_seconds() < 31
    refused = leases.acquire_lease(KEY, MEMBER, 30)
    assert refused == type(refused)(acquired=False, owner="owner-a", expires_at=first.expires_at)
    again = leases.acquire_lease(KEY, "owner-a", 60)
    assert again.acquired
    assert again.expires_at is not None
    assert again.expires_at > first.expires_at
    assert leases.get_lease_owner(KEY) == "owner-a"
    assert leases.get_lease_owner("another key") is None


def test_only_the_holder_changes_it(leases: S2LeaseProvider, register: Register) -> None:
    """Renew, transfer and release are for the live owner; everybody else gets False and nothing happens."""
    assert not leases.renew_lease(KEY, "owner-a", 30)
    assert not leases.transfer_lease(KEY, "owner-a", "owner-b", 30)
    assert not leases.release_lease(KEY, "owner-a")
    leases.acquire_lease(KEY, "owner-a", 30)
    before = register.expires_at_ms()
    assert not leases.renew_lease(KEY, MEMBER, 60)
    assert not leases.transfer_lease(KEY, MEMBER, "owner-b", 60)
    assert not leases.release_lease(KEY, MEMBER)
    assert register.expires_at_ms() == before
    assert leases.renew_lease(KEY, "owner-a", 60)
    assert register.expires_at_ms() > before
    assert leases.transfer_lease(KEY, "owner-a", MEMBER, 30)
    assert leases.get_lease_owner(KEY) == MEMBER
    assert not leases.release_lease(KEY, "owner-a")
    assert leases.release_lease(KEY, MEMBER)
    assert leases.get_lease_owner(KEY) is None
    assert not leases.release_lease(KEY, MEMBER)


def test_former_holder_cannot_touch_its_successor(leases: S2LeaseProvider, register: Register) -> None:
    """C26: after the lease has lapsed and b has it, a's renew, transfer and release change nothing."""
    leases.acquire_lease(KEY, "owner-a", SOON)
    lapse(register)
    taken = leases.acquire_lease(KEY, "owner-b", 10)
    assert taken.acquired
    token = register.token()
    assert not leases.renew_lease(KEY, "owner-a", 10)
    assert register.token() == token
    assert not leases.transfer_lease(KEY, "owner-a", "owner-c", 10)
    assert register.token() == token
    assert not leases.release_lease(KEY, "owner-a")
    assert register.token() == token
    assert leases.get_lease_owner(KEY) == "owner-b"


def test_lapsed_lease_is_nobodys(leases: S2LeaseProvider, register: Register) -> None:
    """Past its lifetime a lease has no owner, and its former one cannot renew it, only acquire it again."""
    leases.acquire_lease(KEY, "owner-a", SOON)
    lapse(register)
    assert leases.get_lease_owner(KEY) is None
    assert not leases.renew_lease(KEY, "owner-a", 10)
    assert leases.acquire_lease(KEY, "owner-a", 10).acquired


@pytest.mark.parametrize("foreign", ["foreign", "!", "pQIDuyzD2AABAgN3b3JrZXItMR", "ünï"])
def test_foreign_token_is_free(leases: S2LeaseProvider, register: Register, foreign: str) -> None:
    """C28: a token of another format has no owner, is not changed by looking, and can be taken over."""
    register.write(foreign)
    assert leases.get_lease_owner(KEY) is None
    assert not leases.renew_lease(KEY, "owner-a", 10)
    assert register.token() == foreign
    assert leases.acquire_lease(KEY, "owner-a", 10).acquired
    assert register.owner() == "owner-a"


def test_lease_of_another_program(leases: S2LeaseProvider, register: Register) -> None:
    """A token that another program wrote counts: its owner is named, and may renew and release from here."""
    register.write("pQEDuyzD2AABAgMPj61b2ctGn6FlcIZ3KJUO")
    assert leases.get_lease_owner(KEY) == MEMBER
    refused = leases.acquire_lease(KEY, "worker-1", 10)
    assert (refused.acquired, refused.owner) == (False, MEMBER)
    assert refused.expires_at == datetime.fromtimestamp(4102444800, UTC)
    assert leases.renew_lease(KEY, MEMBER, 10)
    assert leases.release_lease(KEY, MEMBER)
    register.write("pQEBm3baqAABAgMPj61b2ctGn6FlcIZ3KJUO")
    assert leases.get_lease_owner(KEY) is None


def test_expiry_beyond_the_calendar(leases: S2LeaseProvider, register: Register) -> None:
    """A token may last longer than dates go: its end is then the last date there is."""
    register.write(token_of("owner-a", 2**48 / 1000 - time.time() - 10))
    refused = leases.acquire_lease(KEY, "owner-b", 10)
    assert (refused.owner, refused.expires_at) == ("owner-a", datetime.max.replace(tzinfo=UTC))


def test_records_of_a_lease(leases: S2LeaseProvider, register: Register) -> None:
    """On the wire a lease is fence records: one each for acquire, renew, transfer and release, whose body is empty."""
    leases.acquire_lease(KEY, "wörker-ü", 30)
    leases.renew_lease(KEY, "wörker-ü", 30)
    leases.transfer_lease(KEY, "wörker-ü", MEMBER, 30)
    leases.get_lease_owner(KEY)
    leases.acquire_lease(KEY, "owner-b", 30)
    leases.release_lease(KEY, MEMBER)
    records = register.records()
    assert [record["headers"] for record in records] == [[["", "fence"]]] * 4
    tokens = [decode_token(record["body"]) for record in records[:3]]
    assert [token.owner for token in tokens if token is not None] == ["wörker-ü", "wörker-ü", MEMBER]
    assert records[3].get("body", "") == ""


def test_thread_topic(leases: S2LeaseProvider) -> None:
    """The lease of a key is on the topic of that key's conversation, encoded as JavaScript does."""
    assert leases.thread_topic(KEY) == "agent.thread-stream.user%201%00th%2F1"


@pytest.mark.parametrize(
    ("owner", "ttl", "problem", "kind"),
    [
        ("", 1, "owner", ValueError),
        ("seventeen-bytes-x", 1, "16", ValueError),
        ("ü" * 9, 1, "18 bytes", ValueError),
        (MEMBER.upper(), 1, "lower-case", ValueError),
        ("\ud800", 1, "surrogate", ValueError),
        (5, 1, "owner", TypeError),
        ("owner-a", 0, "ttl", ValueError),
        ("owner-a", -1, "ttl", ValueError),
        ("owner-a", float("nan"), "ttl", ValueError),
        ("owner-a", float("inf"), "ttl", ValueError),
        ("owner-a", True, "ttl", TypeError),
        ("owner-a", "5", "ttl", TypeError),
        ("owner-a", 2.0**48 / 1000, "too long", ValueError),
    ],
)
def test_wrong_arguments(pubsub: S2PubSub, owner: Any, ttl: Any, problem: str, kind: type[Exception]) -> None:
    """An owner or lifetime that no token can carry is refused before anything is sent."""
    leases = pubsub.leases
    calls: list[Callable[[], object]] = [
        lambda: leases.acquire_lease(KEY, owner, ttl),
        lambda: leases.renew_lease(KEY, owner, ttl),
        lambda: leases.transfer_lease(KEY, "owner-a", owner, ttl),
        lambda: leases.hold(KEY, owner, ttl),
    ]
    if owner != "owner-a":
        calls.append(lambda: leases.release_lease(KEY, owner))
    for call in calls:
        with pytest.raises(kind, match=problem):
            call()
    assert not pubsub.exists(leases.thread_topic(KEY))


def test_wrong_keys(leases: S2LeaseProvider) -> None:
    """A key whose stream's name would be too long is refused with the numbers; so are empty and surrogate ones."""
    longest = "k" * (512 - len("mastra/durable/agent.thread-stream."))
    assert leases.get_lease_owner(longest) is None
    for key, problem in [
        (longest + "k", "513 bytes"),
        ("日" * 60, "575 bytes"),
        ("", "empty"),
        ("\ud800", "surrogate"),
    ]:
        with pytest.raises(ValueError, match=problem):
            leases.acquire_lease(key, "owner-a", 1)


def test_events_never_conflict_with_leases(pubsub: S2PubSub, leases: S2LeaseProvider) -> None:
    """Events published on a lease's topic while it is taken, renewed and released are all stored."""
    topic = leases.thread_topic(KEY)
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            assert leases.acquire_lease(KEY, "owner-a", 10).acquired
            assert leases.renew_lease(KEY, "owner-a", 10)
            assert leases.release_lease(KEY, "owner-a")

    with ThreadPoolExecutor(5) as pool:
        working = pool.submit(busy)
        writers = [pool.submit(publish_numbered, pubsub, topic, writer) for writer in range(4)]
        try:
            for writer in writers:
                writer.result(LONG)
        finally:
            stop.set()
        working.result(LONG)
    found = [tuple(event.data) for event in pubsub.get_history(topic)]
    assert sorted(found) == [(writer, n) for writer in range(4) for n in range(25)]


def publish_numbered(pubsub: S2PubSub, topic: str, writer: int) -> None:
    for n in range(25):
        pubsub.publish(topic, type="chunk", data=[writer, n])


def test_clocks_of_others(pubsub: S2PubSub) -> None:
    """Each process goes by its own wall clock: one that is ahead sees the end earlier."""
    ahead = MovedClock()
    ahead.wall_ahead = 20
    pubsub.leases.acquire_lease(KEY, "owner-a", 10)
    assert pubsub.leases.get_lease_owner(KEY) == "owner-a"
    early = pubsub.get_lease_provider(clock=ahead.clock)
    assert early.get_lease_owner(KEY) is None
    assert early.acquire_lease(KEY, "owner-b", 10).acquired
    assert not pubsub.leases.renew_lease(KEY, "owner-a", 10)


def test_threads_of_one_owner_do_not_refuse_each_other(leases: S2LeaseProvider) -> None:
    """Many threads acquire and renew in one name at once: all are told that they hold it."""
    with ThreadPoolExecutor(8) as pool:
        acquired = list(pool.map(lambda _: leases.acquire_lease(KEY, "owner-a", 30), range(16)))
    assert all(result.acquired and result.owner == "owner-a" for result in acquired)


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
