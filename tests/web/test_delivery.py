"""Events reach the browser at once, each once, through middleware, limits, lifetimes and reloads, on real servers."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.servers import ON_EMBEDDED
from tests.waiting import LONG, eventually
from tests.web.event_source import EventSource
from tests.web.processes import DJANGO, DJANGO_ASGI, FLASK, SERVERS

pytestmark = [ON_EMBEDDED, pytest.mark.slow, pytest.mark.limit(90)]


@pytest.mark.parametrize(("kind", "app"), SERVERS)
def test_events_arrive_at_once_behind_compression(serve: Any, connect: Any, make_run: Any, kind: str, app: str):
    """C55, C56: both applications compress what they can, and the client accepts gzip.

    Each event is there within 0.5 s, and the server answers other requests meanwhile.
    """
    run = make_run()
    run.chunk()
    web = serve(kind, app)
    plain, _ = web.get("/plain", {"Accept-Encoding": "gzip"})
    assert plain == 200
    with connect(web.port, "/runs/run-7/events", {"Accept-Encoding": "gzip, deflate, br"}) as viewer:
        fields = {name.lower(): value for name, value in viewer.response.headers.items()}
        assert fields["content-type"] == "text/event-stream"
        assert "no-cache" in fields["cache-control"]
        assert fields["x-accel-buffering"] == "no"
        assert fields["content-encoding"] == "identity"
        messages = viewer.messages()
        assert next(messages).last_event_id == "0"
        for index in range(1, 6):
            threading.Event().wait(0.2)  # as a model that thinks
            run.chunk()
            stored = time.monotonic()
            assert next(messages).last_event_id == str(index)
            assert time.monotonic() - stored < 0.5
            assert web.get("/plain")[0] == 200


@pytest.mark.parametrize("app", [FLASK, DJANGO])
def test_limited_streams_lose_nothing(serve: Any, connect: Any, make_run: Any, app: str):
    """C52: lifetime 2 s, three streams at most, four threads. A browser that comes back by itself sees all 200 events,
    each once; further streams get 503 with Retry-After; a plain page is answered at once.
    """
    run = make_run()
    run.chunk()
    web = serve("gthread", app, threads=4, lifetime=2.0, max_streams=3, heartbeat=0.5)
    done = threading.Event()

    def write() -> None:
        for _ in range(199):
            run.chunk()
            done.wait(0.03)
        run.finish()

    writer = threading.Thread(target=write)
    browser = EventSource(web.port, "/runs/run-7/events", timeout=40)
    seen: list[str] = []
    writer.start()
    try:
        messages = browser.messages()
        seen.append(next(messages).last_event_id)
        statuses = []
        others = []
        for _ in range(10):
            other = connect(web.port, "/runs/run-7/events")
            others.append(other)
            statuses.append(other.status)
            if other.status == 503:
                assert other.response.headers["Retry-After"]
        assert statuses.count(200) == 2
        assert statuses.count(503) == 8
        began = time.monotonic()
        assert web.get("/plain")[0] == 200
        assert time.monotonic() - began < 0.5
        for other in others:
            other.close()
        seen += [message.last_event_id for message in messages if message.type != "end"]
    finally:
        done.set()
        writer.join(LONG)
    assert seen == [str(index) for index in range(201)]
    assert browser.connections > 2


@pytest.mark.parametrize(
    ("kind", "app", "limit"),
    [
        ("gthread", FLASK, 8),
        ("gthread", DJANGO, 8),
        ("preload", FLASK, 8),
        ("gevent", FLASK, 8),
        ("uvicorn", DJANGO_ASGI, 4),
    ],
)
def test_streams_end_when_their_server_stops(
    serve: Any, connect: Any, make_run: Any, kind: str, app: str, limit: float
):
    """A server that would wait for its responses (gunicorn 30 s, uvicorn for ever) stops at once: the streams end by
    themselves, without an end, so that browsers come back.
    """
    make_run(chunks=1)
    web = serve(kind, app)
    viewers = [connect(web.port, "/runs/run-7/events") for _ in range(5)]
    readers = [viewer.messages() for viewer in viewers]
    for reader in readers:
        next(reader)
    process = web.terminate()
    began = time.monotonic()
    for reader in readers:
        assert list(reader) == []
    assert time.monotonic() - began < 3
    assert process.wait(20) in (0, -15)  # uvicorn ends by the signal itself
    assert time.monotonic() - began < limit
    for viewer in viewers:
        viewer.close()


def test_a_reload_loses_nothing(serve: Any, make_run: Any):
    """Gunicorn replaces its workers in the middle of a run; browsers come back and see each event once."""
    run = make_run(chunks=1)
    web = serve("gthread", FLASK)
    browser = EventSource(web.port, "/runs/run-7/events", timeout=40)
    messages = browser.messages()
    seen = [next(messages).last_event_id]
    stop = threading.Event()
    failures: list[BaseException] = []

    def write() -> None:
        try:
            while not stop.wait(0.02):
                run.chunk()
            run.finish()
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(2):
            connections = browser.connections
            web.hang_up()
            while browser.connections == connections:
                seen.append(next(messages).last_event_id)
    finally:
        stop.set()
        writer.join(LONG)
    seen += [message.last_event_id for message in messages if message.type != "end"]
    assert failures == []
    assert seen == [str(index) for index in range(len(seen))]
    assert run.pubsub.tail(run.topic) == len(seen)


def test_a_killed_server_loses_nothing(serve: Any, make_run: Any):
    """After kill -9 and a restart the page goes on by itself, with each event once."""
    run = make_run(chunks=3)
    web = serve("gthread", FLASK)
    browser = EventSource(web.port, "/runs/run-7/events", timeout=40)
    messages = browser.messages()
    seen = [next(messages).last_event_id for _ in range(3)]
    # gunicorn's worker notices that its master is gone, and ends.
    web.kill()
    run.chunks(2)
    run.finish()
    eventually(lambda: _free(web.port), 20)
    web.start()
    seen += [message.last_event_id for message in messages if message.type != "end"]
    assert seen == [str(index) for index in range(6)]


def _free(port: int) -> bool:
    import socket

    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return False
    except OSError:
        return True


def test_a_live_topic_is_resumed_without_a_gap(serve: Any, connect: Any, pubsub: Any):
    """Any topic can be shown; a browser that is cut off before the first event misses nothing."""
    web = serve("gthread", FLASK)
    topic = "agent.news"
    with connect(web.port, f"/topics/{topic}") as first:
        assert list(first.messages()) == []  # its lifetime of a second is over
        position = first.parser.last_event_id
    assert position == "-1"
    assert first.parser.retry == 1000


@pytest.mark.parametrize("app", [FLASK, DJANGO])
def test_any_run_id_in_an_address_is_answered(serve: Any, make_run: Any, pubsub: Any, app: str):
    """C57: ids with slashes, dots and NUL are 400 or 404; no stream comes into being, and the right run's cookie counts
    for it alone.
    """
    make_run("run-1", chunks=1)
    make_run("secret-2", chunks=1, finish=True)
    web = serve("gthread", app)
    before = pubsub.topics()
    for run_id in (
        "../run-1",
        "%2e%2e%2frun-1",
        "a%2Fb",
        "..",
        "%2e%2e",
        "%00",
        "x%00y",
        "%ff",
        "run-1%0a",
        "x" * 2000,
    ):
        assert web.get(f"/runs/{run_id}/events")[0] in (400, 403, 404), run_id
    for cursor in ("run-2:5", "../run-2", "5%0A", "abc"):
        assert web.get(f"/runs/run-1/events?lastEventId={cursor}")[0] == 400
    assert web.get("/runs/secret-2/events")[0] == 403
    assert web.get("/runs/secret-2/events", {"Cookie": "pass=run-1"})[0] == 403
    assert web.get("/runs/secret-2/events", {"Cookie": "pass=secret-2"})[0] == 200
    assert pubsub.topics() == before


@pytest.mark.parametrize("kind", ["gthread", "uvicorn"])
def test_the_database_is_free_while_streams_are_open(serve: Any, connect: Any, make_run: Any, kind: str):
    """Persistent connections (CONN_MAX_AGE) and ATOMIC_REQUESTS: still no stream holds one."""
    make_run(chunks=1)
    web = serve(kind, DJANGO if kind == "gthread" else DJANGO_ASGI, atomic_requests=kind == "gthread")
    paths = ["/runs/run-7/events", "/own/run-7"] * 3
    viewers = [connect(web.port, path) for path in paths]
    for viewer in viewers:
        next(viewer.messages())
    eventually(lambda: web.state()["open_databases"] == 0)
    for viewer in viewers:
        viewer.close()


@pytest.mark.limit(90)
def test_gevent_serves_many_streams_and_stays_responsive(serve: Any, connect: Any, make_run: Any):
    """C43, C55: under gunicorn's gevent worker twenty streams get an event within a second, and pages are answered."""
    run = make_run(chunks=1)
    web = serve("gevent", FLASK, heartbeat=1.0)
    viewers = [connect(web.port, "/runs/run-7/events") for _ in range(20)]
    readers = [viewer.messages() for viewer in viewers]
    for reader in readers:
        assert next(reader).last_event_id == "0"
    for index in range(1, 6):
        run.chunk()
        stored = time.monotonic()
        for reader in readers:
            assert next(reader).last_event_id == str(index)
        assert time.monotonic() - stored < 1.0
        assert web.get("/plain")[0] == 200
    for viewer in viewers:
        viewer.reset()
    eventually(lambda: web.state()["subscriptions"] == 0, 10)


def test_uwsgi_without_threads_refuses(serve: Any, make_run: Any):
    """A request there is an error at once, with the remedy in the log, and not a hang."""
    make_run(chunks=1)
    web = serve("uwsgi without threads", FLASK)
    assert web.get("/runs/run-7/events")[0] == 500
    assert "start it with --enable-threads" in web.output()
