"""Leases that both languages take, renew, hand over and free, with the same tokens."""

from __future__ import annotations

import os
import random
import threading
import uuid
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from urllib.parse import quote

import pytest

from s2pubsub import LeaseUnavailableError, S2PubSub
from s2pubsub.fence import decode_token, encode_token
from tests.interop.node import NodeError, Peer
from tests.raw import PREFIX, Streams
from tests.servers import Server
from tests.waiting import LONG, eventually

pytestmark = pytest.mark.interop

KEY = "user 1\0th/1"
FAR = 4102444800000
EXPIRED = "pQEBm3baqAABAgMPj61b2ctGn6FlcIZ3KJUO"
VECTORS = [
    ("0f8fad5b-d9cb-469f-a165-70867728950e", FAR, "pQEDuyzD2AABAgMPj61b2ctGn6FlcIZ3KJUO"),
    ("worker-1", FAR, "pQIDuyzD2AABAgN3b3JrZXItMQ"),
    ("wörker-ü", FAR, "pQIDuyzD2AABAgN3w7Zya2VyLcO8"),
    ("0f8fad5b-d9cb-469f-a165-70867728950e", 1767225600000, EXPIRED),
]
REFUSED_OWNERS = ["", "0F8FAD5B-D9CB-469F-A165-70867728950E", "seventeen bytes!!", "ü" * 9, "a\ud83d"]


def tokens(server: Server, basin: str, topic: str) -> list[str]:
    """The bodies of the topic's fence records."""
    path = f"/v1/streams/{quote(PREFIX + topic, safe='')}/records?seq_num=0&count=1000"
    records = server.request("GET", path, headers={"s2-basin": basin, "s2-format": "base64"})["records"]
    return [b64decode(record.get("body", "")).decode() for record in records if record.get("headers")]


@pytest.mark.shows("lease tokens, byte for byte", "both ways")
def test_tokens_are_equal_byte_for_byte(server: Server, basin: str, peer: Peer, pubsub: S2PubSub) -> None:
    """For an owner, an expiry and a nonce both write the same token, and each finds the owner that the other wrote."""
    streams = Streams(server, basin)
    for number, (owner, expires_at, text) in enumerate(VECTORS):
        key = f"{KEY}{number}"
        topic = pubsub.leases.thread_topic(key)
        assert encode_token(owner, expires_at, random=lambda n: bytes([1, 2, 3])).text == text
        assert peer.call("acquireFixed", key=key, owner=owner, expiresAt=expires_at) == {
            "acquired": True,
            "owner": owner,
        }
        assert tokens(server, basin, topic) == [text]
        live = owner if expires_at == FAR else None
        assert pubsub.leases.get_lease_owner(key) == live
        pubsub.clear_topic(topic)
        other = f"{KEY}-again-{number}"
        streams.fence(pubsub.leases.thread_topic(other), text)
        assert peer.call("owners", keys=[other]) == [live]


@pytest.mark.shows("lease tokens, byte for byte", "both ways")
def test_tokens_of_leases_that_are_taken(server: Server, basin: str, peer: Peer, pubsub: S2PubSub) -> None:
    """A token that TypeScript wrote is the one that Python writes for what it reads in it."""
    topic = pubsub.leases.thread_topic(KEY)
    for owner in (str(uuid.uuid4()), "a", "sixteen bytes ok", "ключ 👋"):
        peer.call("acquire", key=KEY, owner=owner, ttl=60_000)
        text = tokens(server, basin, topic)[-1]
        token = decode_token(text)
        assert token is not None
        assert token.owner == owner
        nonce = b64decode(text + "==", altchars=b"-_")[8:11]
        assert encode_token(owner, token.expires_at_ms, random=lambda n, nonce=nonce: nonce).text == text
        peer.call("release", keys=[KEY], owner=owner)


