"""Local topics and local-only events of a client: the default transport, a user's own, and what the store keeps."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from s2pubsub import BatchOptions, ClosedError, Event, GroupNotSupportedError, LocalPubSub, S2PubSub
from tests.waiting import LONG, eventually

TOPIC = "agent.stream.run-7"
LOCAL = "jobs"


def numbers(events: list[Event]) -> list[Any]:
    return [event.data["n"] for event in events]


@pytest.fixture
def offline() -> Any:
    """A client that never connects: local topics need no server."""
    with S2PubSub(basin="no-server", access_token="none", endpoints="http://127.0.0.1:9") as pubsub:
        yield pubsub


def test_local_topics_need_no_server(offline):
    """Topics outside the prefix live in the process: all verbs work without a server, and no I/O thread starts."""
    calls: list[Event] = []
    offline.subscribe(LOCAL, calls.append, start="earliest")
    with offline.subscribe_from_offset(LOCAL, 3) as events:
        event = offline.publish(LOCAL, type="job", data={"n": 1}, run_id="r")
        assert event.index is None
        offline.publish_many(LOCAL, [{"type": "job", "data": {"n": n}} for n in (2, 3)])
        assert events.get(LONG) == event
        offline.flush(LONG)
        assert numbers(calls) == [1, 2, 3]
    assert offline.get_history(LOCAL) == []
    assert list(offline.iter_history(LOCAL)) == []
    offline.unsubscribe(LOCAL, calls.append)
    offline.publish(LOCAL, type="job", data={"n": 4})
    offline.clear_topic(LOCAL)
    offline.flush(LONG)
    assert numbers(calls) == [1, 2, 3]
    assert not [t.name for t in threading.enumerate() if t.name.startswith("s2pubsub-")]


def test_groups_and_batches_of_a_client(offline):
    """``group`` and ``batch`` go through to local topics, and are refused on durable ones."""
    calls: list[Event] = []
    offline.subscribe(LOCAL, calls.append, group="g", batch=BatchOptions(max_size=2))
    with offline.subscribe(LOCAL, group="h") as member:
        offline.publish(LOCAL, type="job", data={"n": 1})
        assert member.ack(member.get(LONG))
    offline.flush(LONG)
    assert numbers(calls) == [1]
    with pytest.raises(GroupNotSupportedError):
        offline.subscribe(TOPIC, print, group="g")
    with pytest.raises(ValueError, match="batch"):
        offline.subscribe(TOPIC, print, batch=BatchOptions(max_size=2))


def test_a_client_closes_what_it_made(offline):
    """The default transport is closed with its client; the client's subscriptions end and everything raises."""
    callback = offline.subscribe(LOCAL, print)
    events = offline.subscribe(LOCAL)
    offline.close()
    assert callback.closed
    assert list(events) == []
    offline.unsubscribe(LOCAL, print)
    for call in (
        lambda: offline.publish(LOCAL, type="job", data=1),
        lambda: offline.subscribe(LOCAL, print),
        lambda: offline.get_history(LOCAL),
    ):
        with pytest.raises(ClosedError):
            call()


def test_a_client_leaves_the_users_transport_open():
    """A transport that the user passed belongs to the user: two clients may share it, and closing one ends nothing."""
    with LocalPubSub() as inner:
        first, second = (
            S2PubSub(basin="no-server", access_token="none", endpoints="http://127.0.0.1:9", inner=inner)
            for _ in range(2)
        )
        with second, second.subscribe(LOCAL) as events:
            first.publish(LOCAL, type="job", data={"n": 1})
            first.close()
            second.publish(LOCAL, type="job", data={"n": 2})
            assert numbers([events.get(LONG), events.get(LONG)]) == [1, 2]
        assert not inner.closed


def test_settings_reach_the_default_transport():
    """The client's ``default`` hook and logger serve local topics, too."""
    with (
        S2PubSub(basin="no-server", access_token="none", endpoints="http://127.0.0.1:9", default=list) as pubsub,
        pubsub.subscribe(LOCAL) as events,
    ):
        pubsub.publish(LOCAL, type="job", data={"n": (1, 2)})
        assert numbers([events.get(LONG)]) == [[1, 2]]


