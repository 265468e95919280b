"""A pytest plugin for tests of applications that use s2pubsub: fixtures on an embedded server, nothing to install.

    def test_my_app(s2_pubsub):
        my_app.run(pubsub=s2_pubsub)
        assert [event.data for event in s2_pubsub.get_history("agent.stream.run-1")] == [...]

It is found by pytest wherever the package is installed with the extra ``server``; nothing is started before a test
asks for a fixture. The fixture ``s2_environment`` is for applications that make their own client from the environment.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from s2pubsub import S2PubSub
    from s2pubsub.server import LocalServer

_LEAVE = 5.0
"""Seconds that the client's threads get to end after its close."""


@pytest.fixture(scope="session")
def s2_server() -> Iterator[LocalServer]:
    """An embedded server in memory, one for the whole run. It has ``url``, ``port`` and ``token``."""
    from s2pubsub.server import LocalServer

    with LocalServer() as server:
        yield server


@pytest.fixture
def s2_pubsub(s2_server: LocalServer) -> Iterator[S2PubSub]:
    """A client on a basin of the test's own. It is closed after the test, which fails if it leaves a thread behind."""
    from s2pubsub import S2PubSub

    before = set(threading.enumerate())
    basin = f"test-{uuid.uuid4().hex[:20]}"
    with S2PubSub(basin=basin, access_token=s2_server.token, endpoints=s2_server.url) as pubsub:
        pubsub.ensure_basin()
        yield pubsub
    left = _threads_left(before)
    assert not left, f"after the client was closed these threads of s2pubsub still run: {left}"


@pytest.fixture
def s2_environment(s2_server: LocalServer, s2_pubsub: S2PubSub, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment variables that lead to the server and the test's basin; they are set during the test."""
    environment = {
        "S2_ACCESS_TOKEN": s2_server.token,
        "S2_ACCOUNT_ENDPOINT": s2_server.url,
        "S2_BASIN_ENDPOINT": s2_server.url,
        "S2_BASIN": s2_pubsub.basin,
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return environment


def _threads_left(before: set[threading.Thread]) -> list[str]:
    deadline = time.monotonic() + _LEAVE
    while True:
        left = [t for t in threading.enumerate() if t not in before and t.name.startswith("s2pubsub-")]
        if not left or time.monotonic() > deadline:
            return sorted(thread.name for thread in left)
        left[0].join(0.1)