@pytest.mark.shows("lease tokens, byte for byte", "refused by both")
@pytest.mark.parametrize("owner", REFUSED_OWNERS)
def test_owners_that_fit_no_token(peer: Peer, pubsub: S2PubSub, owner: str) -> None:
    """Both refuse an owner that a token cannot carry."""
    with pytest.raises(ValueError, match="owner"):
        pubsub.leases.acquire_lease(KEY, owner, 10)
    with pytest.raises(NodeError):
        peer.call("acquire", key=KEY, owner=owner, ttl=10_000)


@pytest.mark.limit(60)
@pytest.mark.shows("500 rounds of contention for leases", "both at once")
def test_contention(server: Server, basin: str, peer: Peer, pubsub: S2PubSub) -> None:
    """In 500 rounds, for free leases and for expired ones, exactly one side wins, and both name the same winner."""
    seed = int(os.environ.get("SEED") or random.randrange(2**32))
    print(f"SEED={seed}")
    dice = random.Random(seed)
    leases = pubsub.leases
    streams = Streams(server, basin)
    ours, theirs = "python", str(uuid.UUID(int=dice.getrandbits(128)))
    keys = [f"{KEY} {number}" for number in range(10)]
    wins = {ours: 0, theirs: 0}
    with ThreadPoolExecutor(len(keys)) as pool:
        for batch in range(50):
            begin = threading.Barrier(len(keys))

            def acquire(key: str, delay: float, begin: threading.Barrier = begin) -> tuple[bool, str | None]:
                begin.wait(LONG)
                threading.Event().wait(delay)  # stirs the race; nothing is waited for
                result = leases.acquire_lease(key, ours, 30)
                return result.acquired, result.owner

            # Node begins later by one hop, so it gets the shorter delays.
            delays = [dice.uniform(0, 2) for _ in keys]
            answer = peer.start("contend", keys=keys, owner=theirs, ttl=30_000, delays=delays)
            python = list(pool.map(acquire, keys, [dice.uniform(0, 0.008) for _ in keys]))
            node = [(result["acquired"], result.get("owner")) for result in answer.result(LONG)]
            for (we_won, we_say), (they_won, they_say) in zip(python, node, strict=True):
                assert we_won != they_won, f"{python} {node}"
                winner = ours if we_won else theirs
                assert we_say == they_say == winner
                wins[winner] += 1
            owners = list(pool.map(leases.get_lease_owner, keys))
            assert owners == peer.call("owners", keys=keys) == [ours if won else theirs for won, _ in python]
            if batch % 2:  # the next round is for expired leases
                list(pool.map(lambda key: streams.fence(leases.thread_topic(key), EXPIRED), keys))
                continue
            peer.call("release", keys=keys, owner=theirs)
            assert list(pool.map(leases.release_lease, keys, [ours] * len(keys))) == [won for won, _ in python]
    print(f"wins: {wins}")
    assert sum(wins.values()) == 500
    assert min(wins.values()) > 0, "one side was never first: the race is not one"


@pytest.mark.shows("leases renewed, handed over and freed", "both ways")
def test_handing_over(peer: Peer, pubsub: S2PubSub) -> None:
    """C26: A lease goes from Python to TypeScript and back without a gap; who does not hold it cannot change it."""
    leases = pubsub.leases
    ours, theirs = str(uuid.uuid4()), str(uuid.uuid4())
    assert leases.acquire_lease(KEY, ours, 30).acquired
    assert peer.call("acquire", key=KEY, owner=theirs, ttl=30_000) == {"acquired": False, "owner": ours}
    assert peer.call("renew", key=KEY, owner=theirs, ttl=30_000) is False
    assert peer.call("transfer", **{"key": KEY, "from": theirs, "to": theirs, "ttl": 30_000}) is False
    assert peer.call("renew", key=KEY, owner=ours, ttl=30_000) is True
    assert peer.call("transfer", **{"key": KEY, "from": ours, "to": theirs, "ttl": 30_000}) is True
    assert leases.get_lease_owner(KEY) == theirs
    assert leases.renew_lease(KEY, ours, 30) is False
    assert leases.release_lease(KEY, ours) is False
    refused = leases.acquire_lease(KEY, ours, 30)
    assert (refused.acquired, refused.owner) == (False, theirs)
    assert refused.expires_at is not None
    assert 0 < (refused.expires_at - datetime.now(UTC)).total_seconds() <= 30
    assert leases.transfer_lease(KEY, theirs, ours, 30) is True
    peer.call("release", keys=[KEY], owner=theirs)
    assert peer.call("owners", keys=[KEY]) == [ours]
    assert leases.release_lease(KEY, ours) is True
    assert peer.call("owners", keys=[KEY]) == [None]
    assert peer.call("acquire", key=KEY, owner=theirs, ttl=30_000) == {"acquired": True, "owner": theirs}
    peer.call("release", keys=[KEY], owner=theirs)
    assert leases.get_lease_owner(KEY) is None


