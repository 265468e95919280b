"""One client on many threads, and many clients at once. More of C49 and C50."""

from __future__ import annotations

import os

import pytest

from s2pubsub import S2PubSub
from s2pubsub.runs import Runs
from s2pubsub.server import LocalServer
from tests.servers import Server
from tests.topics import on_threads, our_threads
from tests.waiting import LONG, eventually

TOPIC = "agent.thread-stream.sharing"


@pytest.mark.limit(60)
def test_every_part_of_a_client_at_once(pubsub: S2PubSub) -> None:
    """C49: twelve threads share one publisher, two write runs and observe them, two take leases in turn, four publish
    on a local topic which two read: every event is stored or delivered once, each thread's in its order.
    """
    runs = Runs(pubsub, cleanup_timeout=0)
    taken: list[str] = []
    with pubsub.publisher(TOPIC, max_in_flight=50) as publisher, pubsub.subscribe("jobs") as jobs:

        def publish(number: int) -> None:
            futures = [publisher.publish(type="t", data=[number, count]) for count in range(100)]
            found = [future.result(LONG).index or 0 for future in futures]
            assert found == sorted(found)

        def write(number: int) -> None:
            for count in range(5):
                run = runs.run([f"{number} ", f"{count}"])
                assert runs.observe(run.id).result().text == f"{number} {count}"

        def lease(number: int) -> None:
            for _ in range(5):
                with pubsub.leases.hold("shared", f"owner-{number}", 30, timeout=LONG) as held:
                    held.check()
                    taken.append(held.owner)

        def local(number: int) -> None:
            for count in range(100):
                pubsub.publish("jobs", type="job", data=[number, count])

        read: list[list[int]] = []

        def take(number: int) -> None:
            read.extend(jobs.get(LONG).data for _ in range(200))

        work = [publish] * 12 + [write] * 2 + [lease] * 2 + [local] * 4 + [take] * 2
        on_threads(len(work), lambda number: work[number](number))
    stored = [event.data for event in pubsub.get_history(TOPIC)]
    assert len(stored) == 1200
    for number in range(12):
        assert [count for writer, count in stored if writer == number] == list(range(100))
    assert sorted(read) == [[number, count] for number in range(16, 20) for count in range(100)]
    assert sorted(taken) == sorted(["owner-14", "owner-15"] * 5)


@pytest.mark.limit(60)
def test_clients_that_open_and_close_beside_each_other(server: Server, basin: str) -> None:
    """C50: six threads open, use and close a client of their own eight times, all at once: nobody is disturbed, and no
    thread and no descriptor is left.
    """

    def use(number: int) -> None:
        for count in range(8):
            topic = f"agent.stream.beside-{number}-{count}"
            with S2PubSub(basin=basin, endpoints=server.url, access_token=server.token) as pubsub:
                with pubsub.subscribe(topic) as events, pubsub.publisher(topic) as publisher:
                    publisher.publish(type="t", data=count)
                    assert events.get(LONG).data == count

    use(99)
    threads, descriptors = our_threads(), len(os.listdir("/proc/self/fd"))
    on_threads(6, use)
    assert our_threads() == threads
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)


@pytest.mark.embedded
def test_a_server_and_a_client_of_its_own_in_every_round() -> None:
    """C50: ten times a new embedded server in this process and a client on it, each closed before the other in turn."""
    for number in range(10):
        server = LocalServer()
        server.start()
        pubsub = S2PubSub(basin="rounds-of-it", endpoints=server.url, access_token=server.token)
        pubsub.ensure_basin()
        with pubsub.subscribe(TOPIC) as events:
            pubsub.publish(TOPIC, type="t", data=number)
            assert events.get(LONG).data == number
        for part in (server, pubsub) if number % 2 else (pubsub, server):
            part.close()
    assert our_threads() == []
