"""Viewers that leave, on real servers: nothing of theirs may stay behind, although the run is silent."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.servers import ON_EMBEDDED
from tests.waiting import eventually
from tests.web.processes import DJANGO, DJANGO_ASGI, FLASK, SERVERS

pytestmark = [ON_EMBEDDED, pytest.mark.slow, pytest.mark.limit(90)]

HEARTBEAT = 1.0
VIEWERS = 20
PAYLOAD = "x" * 50_000


def held(web: Any) -> tuple[int, int, list[str]]:
    state = web.state()
    return state["streams"], state["subscriptions"], [t for t in state["threads"] if t != "s2pubsub-io"]


@pytest.mark.parametrize(("kind", "app"), SERVERS)
def test_viewers_that_leave_a_silent_run_leave_nothing(serve: Any, connect: Any, make_run: Any, kind: str, app: str):
    """C51: 20 viewers of a silent run; half leave by reset, half just close.

    Within heartbeat + 2 s all of their streams, subscriptions and threads are gone. The third time this happens, no
    file stays open either.
    """
    make_run(chunks=1)
    web = serve(kind, app, heartbeat=HEARTBEAT)
    files = []
    for _ in range(3):
        viewers = [connect(web.port, "/runs/run-7/events") for _ in range(VIEWERS)]
        for viewer in viewers:
            assert next(viewer.messages()).last_event_id == "0"
        assert web.state()["subscriptions"] == VIEWERS
        for number, viewer in enumerate(viewers):
            viewer.reset() if number % 2 else viewer.close()
        left = time.monotonic()
        eventually(lambda: held(web) == (0, 0, []), 15, "a stream has stayed")
        assert time.monotonic() - left < HEARTBEAT + 2 + 1  # a second for asking
        files.append(web.state()["fds"])
    assert files[2] < files[0] + VIEWERS // 2


@pytest.mark.parametrize(
    ("kind", "app"), [("gthread", FLASK), ("gthread", DJANGO), ("werkzeug", FLASK), ("waitress", FLASK)]
)
def test_viewers_that_do_not_read_hold_no_session(
    serve: Any, connect: Any, make_run: Any, pubsub: Any, kind: str, app: str
):
    """C51: ten viewers whose socket buffers are full do not hold up another one.

    Once they are gone, so is everything of theirs. (How long a server waits for a client that does not read is the
    server's own matter.)
    """
    run = make_run()
    for _ in range(8):
        events = [
            {"type": "chunk", "data": {"type": "raw", "payload": {"x": PAYLOAD}}, "run_id": run.id} for _ in range(15)
        ]
        pubsub.publish_many(run.topic, events)
    web = serve(kind, app, heartbeat=HEARTBEAT)
    silent = [connect(web.port, "/runs/run-7/events", buffer=4096) for _ in range(10)]
    with connect(web.port, "/runs/run-7/events?lastEventId=119") as other:
        messages = other.messages()
        eventually(lambda: web.state()["streams"] == 11)
        run.chunk()
        assert next(messages).last_event_id == "120"  # the server may still be busy with filling the others' buffers
        for index in range(121, 126):
            began = time.monotonic()
            run.chunk()
            assert next(messages).last_event_id == str(index)
            assert time.monotonic() - began < 3.0
        for viewer in silent:
            viewer.reset()
        eventually(lambda: web.state()["streams"] == 1, HEARTBEAT + 5, "a stream has stayed")
    eventually(lambda: held(web) == (0, 0, []), HEARTBEAT + 5)


@pytest.mark.parametrize(("kind", "app"), [("gthread", FLASK), ("werkzeug", FLASK), ("uvicorn", DJANGO_ASGI)])
def test_requests_that_are_never_read_leave_nothing(serve: Any, connect: Any, make_run: Any, kind: str, app: str):
    """Clients that reset right after asking, before any answer, and HEAD requests leave nothing behind."""
    make_run(chunks=1)
    web = serve(kind, app, heartbeat=HEARTBEAT)
    for _ in range(20):
        connect(web.port, "/runs/run-7/events").reset()
    web.get("/runs/run-7/events", method="HEAD")
    eventually(lambda: held(web) == (0, 0, []), HEARTBEAT + 10)
