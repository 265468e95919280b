"""What a client has made goes with it when nobody refers to it any more. More of C44."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from s2pubsub import BatchOptions, LocalPubSub, S2PubSub
from s2pubsub.runs import Runs
from tests.servers import Server
from tests.topics import our_threads
from tests.waiting import LONG, eventually

TOPIC = "agent.thread-stream.collect"


def all_dead(made: list[weakref.ref[Any]]) -> bool:
    gc.collect()
    return [ref() for ref in made if ref() is not None] == []


@pytest.mark.limit(60)
def test_everything_that_a_closed_client_has_made(server: Server, basin: str) -> None:
    """C44: publishers, leases, runs, local topics, observations and callbacks of closed clients are all collectable,
    although each of them was in use and some refer to each other in cycles.
    """
    made: list[weakref.ref[Any]] = []

    def use() -> None:
        with S2PubSub(basin=basin, endpoints=server.url, access_token=server.token) as pubsub:
            runs = Runs(pubsub, cleanup_timeout=60)
            publisher = pubsub.publisher(TOPIC)
            publisher.publish(type="t", data=1).result(LONG)
            lease = pubsub.leases.hold("collect", "owner", 30)
            run = runs.run(["a"])
            observation = runs.observe(run.id)
            observation.get(LONG)
            events = pubsub.subscribe("jobs", lambda event: made.append(weakref.ref(publisher)) if pubsub else None)
            follower = pubsub.subscribe(TOPIC, lambda event: pubsub.closed)
            for part in (pubsub, runs, publisher, lease, run, observation, events, follower):
                made.append(weakref.ref(part))
                part.cycle = part if hasattr(part, "__dict__") else None

    for _ in range(5):
        use()
    eventually(lambda: all_dead(made))
    eventually(lambda: our_threads() == [])


@pytest.mark.parametrize("used", [lambda local: None, lambda local: local.subscribe("jobs", print, group="g")])
def test_local_transports(used: Callable[[LocalPubSub], object]) -> None:
    """C44: local transports that are closed, or just dropped, are collectable with their topics and their threads."""
    made: list[weakref.ref[Any]] = []

    def use(*, close: bool) -> None:
        local = LocalPubSub()
        made.append(weakref.ref(local))
        used(local)
        events = local.subscribe("news", lambda event: None, batch=BatchOptions(max_size=2))
        made.append(weakref.ref(events))
        local.publish("news", type="t", data=1)
        if close:
            local.close()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # dropping unclosed is what is tried
        for number in range(20):
            use(close=number % 2 == 0)
        eventually(lambda: all_dead(made))
    eventually(lambda: not [name for name in our_threads() if "local" in name])