# Local-only events.


OTHER_PROCESS = """
import sys
import s2_sdk
from s2pubsub import S2PubSub
account, basin_url, token, basin, topic = sys.argv[1:]
endpoints = s2_sdk.Endpoints(account=account, basin=basin_url)
with S2PubSub(basin=basin, access_token=token, endpoints=endpoints) as pubsub:
    with pubsub.subscribe(topic) as events:
        print("ready", flush=True)
        for event in events:
            print(event.index, event.data["n"], flush=True)
            if event.data["n"] == "last":
                break
"""


def test_local_only_events_stay_in_the_process(server, basin, make_pubsub):
    """C69: a's subscribers get three events, each once, b's two; history has two, with indices 0 and 1."""
    a = make_pubsub()
    called: list[Event] = []
    arguments = [server.url, server.basin_url, server.token, basin, TOPIC]
    b = subprocess.Popen([sys.executable, "-c", OTHER_PROCESS, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert b.stdout is not None
        assert b.stdout.readline() == "ready\n"
        a.subscribe(TOPIC, called.append)
        with a.subscribe(TOPIC) as events:
            stored = a.publish(TOPIC, type="chunk", data={"n": 1})
            assert stored.index == 0
            got = [events.get(LONG)]
            local = a.publish(TOPIC, type="chunk", data={"n": "local"}, local_only=True)
            assert local.index is None
            got.append(events.get(LONG))
            assert a.publish(TOPIC, type="chunk", data={"n": "last"}).index == 1
            got.append(events.get(LONG))
            assert [(event.index, event.data["n"]) for event in got] == [(0, 1), (None, "local"), (1, "last")]
            assert events.next_index == 2
            eventually(lambda: len(called) >= 3)
            assert sorted(str(event.data["n"]) for event in called) == ["1", "last", "local"]
        assert b.stdout.read() == "0 1\n1 last\n"
        assert b.wait(LONG) == 0
    finally:
        b.kill()
        b.wait()
        b.stdout.close()
    assert [(event.index, event.data["n"]) for event in a.get_history(TOPIC)] == [(0, 1), (1, "last")]


def test_resuming_does_not_repeat_local_events(server, make_pubsub, proxy):
    """C69: after the connection was cut, and in a new subscription, only the stored events come (again)."""
    pubsub = make_pubsub(endpoints=proxy.url)
    with pubsub.subscribe(TOPIC) as events:
        pubsub.publish(TOPIC, type="chunk", data={"n": 1})
        assert events.get(LONG).data["n"] == 1
        pubsub.publish(TOPIC, type="chunk", data={"n": "local"}, local_only=True)
        assert events.get(LONG).data["n"] == "local"
        proxy.cut()
        pubsub.publish(TOPIC, type="chunk", data={"n": 2})
        event = events.get(LONG)
        assert (event.index, event.data["n"]) == (1, 2)
    with pubsub.subscribe_from_offset(TOPIC, 0) as again:
        assert numbers([again.get(LONG), again.get(LONG)]) == [1, 2]


def test_local_only_events_are_copies(pubsub):
    """C64: on a durable topic, too, one reader's changes to a local-only event are not seen by the other."""
    with pubsub.subscribe(TOPIC) as first, pubsub.subscribe(TOPIC) as second:
        data = {"n": [1]}
        pubsub.publish(TOPIC, type="chunk", data=data, local_only=True)
        data["n"].append(2)
        event = first.get(LONG)
        event.data["n"].append(3)
        assert second.get(LONG).data == {"n": [1]}
        assert event.data == {"n": [1, 3]}
    assert pubsub.get_history(TOPIC) == []


def test_local_only_on_a_local_topic(pubsub):
    """On a local topic all events are local-only."""
    with pubsub.subscribe(LOCAL) as events:
        pubsub.publish(LOCAL, type="job", data={"n": 1}, local_only=True)
        assert numbers([events.get(LONG)]) == [1]
