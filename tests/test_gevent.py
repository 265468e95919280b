"""Under gevent, with everything patched before the import, the library works and blocks nobody; else it says so.

Scripts in processes of their own, since patching cannot be undone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from s2pubsub import S2PubSub
from tests.preforking import get, gunicorn
from tests.servers import ON_LITE, Server
from tests.waiting import LONG

pytest.importorskip("gevent")
pytestmark = [ON_LITE, pytest.mark.limit(60)]

TOPIC = "agent.stream.run-7"
ROOT = Path(__file__).parent.parent

PATCHED = """\
from gevent import monkey
monkey.patch_all()
import gevent, time, sys
from s2pubsub import ClosedError, S2PubSub
TOPIC = "agent.stream.run-7"

ticks = []
def tick():
    while True:
        ticks.append(time.monotonic())
        gevent.sleep(0.05)
ticker = gevent.spawn(tick)

def ticks_in(seconds):
    before = len(ticks)
    gevent.sleep(seconds)
    return len(ticks) - before

usual = ticks_in(1)  # 20 on a machine that has nothing else to do
"""


@pytest.fixture
def run(server: Server, basin: str, tmp_path: Path) -> Callable[..., str]:
    """Run a script, whose client finds the server by its host's name; it must exit with 0 and print no complaint."""

    def run(script: str, before: str = PATCHED) -> str:
        path = tmp_path / "script.py"
        path.write_text(before + textwrap.dedent(script))
        names = {key: value.replace("127.0.0.1", "localhost") for key, value in server.endpoints_env().items()}
        ended = subprocess.run(
            [sys.executable, path],
            env={**os.environ, **names, "S2_BASIN": basin, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=40,
        )
        assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
        return ended.stdout

    return run


def test_greenlets_publish_and_subscribe(run: Callable[..., str]) -> None:
    """C43: greenlets subscribe, publish and close; events arrive within a second, and a ticking greenlet goes on."""
    run(
        """
        pubsub = S2PubSub()
        events = pubsub.subscribe(TOPIC)
        arrived = []
        reader = gevent.spawn(lambda: [arrived.append((time.monotonic(), event.data)) for event in events])
        called = []
        pubsub.subscribe(TOPIC, called.append)
        began = len(ticks), time.monotonic()
        for n in range(20):
            sent = time.monotonic()
            pubsub.publish(TOPIC, type="chunk", data=n)
            while len(arrived) <= n:
                gevent.sleep(0.001)
            assert arrived[n][1] == n and arrived[n][0] - sent < 1, arrived[n][0] - sent
        assert ticks_in(2) >= 0.75 * 2 * usual
        assert [event.data for event in called] == list(range(20))
        assert [event.data for event in pubsub.get_history(TOPIC)] == list(range(20))
        closing = time.monotonic()
        pubsub.close()
        assert time.monotonic() - closing < 2
        reader.join(timeout=2)
        assert reader.ready()
        """
    )


def test_many_greenlets_wait(run: Callable[..., str]) -> None:
    """C43: fifty waiting readers, with and without limits, leave the other greenlets their turns."""
    run(
        """
        pubsub = S2PubSub()
        subscriptions = [pubsub.subscribe(f"{TOPIC}-{n % 5}") for n in range(50)]
        got = []

        def read(events):
            try:
                events.get(timeout=0.01)
            except TimeoutError:
                pass
            got.append(events.get(timeout=10).data)

        readers = [gevent.spawn(read, events) for events in subscriptions]
        assert ticks_in(1) >= 0.75 * usual
        writers = [gevent.spawn(pubsub.publish, f"{TOPIC}-{n}", type="chunk", data=n) for n in range(5)]
        gevent.joinall(readers + writers, timeout=10, raise_error=True)
        assert sorted(got) == sorted(n % 5 for n in range(50))
        closing = time.monotonic()
        pubsub.close()
        assert time.monotonic() - closing < 2
        """
    )


def test_other_parts(run: Callable[..., str]) -> None:
    """C43: publishers and leases work under gevent too."""
    run(
        """
        with S2PubSub() as pubsub:
            with pubsub.publisher(TOPIC) as publisher:
                futures = [publisher.publish(type="chunk", data=n) for n in range(100)]
                publisher.flush(timeout=10)
                assert [future.result(5).index for future in futures] == list(range(100))
            with pubsub.leases.hold("key", "owner", 5):
                assert pubsub.leases.get_lease_owner("key") == "owner"
                assert ticks_in(1) >= 0.75 * usual
            assert pubsub.leases.get_lease_owner("key") is None
        """
    )


def test_a_forgotten_close(run: Callable[..., str]) -> None:
    """C46: a script under gevent that forgets to close ends by itself, in silence."""
    began = time.monotonic()
    run(
        """
        pubsub = S2PubSub()
        events = pubsub.subscribe(TOPIC)
        gevent.spawn(lambda: list(events))
        pubsub.subscribe(TOPIC, print)
        """
    )
    assert time.monotonic() - began < LONG


@pytest.mark.parametrize(
    "patching",
    [
        "from s2pubsub import S2PubSub\nfrom gevent import monkey\nmonkey.patch_all()\n",
        "import s2pubsub\nimport gevent.monkey\n",
    ],
    ids=["late", "not at all"],
)
def test_late_patching(run: Callable[..., str], patching: str) -> None:
    """C43: patched after the import, the first call says so and does not hang; gevent that patched nothing is fine."""
    printed = run(
        """
        from s2pubsub import S2PubSub
        import time
        began = time.monotonic()
        pubsub = S2PubSub()
        for action in (
            lambda: pubsub.publish("agent.a", type="chunk", data=0),
            lambda: pubsub.subscribe("agent.a"),
            lambda: pubsub.get_history("agent.a"),
        ):
            try:
                action()
            except RuntimeError as error:
                print(error)
        assert time.monotonic() - began < 5
        pubsub.close()
        """,
        before=patching,
    )
    if "patch_all" in patching:
        assert printed.count("call gevent.monkey.patch_all() first") == 3
    else:
        assert printed == ""


STREAMING = f"""
    from flask import Flask, Response
    from s2pubsub import S2PubSub

    pubsub = S2PubSub()
    app = Flask(__name__)

    @app.get("/")
    def up():
        return "up"

    @app.get("/events")
    def events():
        subscription = pubsub.subscribe({TOPIC!r})
        def body():
            with subscription:
                yield ":open\\n\\n"
                for event in subscription:
                    yield f"id: {{event.index}}\\ndata: {{event.data}}\\n\\n"
        return Response(body(), mimetype="text/event-stream")
"""


@pytest.fixture
def streaming(server: Server, basin: str, tmp_path: Path) -> Iterator[str]:
    """The address of an app that streams, under gunicorn's gevent worker."""
    with gunicorn(tmp_path, STREAMING, server, basin, "-k", "gevent", "-w", "1", "--graceful-timeout", "2") as url:
        yield url


@pytest.mark.web
def test_a_gevent_worker_serves_many_streams(streaming: str, pubsub: S2PubSub) -> None:
    """C43: twenty open event streams in one gevent worker each get the event within a second, and others are served."""
    arrived: list[float] = []
    opened = threading.Barrier(21)

    def read() -> None:
        with urllib.request.urlopen(f"{streaming}/events", timeout=LONG) as stream:
            assert stream.readline() == b":open\n"
            opened.wait(LONG)
            while not stream.readline().startswith(b"data: 7"):
                pass
            arrived.append(time.monotonic())

    readers = [threading.Thread(target=read) for _ in range(20)]
    for reader in readers:
        reader.start()
    opened.wait(LONG)
    sent = time.monotonic()
    pubsub.publish(TOPIC, type="chunk", data=7)
    for reader in readers:
        reader.join(LONG)
    assert len(arrived) == 20
    assert max(arrived) - sent < 1
    assert get(streaming) == "up"
