"""Fixtures of the tests of the web side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.servers import Server
from tests.web.event_source import Connection
from tests.web.processes import WebServer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is marked `web`."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("web")


class Writing:
    """A run written event by event, each stored when its call returns."""

    def __init__(self, pubsub: Any, run_id: str) -> None:
        self.pubsub = pubsub
        self.id = run_id
        self.topic = f"agent.stream.{run_id}"

    def chunk(self, type: str = "text-delta", **payload: Any) -> Any:
        data = {"type": type, "runId": self.id, "from": "AGENT", "payload": payload or {"id": "t", "text": "x"}}
        return self.pubsub.publish(self.topic, type="chunk", run_id=self.id, data=data)

    def chunks(self, count: int) -> None:
        for number in range(count):
            self.chunk(id="t", text=f"{number} ")

    def finish(self, reason: str = "stop") -> Any:
        data = {"output": {"text": "", "usage": {}, "steps": []}, "stepResult": {"reason": reason}}
        return self.pubsub.publish(self.topic, type="finish", run_id=self.id, data=data)


@pytest.fixture
def make_run(pubsub: Any) -> Callable[..., Writing]:
    """Make a run with so many chunks; ``finish`` ends it."""

    def make(run_id: str = "run-7", chunks: int = 0, *, finish: bool = False) -> Writing:
        run = Writing(pubsub, run_id)
        run.chunks(chunks)
        if finish:
            run.finish()
        return run

    return make


@pytest.fixture
def connect() -> Iterator[Callable[..., Connection]]:
    """Open an event stream; closed after the test."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(Connection(*args, **options))


@pytest.fixture
def serve(server: Server, basin: str) -> Iterator[Callable[..., WebServer]]:
    """Start a web server on the test's basin; stopped after the test."""
    with ExitStack() as stack:

        def start(kind: str, app: str, **options: Any) -> WebServer:
            env = {**server.endpoints_env(), "S2_BASIN": basin}
            return stack.enter_context(WebServer(kind, app, env, **options))

        yield start
