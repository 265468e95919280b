"""A client's settings: checked for what they are, completed from the environment, never coerced."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import s2_sdk

from s2pubsub import S2PubSub, StoreError
from s2pubsub.settings import Settings

ENDPOINT = "http://127.0.0.1:4567"
GOOD: dict[str, Any] = {"basin": "agent-runs", "access_token": "token", "endpoints": ENDPOINT}
VARIABLES = ("S2_ACCESS_TOKEN", "S2_BASIN", "S2_ACCOUNT_ENDPOINT", "S2_BASIN_ENDPOINT")


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def make(**settings: Any) -> S2PubSub:
    return S2PubSub(**settings)


def from_mapping(**settings: Any) -> S2PubSub:
    return S2PubSub.from_mapping(settings)


BOTH = pytest.mark.parametrize("make", [make, from_mapping])


@BOTH
def test_making_a_client_does_nothing(make: Callable[..., S2PubSub]) -> None:
    """No thread, no connection and no look-up of a name; closing it neither."""
    before = threading.active_count()
    pubsub = make(basin="agent-runs", access_token="token", endpoints="http://does-not-exist.invalid:1")
    assert threading.active_count() == before
    assert not pubsub.closed
    assert "agent-runs" in repr(pubsub)
    assert "token" not in repr(pubsub)
    pubsub.close()
    assert pubsub.closed
    assert threading.active_count() == before


WRONG: list[tuple[str, Any]] = [
    ("basin", 5),
    ("basin", True),
    ("basin", b"agent-runs"),
    ("basin", "short"),
    ("basin", "UPPER-CASE"),
    ("basin", "under_score"),
    ("basin", "-agent-runs"),
    ("basin", "agent-runs-"),
    ("basin", "agent-runs\n"),
    ("basin", "a" * 49),
    ("access_token", 5),
    ("access_token", "to ken"),
    ("access_token", "token\r\nx-forged: 1"),
    ("access_token", "tökens"),
    ("endpoints", 5),
    ("endpoints", "localhost"),
    ("endpoints", ("http://a", "http://b")),
    ("endpoints", {"account": "a", "basin": "b"}),
    ("client", "client"),
    ("inner", object()),
    ("stream_prefix", None),
    ("stream_prefix", 5),
    ("topic_prefix", None),
    ("topic_prefix", True),
    ("queue_size", "1024"),
    ("queue_size", 1024.0),
    ("queue_size", True),
    ("queue_size", None),
    ("queue_size", 0),
    ("queue_size", -1),
    ("queue_bytes", "1"),
    ("queue_bytes", False),
    ("queue_bytes", 0),
    ("run_config", {"retention_policy": 5}),
    ("encryption_key", 5),
    ("default", "str"),
]


@BOTH
@pytest.mark.parametrize(("name", "value"), WRONG)
def test_wrong_settings_are_named(make: Callable[..., S2PubSub], name: str, value: Any) -> None:
    """C72: a setting of the wrong type or value is a TypeError or ValueError that names it; nothing is coerced."""
    with pytest.raises((TypeError, ValueError), match=name) as caught:
        make(**{**GOOD, name: value})
    assert not isinstance(caught.value, BaseExceptionGroup)


@pytest.mark.parametrize("key", ["bassin", "Basin", "acess_token", "endpoint", "queue-size", ""])
def test_misspelt_settings_are_named(key: str) -> None:
    """C72: a key that does not exist is refused, with the nearest one where there is one."""
    with pytest.raises((TypeError, ValueError)) as caught:
        S2PubSub.from_mapping({**GOOD, key: "x"}, where="config.s2")
    assert "config.s2" in str(caught.value)
    assert key in str(caught.value)
    assert not isinstance(caught.value, BaseExceptionGroup)
    if key == "bassin":
        assert "'basin'" in str(caught.value)


@pytest.mark.parametrize("mapping", [None, [], "basin=agent-runs", 5])
def test_settings_that_are_no_mapping(mapping: Any) -> None:
    """C72: only a mapping is taken."""
    with pytest.raises((TypeError, ValueError), match="settings"):
        S2PubSub.from_mapping(mapping)


@BOTH
@pytest.mark.parametrize(
    ("missing", "variable"), [("basin", "S2_BASIN"), ("access_token", "S2_ACCESS_TOKEN"), ("endpoints", None)]
)
def test_what_is_missing_is_named(make: Callable[..., S2PubSub], missing: str, variable: str | None) -> None:
    """A missing setting is a ValueError that names it and its variable; a token without endpoints means the cloud."""
    settings = {name: value for name, value in GOOD.items() if name != missing}
    if variable is None:
        make(**settings).close()
        return
    for absent in ({}, {missing: None}):
        with pytest.raises(ValueError, match=missing) as caught:
            make(**{**settings, **absent})
        assert variable in str(caught.value)


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not given comes from the environment; what is given comes first; an empty variable counts as none."""
    for name, value in zip(VARIABLES, ("env-token", "env-basin", ENDPOINT, f"{ENDPOINT}/"), strict=True):
        monkeypatch.setenv(name, value)
    settings = Settings().completed()
    assert (settings.basin, settings.access_token) == ("env-basin", "env-token")
    assert isinstance(settings.endpoints, s2_sdk.Endpoints)
    given = Settings(basin="given-basin", access_token="mine", endpoints="http://127.0.0.1:1").completed()
    assert (given.basin, given.access_token) == ("given-basin", "mine")
    assert given.endpoints != settings.endpoints
    monkeypatch.setenv("S2_BASIN", "")
    with pytest.raises(ValueError, match="S2_BASIN"):
        Settings().completed()


