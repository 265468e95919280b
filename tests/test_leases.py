"""Leases by single requests: who gets one, and who may change it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from s2pubsub import (
    S2PubSub,
)
from s2pubsub.fence import decode_token
from s2pubsub.leases import S2LeaseProvider
from tests.leasing import KEY, MEMBER, SOON, MovedClock, Register, lapse, token_of
from tests.waiting import LONG

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
    """C49: Many threads acquire and renew in one name at once: all are told that they hold it."""
    with ThreadPoolExecutor(8) as pool:
        acquired = list(pool.map(lambda _: leases.acquire_lease(KEY, "owner-a", 30), range(16)))
    assert all(result.acquired and result.owner == "owner-a" for result in acquired)
