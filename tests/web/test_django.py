"""The Django application in this process, by Django's own test client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

django = pytest.importorskip("django")

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.web.django_settings"
django.setup()

from django.core.checks import run_checks  # noqa: E402
from django.core.exceptions import ImproperlyConfigured  # noqa: E402
from django.db import connection, transaction  # noqa: E402
from django.test import AsyncClient, Client, override_settings  # noqa: E402

from s2pubsub.contrib.django import get_pubsub, get_runs  # noqa: E402
from s2pubsub.contrib.django.configuration import configuration  # noqa: E402
from s2pubsub.contrib.django.responses import release_connections  # noqa: E402
from tests.web.event_source import parse  # noqa: E402

MAY_SEE = "tests.web.django_app.may_see"


@pytest.fixture
def setting(server: Any, basin: str) -> Iterator[dict[str, Any]]:
    value = {
        "BASIN": basin,
        "ACCESS_TOKEN": server.token,
        "ACCOUNT_ENDPOINT": server.url,
        "BASIN_ENDPOINT": server.basin_url,
        "HEARTBEAT": 0.2,
        "AUTHORIZE": MAY_SEE,
    }
    with override_settings(S2PUBSUB=value):
        yield value
    connection.close()


def body(response: Any) -> bytes:
    return b"".join(response.streaming_content)


def test_a_run_is_shown(setting: Any, make_run: Any):
    """Replay, positions, the AI SDK's address, unknown runs: as the answers say."""
    make_run(chunks=2, finish=True)
    client = Client()
    response = client.get("/runs/run-7/events", headers={"Last-Event-ID": "0"})
    assert response.headers["Content-Type"] == "text/event-stream"
    assert [m.last_event_id for m in parse(body(response))] == ["1", "2", "2"]
    assert client.get("/runs/run-7/events?lastEventId=2").status_code == 204
    assert client.get("/runs/run-7/events?offset=x").status_code == 400
    assert client.get("/runs/never/events").status_code == 404
    assert client.get("/runs/never/stream").status_code == 204
    assert client.post("/runs/run-7/events").status_code == 405


def test_a_hook_says_who_may_see(setting: Any, make_run: Any):
    """``AUTHORIZE`` gets the request; without it nobody may see anything, so that nothing is open by omission."""
    make_run("secret-1", finish=True)
    client = Client()
    assert client.get("/runs/secret-1/events").status_code == 403
    client.cookies["pass"] = "secret-1"
    assert client.get("/runs/secret-1/events").status_code == 200
    without = {key: value for key, value in setting.items() if key != "AUTHORIZE"}
    with override_settings(S2PUBSUB=without):
        assert client.get("/runs/secret-1/events").status_code == 403


def test_a_hook_may_redact(setting: Any, make_run: Any):
    """``TRANSFORM`` is called with every event."""
    make_run(chunks=1, finish=True)
    with override_settings(S2PUBSUB={**setting, "TRANSFORM": "tests.web.test_django.blank"}):
        messages = parse(body(Client().get("/runs/run-7/events")))
    assert [m.json for m in messages[:-1]] == ["blank", "blank"]


def blank(event: Any) -> Any:
    import attrs

    return attrs.evolve(event, data="blank")


def test_a_stop_needs_the_csrf_token(setting: Any, make_run: Any):
    """Django's own protection guards the stop view."""
    make_run(chunks=1)
    client = Client(enforce_csrf_checks=True)
    assert client.post("/runs/run-7/stop").status_code == 403
    token = client.get("/token").content.decode()
    assert client.post("/runs/run-7/stop", headers={"X-CSRFToken": token}).status_code == 202
    assert get_pubsub().exists("agent.control.run-7")
    assert client.post("/runs/secret-1/stop", headers={"X-CSRFToken": token}).status_code == 403
    assert client.get("/runs/run-7/stop").status_code == 405


def test_the_limit_of_streams_is_a_setting(setting: Any, make_run: Any):
    """C52: what is above ``MAX_STREAMS`` gets 503."""
    make_run(chunks=1)
    with override_settings(S2PUBSUB={**setting, "MAX_STREAMS": 1}):
        first = Client().get("/runs/run-7/events")
        refused = Client().get("/runs/run-7/events")
        assert (refused.status_code, "Retry-After" in refused.headers) == (503, True)
        first.close()
        assert Client().get("/runs/never/events").status_code == 404


def test_the_database_is_released_before_streaming(setting: Any, make_run: Any):
    """The connection that the hook has opened is closed at the first byte; one in a transaction is left alone."""
    make_run(chunks=1)
    response = Client().get("/runs/run-7/events")
    assert connection.connection is not None
    next(iter(response.streaming_content))
    assert connection.connection is None
    response.close()
    with transaction.atomic():
        connection.ensure_connection()
        release_connections()
        assert connection.connection is not None


async def _first_piece(path: str) -> bytes:
    response = await AsyncClient().get(path)
    assert response.is_async
    pieces = response.streaming_content
    found = b""
    async for piece in pieces:
        found += piece
        if b"id: 0" in found:
            break
    response.close()
    return found


def test_an_asynchronous_request_gets_an_asynchronous_body(setting: Any, make_run: Any, eventually: Any):
    """C56, C51: under ASGI the body is an asynchronous iterator; leaving it ends its thread and its subscription."""
    make_run(chunks=1)
    assert [m.last_event_id for m in parse(asyncio.run(_first_piece("/runs/run-7/events")))] == ["0"]
    eventually(lambda: get_pubsub().stats().subscriptions == 0)


@pytest.mark.parametrize(
    ("value", "id"),
    [
        ({"BASSIN": "x"}, "s2pubsub.E001"),
        ({"BASIN": 5}, "s2pubsub.E001"),
        ({"HEARTBEAT": "15"}, "s2pubsub.E001"),
        (["BASIN"], "s2pubsub.E001"),
        ({}, "s2pubsub.E002"),
        ({"BASIN": "agent-runs", "ACCESS_TOKEN": "t", "AUTHORIZE": "no.such.thing"}, "s2pubsub.E003"),
        ({"BASIN": "agent-runs", "ACCESS_TOKEN": "t", "AUTHORIZE": 5}, "s2pubsub.E003"),
        ({"BASIN": "agent-runs", "ACCESS_TOKEN": "t"}, "s2pubsub.W001"),
    ],
)
def test_the_system_check_finds_wrong_settings(value: Any, id: str):
    """``manage.py check`` names the wrong key, what is missing, and that nobody may see a run. Connects to nothing."""
    with override_settings(S2PUBSUB=value):
        assert id in [message.id for message in run_checks()]


def test_the_system_check_is_content_with_good_settings():
    """No message for a complete setting."""
    with override_settings(S2PUBSUB={"BASIN": "agent-runs", "ACCESS_TOKEN": "t", "AUTHORIZE": MAY_SEE}):
        assert [message for message in run_checks() if str(message.id).startswith("s2pubsub")] == []


def test_wrong_settings_are_djangos_own_error():
    """``get_pubsub`` raises ImproperlyConfigured, which names the setting."""
    for value, match in (({"BASSIN": "x"}, "BASIN"), ({}, "S2_BASIN"), ("x", "dictionary")):
        with override_settings(S2PUBSUB=value), pytest.raises(ImproperlyConfigured, match=match):
            get_pubsub()


def test_one_client_a_process(setting: Any):
    """The same client every time; overriding the setting closes it."""
    pubsub = get_pubsub()
    assert get_pubsub() is pubsub is get_runs().pubsub
    configuration.reset()
    assert pubsub.closed
