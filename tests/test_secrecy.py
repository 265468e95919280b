"""The access token, and the encryption key, are sent to the server and shown nowhere else."""

from __future__ import annotations

import contextlib
import io
import logging
import pickle
import subprocess
import sys
import traceback
import uuid
from collections.abc import Iterator
from typing import Any

import hpack
import pytest
import s2_sdk

from s2pubsub import S2PubSub, S2PubSubError
from s2pubsub.runs import Runs
from s2pubsub.server import LocalServer
from s2pubsub.settings import Settings
from tests.faults import FaultProxy
from tests.servers import Server, free_port
from tests.waiting import LONG

TOPIC = "agent.stream.secrecy"
KEY = "c2VjcmV0LWVuY3J5cHRpb24ta2V5LW9mLTMyLWJ5dGU="


@pytest.fixture
def token() -> str:
    return f"secret-{uuid.uuid4().hex}"


def traces(token: str) -> list[str]:
    """What would betray the token: its text, and its bytes as they are compressed in a header block."""
    coded = repr(hpack.Encoder().encode([hpack.NeverIndexedHeaderTuple(b"x", f"Bearer {token}".encode())]))
    return [token, repr(token.encode())[2:-1], coded[30:-8]]


@pytest.fixture
def everything_logged() -> Iterator[io.StringIO]:
    """Every logger there is, at every level, as text."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(1)
    yield text
    root.setLevel(level)
    root.removeHandler(handler)


def use(pubsub: S2PubSub) -> None:
    """Everything that makes requests."""
    pubsub.publish(TOPIC, type="t", data=1)
    with pubsub.publisher(TOPIC) as publisher:
        publisher.publish(type="t", data=2)
    with pubsub.subscribe_with_replay(TOPIC) as events:
        events.get(LONG)
    pubsub.get_history(TOPIC)
    pubsub.topics()
    pubsub.check()
    with pubsub.leases.hold("secrecy", "owner", 30):
        pass
    Runs(pubsub, cleanup_timeout=0).run(["a"])


def test_nothing_is_logged_of_it(
    server: Server, basin: str, token: str, everything_logged: io.StringIO, proxy: FaultProxy
) -> None:
    """With every logger at its lowest level, the SDK's and those of HTTP/2 included, the token is in no record: neither
    in plain text nor in the compressed form of a header block; also over an outage and after refusals.
    """
    with S2PubSub(basin=basin, endpoints=proxy.url, access_token=token, encryption_key=KEY) as pubsub:
        use(pubsub)
        proxy.cut()
        pubsub.publish(TOPIC, type="t", data=3)
        proxy.answer(status=401, code="authn", times=1)
        with contextlib.suppress(S2PubSubError):
            pubsub.publish(TOPIC, type="t", data=4)
    logged = everything_logged.getvalue()
    assert "Adding b'authorization'" in logged  # it was looked at
    assert [trace for trace in [*traces(token), KEY] if trace in logged] == []


def test_the_embedded_server_logs_nothing_of_it(token: str, everything_logged: io.StringIO) -> None:
    """What clients send to a server in this process is in none of its records, whether it is the right token or not."""
    with LocalServer(token=token) as server:
        assert token not in repr(server)
        with S2PubSub(basin="secret-basin", endpoints=server.url, access_token=token) as pubsub:
            pubsub.ensure_basin()
            use(pubsub)
        with S2PubSub(basin="secret-basin", endpoints=server.url, access_token=f"{token}x") as wrong:
            with pytest.raises(S2PubSubError) as caught:
                wrong.publish(TOPIC, type="t", data=1)
    shown = everything_logged.getvalue() + "".join(traceback.format_exception(caught.value))
    assert [trace for trace in traces(token) if trace in shown] == []


def test_reprs_stats_and_pickles(server: Server, basin: str, token: str) -> None:
    """Neither a client nor its parts show it, and a pickle of settings leaves it behind; a client is not pickled."""
    settings = Settings(basin=basin, endpoints=server.url, access_token=token, encryption_key=KEY)
    secrets = [token, KEY]
    with S2PubSub(basin=basin, endpoints=server.url, access_token=token) as pubsub:
        runs = Runs(pubsub)
        with (
            pubsub.subscribe(TOPIC) as events,
            pubsub.publisher(TOPIC) as publisher,
            pubsub.leases.hold("secrecy", "owner", 30) as lease,
            runs.start() as run,
        ):
            parts: list[Any] = [pubsub, events, publisher, lease, run, runs, pubsub.leases, pubsub.stats(), settings]
            shown = [f"{part!r} {part}" for part in parts]
        with pytest.raises(TypeError):
            pickle.dumps(pubsub)
    assert [text for text in shown if any(secret in text for secret in secrets)] == []
    dumped = pickle.dumps(settings)
    assert [secret for secret in secrets if secret.encode() in dumped] == []
    assert pickle.loads(dumped).basin == basin


@pytest.mark.parametrize("fault", ["401", "500", "nobody", "malformed", "client"])
def test_errors_do_not_show_it(token: str, basin: str, proxy: FaultProxy, fault: str) -> None:
    """Whatever goes wrong, the error, its causes, their pickles and tracebacks do not hold the token."""
    url = proxy.url
    settings: dict[str, Any] = {"basin": basin, "access_token": token}
    if fault == "nobody":
        url = f"http://127.0.0.1:{free_port()}"
    elif fault == "malformed":
        settings["access_token"] = f"{token}\r\nx-forged: 1"
    elif fault == "client":
        endpoints = s2_sdk.Endpoints(account=url, basin=url)
        settings = {"basin": basin, "client": lambda: s2_sdk.S2(f"{token} {1 / 0}", endpoints=endpoints)}
    else:
        proxy.answer(status=int(fault), code="authn", message="who are you?", times=None)
    errors: list[BaseException] = []
    try:
        with S2PubSub(endpoints=url, **settings) as pubsub:
            calls = [
                lambda: pubsub.publish(TOPIC, type="t", data=1, timeout=5),
                lambda: pubsub.get_history(TOPIC, timeout=5),
                lambda: pubsub.subscribe(TOPIC, timeout=2),
                lambda: pubsub.leases.acquire_lease("secrecy", "owner", 5, timeout=2),
            ]
            for call in calls[:2] if fault == "500" else calls:  # the others try again until their time is up
                with pytest.raises(S2PubSubError) as caught:
                    call()
                errors.append(caught.value)
    except ValueError as error:
        errors.append(error)
    assert errors
    for error in errors:
        assert token not in "".join(traceback.format_exception(error))
        assert token.encode() not in pickle.dumps(error)


def test_the_commands_show_it_nowhere(server: Server, basin: str, token: str) -> None:
    """No command has an option for it, since others can read a command line, and none prints it, also not in errors."""
    environment = {**server.endpoints_env(), "S2_ACCESS_TOKEN": token, "S2_BASIN": basin, "PATH": ""}
    for arguments in (["check"], ["publish", TOPIC, "--data", "1"], ["history", "agent.\n"], ["check", "--basin", "x"]):
        done = subprocess.run(
            [sys.executable, "-m", "s2pubsub", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=LONG,
        )
        assert token not in done.stdout + done.stderr
        assert done.returncode in (0, 1)