@pytest.mark.shows("leases renewed, handed over and freed", "both ways")
def test_a_held_lease_that_typescript_takes_over(peer: Peer, pubsub: S2PubSub) -> None:
    """A lease that Python keeps is renewed for TypeScript to see, and is known to be lost once TypeScript has it."""
    ours, theirs = str(uuid.uuid4()), str(uuid.uuid4())
    lost = threading.Event()
    with pubsub.leases.hold(KEY, ours, 1.5, on_lost=lost.set) as held:
        first = held.token
        eventually(lambda: held.token != first)
        assert peer.call("owners", keys=[KEY]) == [ours]
        assert peer.call("transfer", **{"key": KEY, "from": ours, "to": theirs, "ttl": 30_000}) is True
        assert lost.wait(LONG)
        assert held.lost.is_set()
    assert pubsub.leases.get_lease_owner(KEY) == theirs  # leaving the block has not freed it


@pytest.mark.shows("leases renewed, handed over and freed", "both ways")
def test_waiting_for_typescript(peer: Peer, pubsub: S2PubSub) -> None:
    """Python waits while TypeScript holds a lease, and has it when TypeScript frees it."""
    ours, theirs = str(uuid.uuid4()), str(uuid.uuid4())
    peer.call("acquire", key=KEY, owner=theirs, ttl=60_000)
    with pytest.raises(LeaseUnavailableError) as caught:
        pubsub.leases.hold(KEY, ours, 30)
    assert caught.value.holder == theirs
    freed = peer.start("release", keys=[KEY], owner=theirs)
    with pubsub.leases.hold(KEY, ours, 30, timeout=LONG):
        freed.result(LONG)
        assert peer.call("owners", keys=[KEY]) == [ours]
    assert peer.call("owners", keys=[KEY]) == [None]


@pytest.mark.shows("fence records among events", "skipped by both")
def test_fence_records_among_events(peer: Peer, pubsub: S2PubSub) -> None:
    """C06: Events between lease records have the same indices for both, with holes where the lease was written."""
    topic = pubsub.leases.thread_topic(KEY)
    ours, theirs = str(uuid.uuid4()), str(uuid.uuid4())
    event = {"type": "run-completed", "data": {"type": "run-completed", "runId": theirs}, "runId": theirs}
    pubsub.leases.acquire_lease(KEY, ours, 30)
    with pubsub.subscribe(topic, start=0) as live:
        handle = peer.handle("subscribe", topic=topic, start=0)
        peer.call("publish", topic=topic, events=[event])
        peer.call("transfer", **{"key": KEY, "from": ours, "to": theirs, "ttl": 30_000})
        peer.call("renew", key=KEY, owner=theirs, ttl=30_000)
        pubsub.publish(topic, type=event["type"], data=event["data"], run_id=theirs)
        peer.call("release", keys=[KEY], owner=theirs)
        peer.call("publish", topic=topic, events=[event])
        assert [live.get(LONG).index for _ in range(3)] == [1, 4, 6]
        assert live.next_index == 7
    history = pubsub.get_history(topic)
    for theirs_read in (peer.call("history", topic=topic), peer.call("heard", handle=handle, count=3)):
        assert [(found["index"], found["id"]) for found in theirs_read] == [(e.index, e.id) for e in history]
    assert [found["index"] for found in peer.call("history", topic=topic, offset=2)] == [4, 6]
    assert [found.index for found in pubsub.get_history(topic, 2)] == [4, 6]