@pytest.mark.parametrize("lacking", ["S2_ACCOUNT_ENDPOINT", "S2_BASIN_ENDPOINT"])
def test_half_an_endpoint(monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    """One of the two endpoints in the environment is a mistake, and named."""
    other = "S2_BASIN_ENDPOINT" if lacking == "S2_ACCOUNT_ENDPOINT" else "S2_ACCOUNT_ENDPOINT"
    monkeypatch.setenv(other, ENDPOINT)
    with pytest.raises(ValueError, match=lacking):
        Settings(basin="agent-runs", access_token="token").completed()


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host",
        "http://host/path",
        "http://user:word@host",
        "http://user:word@host:port",
        "http://host:port",
        "http://",
        "http://host\n",
        "http://ho\tst",
        "http://ho st",
    ],
)
def test_urls_that_are_no_endpoints(url: str) -> None:
    """C72: what the SDK would refuse at the first call is refused when the client is made. No password is shown."""
    with pytest.raises(ValueError, match="endpoint") as caught:
        S2PubSub(basin="agent-runs", access_token="token", endpoints=url)
    assert "word" not in str(caught.value)


@pytest.mark.parametrize("address", ["localhost", "localhost:8080", "127.0.0.1:80", "[::1]:80", "my-host"])
def test_addresses_without_a_scheme(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """C72: what would be taken for https although it hardly is meant so is refused, with what to write instead."""
    with pytest.raises(ValueError, match="endpoints") as caught:
        S2PubSub(basin="agent-runs", access_token="token", endpoints=address)
    assert f"http://{address} or https://{address}" in str(caught.value)
    monkeypatch.setenv("S2_ACCOUNT_ENDPOINT", "https://a.s2.dev")
    monkeypatch.setenv("S2_BASIN_ENDPOINT", address)
    with pytest.raises(ValueError, match="S2_BASIN_ENDPOINT"):
        S2PubSub(basin="agent-runs", access_token="token")
    S2PubSub(basin="agent-runs", access_token="token", endpoints="a.s2.dev").close()


@pytest.mark.parametrize(("variable", "value"), [("S2_BASIN", "no basin"), ("S2_ACCESS_TOKEN", "secret\n")])
def test_wrong_values_in_the_environment(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    """C72: a variable that holds what a setting could not hold is named, with the rule; a token is not shown."""
    for name, good in zip(VARIABLES, ("env-token", "env-basin", ENDPOINT, ENDPOINT), strict=True):
        monkeypatch.setenv(name, good)
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=f"^{variable}") as caught:
        S2PubSub()
    assert "secret" not in str(caught.value)


def test_a_client_takes_precedence() -> None:
    """With ``client=`` neither token nor endpoints are needed."""
    S2PubSub(basin="agent-runs", client=lambda: s2_sdk.S2("token")).close()
    S2PubSub(basin="agent-runs", client=s2_sdk.S2("token")).close()
    with pytest.raises(ValueError, match="S2_BASIN"):
        S2PubSub(client=lambda: s2_sdk.S2("token"))


def test_what_the_callable_raises_reaches_the_caller() -> None:
    """An error of the user's own callable is the cause of a StoreError; nothing was stored."""

    def broken() -> s2_sdk.S2:
        raise RuntimeError("no credentials today")

    for client, kind, text in (
        (broken, RuntimeError, "no credentials today"),
        (lambda: "a client", TypeError, "not str"),
    ):
        pubsub = S2PubSub(basin="agent-runs", client=client)
        for call in (
            lambda pubsub=pubsub: pubsub.publish("agent.t", type="t", data=1, timeout=5),
            lambda pubsub=pubsub: pubsub.get_history("agent.t", timeout=5),
            lambda pubsub=pubsub: pubsub.subscribe("agent.t", timeout=5),
        ):
            started = time.monotonic()
            with pytest.raises(StoreError, match=text) as caught:
                call()
            assert time.monotonic() - started < 2
            assert isinstance(caught.value.__cause__, kind)
            assert (caught.value.code, caught.value.outcome) == ("client", "not_stored")
        pubsub.close()
