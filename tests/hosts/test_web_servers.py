"""Web servers in the middle of a run: they serve, are loaded anew, and end, and the run is whole and readable."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any

import pytest

from s2pubsub.runs import Runs
from tests.hosts.test_guide import EXAMPLES
from tests.servers import ON_EMBEDDED
from tests.waiting import LONG, eventually
from tests.web.event_source import EventSource

pytestmark = [ON_EMBEDDED, pytest.mark.slow, pytest.mark.limit(90)]

LIMIT = 12.0
"""Seconds for a server to end; gunicorn waits three for answered connections."""

PACE = 0.02
"""Seconds between two words."""

TERMINATED = ["sync", "gthread", "gevent", "preload", "uwsgi", "uwsgi lazy"]
"""Servers that end by SIGTERM and are loaded anew by SIGHUP."""

INTERRUPTED = ["waitress", "werkzeug", "werkzeug reload", "runserver", "runserver reload"]
"""Servers that a person ends by Ctrl-C."""

CUT_SHORT = ["werkzeug reload", "runserver reload"]
"""At Ctrl-C these kill the process that serves before it can end what it was writing."""

EARLY = {"preload": {"HOST_EARLY": "everything"}}
"""What the application uses at import, in the process that forks the workers."""


def check_run(pubsub: Any, run_id: str, seen: list[str]) -> str:
    """The run is whole: no hole, one end at most, and what a browser has seen of it. Returns its status."""
    events = pubsub.get_history(f"agent.stream.{run_id}")
    assert [event.index for event in events] == list(range(len(events)))
    assert [event.type for event in events if event.type != "chunk"] in (["finish"], [])
    said = [event.data["payload"]["text"] for event in events if event.data.get("type") == "text-delta"]
    assert "".join(said).split() == [str(number) for number in range(len("".join(said).split()))]
    assert seen == [str(event.index) for event in events][: len(seen)]
    return str(Runs(pubsub).status(run_id))


def read_some(host: Any, run_id: str, count: int) -> tuple[EventSource, Any, list[str]]:
    """A browser that has seen so many events."""
    browser = EventSource(host.port, f"/runs/{run_id}/events", timeout=40)
    messages = browser.messages()
    return browser, messages, [next(messages).last_event_id for _ in range(count)]


def served(host: Any, request: str) -> set[str]:
    """Which processes of uWSGI have answered it, by their log of requests that have ended."""
    line = rf"\[pid: (\d+)\|.*{re.escape(request)} =>"
    return eventually(lambda: set(re.findall(line, host.output())))


@pytest.mark.parametrize("kind", [*TERMINATED, *INTERRUPTED])
def test_a_server_serves_and_ends(start: Any, pubsub: Any, kind: str) -> None:
    """A run is written and shown; then the server ends in the middle of another, which gets its one end, and no process
    is left.
    """
    host = start(kind, **EARLY.get(kind, {}))
    assert {"s2pubsub-io"} <= set(host.round_trip()["threads"])
    short = host.ask(20, 0.01)
    _, messages, seen = read_some(host, short, 1)
    seen += [message.last_event_id for message in messages if message.type != "end"]
    assert check_run(pubsub, short, seen) == "finished"
    assert Runs(pubsub).observe(short).result().text == "".join(f"{number} " for number in range(20))

    long = host.ask(2000, PACE)
    _, messages, seen = read_some(host, long, 10)
    if "uwsgi" in kind:  # with a request under way, even one that is only being logged, it ends without exit handlers
        messages.close()
        eventually(lambda: f"GET /runs/{long}/events =>" in host.output())
        time.sleep(0.2)  # from its line in the log to its end, which nothing tells
    status = host.end(signal.SIGINT if kind in INTERRUPTED else signal.SIGTERM, LIMIT)
    assert status in (0, -signal.SIGINT, 128 + signal.SIGINT), host.output()
    assert "Traceback" not in host.output()
    assert check_run(pubsub, long, seen) == ("running" if kind in CUT_SHORT else "failed")


@pytest.mark.parametrize("kind", [*TERMINATED, "werkzeug reload", "runserver reload"])
def test_a_server_is_loaded_anew(start: Any, pubsub: Any, kind: str) -> None:
    """In the middle of a run the server replaces its processes: the run gets its one end, its browser comes back and
    sees all of it, the old processes are gone, and the new ones write runs.
    """
    host = start(kind, **EARLY.get(kind, {}))
    old = host.pids() - {host.pid}
    written = host.round_trip()["pid"]
    # A process of uWSGI waits for its responses that are under way, here for a whole run; other servers end them.
    run_id = host.ask(200 if "uwsgi" in kind else 2000, PACE)
    _, messages, seen = read_some(host, run_id, 10)
    if kind in TERMINATED:
        os.kill(host.pid, signal.SIGHUP)
    else:
        host.touch()
    seen += [message.last_event_id for message in messages if message.type != "end"]
    asked, watched = f"GET /ask?count=200&pace={PACE}", f"GET /runs/{run_id}/events"
    waited = "uwsgi" in kind and served(host, watched) >= served(host, asked)
    assert check_run(pubsub, run_id, seen) == ("finished" if waited else "failed")
    eventually(lambda: not old & host.pids(), 2 * LONG, "an old process has stayed")
    eventually(lambda: host.answers() and host.round_trip()["pid"] != written, LONG, "the old one has stayed")
    again = host.ask(5, 0.01)
    assert Runs(pubsub).observe(again, wait_for_start=LONG).result().text == "0 1 2 3 4 "
    assert check_run(pubsub, again, []) == "finished"


def test_preloading_for_gevent(start: Any, pubsub: Any) -> None:
    """Under gunicorn's gevent worker a preloaded application finds Python patched too late, and says so; with the
    guide's configuration it serves.
    """
    late = start("preload gevent")
    status, _ = late.get("/round-trip")
    assert status == 500
    assert "monkey.patch_all" in late.output()
    late.stop()
    (late.folder / "gunicorn.conf.py").write_text(EXAMPLES["gunicorn.conf.py"])
    host = start("preload gevent", HOST_EARLY="everything")
    assert host.round_trip()["pid"] != host.pid
    run_id = host.ask(20, 0.01)
    _, messages, seen = read_some(host, run_id, 1)
    seen += [message.last_event_id for message in messages if message.type != "end"]
    assert check_run(pubsub, run_id, seen) == "finished"
    assert host.end(signal.SIGTERM, LIMIT) == 0
