"""A server in this process, in memory, with one basin and one stream."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from s2pubsub.server import LocalServer
from tests.server.raw import send

BASIN = {"s2-basin": "server-tests"}
JSON = {"content-type": "application/json"}


def prepare(port: int) -> None:
    """Make the basin and the stream ``s``."""
    config = {"create_stream_on_append": True, "default_stream_config": {"timestamping": {"uncapped": True}}}
    body = json.dumps({"basin": BASIN["s2-basin"], "config": config}).encode()
    assert send(port, "POST", "/v1/basins", JSON, body).status == 201
    assert send(port, "POST", "/v1/streams", {**JSON, **BASIN}, b'{"stream":"s"}').status == 201


@pytest.fixture
def local() -> Iterator[LocalServer]:
    with LocalServer() as server:
        prepare(server.port)
        yield server
