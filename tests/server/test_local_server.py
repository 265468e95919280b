"""The embedded server as an object and as a command: start, stop, tokens, retention."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from s2pubsub.server import LocalServer
from tests.server.conftest import BASIN, JSON, prepare
from tests.server.h2client import H2Client
from tests.server.process import ROOT
from tests.server.raw import send
from tests.waiting import LONG, eventually

pytestmark = [pytest.mark.embedded]

RECORDS = "/v1/streams/s/records"


def test_it_starts_and_stops_quickly() -> None:
    """A server in a thread listens within 50 ms (the fastest of three) and ends its thread with `close`."""
    durations = []
    for _ in range(3):
        began = time.perf_counter()
        with LocalServer() as server:
            durations.append(time.perf_counter() - began)
            assert send(server.port, "GET", "/health").body == b"OK"
            assert not server.closed
        assert server.closed
    assert min(durations) < 0.05
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("s2pubsub-server")]


def test_close_may_be_repeated_and_start_too() -> None:
    """Both are idempotent; a closed server can be started again, in memory it is then empty."""
    server = LocalServer()
    server.close()
    server.start()
    port = server.port
    server.start()
    assert server.port == port
    prepare(port)
    server.close()
    server.close()
    with server:
        assert send(server.port, "GET", "/v1/basins").document()["basins"] == []


def test_a_taken_port_is_an_error() -> None:
    """Starting on a port in use raises OSError and leaves nothing behind."""
    with LocalServer() as first:
        second = LocalServer(port=first.port)
        with pytest.raises(OSError, match="address"):
            second.start()
        assert second.closed


def test_fifty_rounds_leave_no_descriptor(tmp_path: Path) -> None:
    """Starting, using and stopping keeps the number of descriptors and threads."""
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        pytest.skip("needs /proc")

    def round_() -> None:
        with LocalServer(data=tmp_path) as server, H2Client(server.port) as client:
            client.open("GET", "/v1/basins")
            assert send(server.port, "GET", "/health").status == 200

    round_()
    before = len(list(descriptors.iterdir())), threading.active_count()
    for _ in range(50):
        round_()
    assert (len(list(descriptors.iterdir())), threading.active_count()) == before


def test_a_token_is_required_where_one_is_set() -> None:
    """With a token every request of the API needs it; without one any will do."""
    with LocalServer(token="secret") as server:
        assert server.token == "secret"
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "secret"},
            {"authorization": "Bearer é"},
        ):
            answer = send(server.port, "GET", "/v1/basins", headers)
            assert (answer.status, answer.document()["code"]) == (401, "authn")
        assert send(server.port, "GET", "/v1/basins", {"authorization": "Bearer secret"}).status == 200
        assert send(server.port, "GET", "/health").status == 200
        assert send(server.port, "OPTIONS", "/v1/basins").status == 200


@pytest.mark.parametrize("arguments", [{"host": "0.0.0.0"}, {"host": "::", "token": None}, {"token": ""}])
def test_other_addresses_need_a_token(arguments: dict[str, str]) -> None:
    """Beyond the loopback it does not listen without a token."""
    with pytest.raises(ValueError, match="token"):
        LocalServer(**arguments)


def test_other_addresses_work_with_a_token() -> None:
    """With a token it listens where it is told."""
    with LocalServer(host="0.0.0.0", token="secret") as server:
        assert send(server.port, "GET", "/health").status == 200


def append(port: int, *bodies: str) -> None:
    body = json.dumps({"records": [{"body": body} for body in bodies]}).encode()
    assert send(port, "POST", RECORDS, {**BASIN, **JSON}, body).status == 200


def bodies(port: int) -> list[str]:
    answer = send(port, "GET", RECORDS + "?seq_num=0", BASIN)
    return [record["body"] for record in answer.document().get("records", [])]


@pytest.mark.parametrize("kept", [False, True], ids=["memory", "data"])
def test_records_expire_one_by_one(tmp_path: Path, kept: bool) -> None:
    """A record lives as long as the policy said when it was appended; tail and numbers stay."""
    with LocalServer(data=tmp_path if kept else None) as server:
        prepare(server.port)
        policy = b'{"retention_policy":{"age":1}}'
        append(server.port, "long")
        assert send(server.port, "PATCH", "/v1/streams/s", {**BASIN, **JSON}, policy).status == 200
        append(server.port, "short")
        assert bodies(server.port) == ["long", "short"]
        assert (
            send(server.port, "PATCH", "/v1/streams/s", {**BASIN, **JSON}, b'{"retention_policy":null}').status == 200
        )
        append(server.port, "later")
        eventually(lambda: bodies(server.port) == ["long", "later"])
        tail = send(server.port, "GET", RECORDS + "/tail", BASIN).document()["tail"]
        assert tail["seq_num"] == 3
    if kept:
        with LocalServer(data=tmp_path) as server:
            assert bodies(server.port) == ["long", "later"]


@pytest.mark.parametrize("kept", [False, True], ids=["memory", "data"])
def test_empty_streams_are_deleted_when_told(tmp_path: Path, kept: bool) -> None:
    """delete_on_empty removes a stream without records after its age, and none that has some."""
    with LocalServer(data=tmp_path if kept else None) as server:
        prepare(server.port)
        for name in ("s", "full"):
            path, policy = f"/v1/streams/{name}", b'{"delete_on_empty":{"min_age_secs":1}}'
            assert send(server.port, "PUT", path, {**BASIN, **JSON}, policy).status in (200, 201)
            body = b'{"records":[{"body":"x"}]}'
            assert send(server.port, "POST", path + "/records", {**BASIN, **JSON}, body).status == 200
        trim = {"records": [{"headers": [["", "trim"]], "body": "\0\0\0\0\0\0\0\5"}]}
        assert send(server.port, "POST", RECORDS, {**BASIN, **JSON}, json.dumps(trim).encode()).status == 200
        eventually(lambda: send(server.port, "GET", "/v1/streams/s", BASIN).status == 404)
        assert send(server.port, "GET", "/v1/streams/full", BASIN).status == 200


def test_a_deleted_basin_takes_its_streams_along(tmp_path: Path) -> None:
    """Deleting a basin with streams ends with basin and streams gone, over a restart too."""
    with LocalServer(data=tmp_path) as server:
        prepare(server.port)
        append(server.port, "x")
        assert send(server.port, "DELETE", "/v1/basins/server-tests").status == 202
        eventually(lambda: send(server.port, "GET", "/v1/basins/server-tests").status == 404)
        assert send(server.port, "GET", RECORDS, BASIN).status == 404
    with LocalServer(data=tmp_path) as server:
        prepare(server.port)
        assert bodies(server.port) == []


def test_the_command_says_how_to_reach_it_and_stops_on_a_signal(tmp_path: Path) -> None:
    """It prints the environment within a second, serves the basin asked for, and ends in good order on SIGTERM.

    A proxy that the environment names is none of its business.
    """
    arguments = ["--port", "0", "--data", str(tmp_path), "--basin", "my-own-basin", "--token", "secret"]
    began = time.perf_counter()
    command = [sys.executable, "-m", "s2pubsub.server", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "http_proxy": "http://127.0.0.1:9", "no_proxy": ""}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(5)]
        took = time.perf_counter() - began
        variables = dict(line.removeprefix("export ").strip().split("=", 1) for line in lines[1:])
        assert variables["S2_ACCESS_TOKEN"] == "secret"
        assert variables["S2_BASIN"] == "my-own-basin"
        assert variables["S2_ACCOUNT_ENDPOINT"] == variables["S2_BASIN_ENDPOINT"]
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)", variables["S2_BASIN_ENDPOINT"])
        assert found is not None
        headers = {"authorization": "Bearer secret", "s2-basin": "my-own-basin", **JSON}
        body = b'{"records":[{"body":"x"}]}'
        assert send(int(found[1]), "POST", "/v1/streams/new/records", headers, body).status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONG) == 0
        assert took < 5  # one second on an idle machine; the benchmark holds it to that


def test_the_command_explains_what_is_wrong() -> None:
    """A taken port or a missing token is one line on stderr and status 1."""
    with LocalServer() as server:
        for arguments, text in [(["--port", str(server.port)], "address"), (["--host", "0.0.0.0"], "token")]:
            command = [sys.executable, "-m", "s2pubsub.server", *arguments]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LONG, check=False)
            assert run.returncode == 1
            assert run.stderr.startswith("s2pubsub: ")
            assert text in run.stderr
