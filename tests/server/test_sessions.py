"""Sessions on the embedded server, seen frame by frame over HTTP/2."""

from __future__ import annotations

import time

import pytest

from s2pubsub.server import LocalServer
from tests.conformance.answers import message, positions
from tests.conformance.raw_case import append_input, frame
from tests.server.conftest import BASIN
from tests.server.h2client import H2Client, Received
from tests.waiting import eventually

pytestmark = [pytest.mark.embedded]

SESSION = {**BASIN, "content-type": "s2s/proto"}
RECORDS = "/v1/streams/s/records"


def ended(received: Received) -> bool:
    return received.ended


def in_progress(port: int) -> int:
    """How many requests the server is answering, this one not counted."""
    with H2Client(port) as client:
        text = client.request("GET", "/metrics").body.decode()
    return int(text.split("s2pubsub_requests_in_progress ")[-1].split()[0]) - 1


def test_an_append_session_answers_before_any_input(local: LocalServer) -> None:
    """The head of the answer comes at once: the Rust client sends nothing before it has it."""
    with H2Client(local.port) as client:
        stream = client.open("POST", RECORDS, SESSION, end=False)
        received = client.wait(stream, lambda received: received.status is not None)
        assert received.status == 200
        assert received.headers["content-type"] == "s2s/proto"
        client.send(stream, frame(append_input([b"one"])))
        client.wait(stream, lambda received: len(received.frames()) == 1)
        client.end(stream)
        assert client.wait(stream, ended).terminal() is None


def test_a_failed_input_ends_the_session_and_nothing_else(local: LocalServer) -> None:
    """Acks of what came before, one terminal frame, the end; what follows is dropped and the connection goes on."""
    with H2Client(local.port) as client:
        stream = client.open("POST", RECORDS, SESSION, end=False)
        good, bad = frame(append_input([b"x"])), frame(append_input([b"x"], 7))
        client.send(stream, good + good + bad + good)
        received = client.wait(stream, lambda received: received.ended and received.reset is not None)
        assert [positions(body)[0][0] for flags, body in received.frames() if not flags] == [0, 1]
        assert received.terminal() == (412, {"seq_num_mismatch": 2})
        assert received.reset == 0
        tail = client.request("GET", RECORDS + "/tail", BASIN)
        assert b'"seq_num":2' in tail.body


def test_data_for_an_ended_session_is_ignored(local: LocalServer) -> None:
    """A client that keeps sending after the terminal frame loses neither the connection nor its credit."""
    with H2Client(local.port) as client:
        stream = client.open("POST", RECORDS, SESSION, end=False)
        client.send(stream, frame(append_input([b"x"], 7)) + frame(append_input([b"y" * 10000])) * 5)
        client.wait(stream, ended)
        for _ in range(40):
            other = client.open("POST", RECORDS, SESSION, end=False)
            client.send(other, frame(append_input([b"x"], 7)) + frame(append_input([b"y" * 60000])) * 10)
            client.wait(other, ended)
        assert client.request("GET", RECORDS + "/tail", BASIN).status == 200


def test_following_begins_with_a_heartbeat(local: LocalServer) -> None:
    """At the tail a heartbeat comes at once, then each batch with the tail after it."""
    with H2Client(local.port) as client:
        stream = client.open("GET", RECORDS + "?seq_num=0", SESSION)
        received = client.wait(stream, lambda received: len(received.frames()) == 1)
        assert received.frames() == [(0, b"\x12\x04\x08\x00\x10\x00")]
        client.request("POST", RECORDS, BASIN, {"records": [{"body": "a", "timestamp": 5}]})
        received = client.wait(stream, lambda received: len(received.frames()) == 2)
        body = received.frames()[1][1]
        assert message(body, reading=True) == [(0, [], b"a")]
        assert body.endswith(b"\x12\x04\x08\x01\x10\x05")


def test_a_follower_sees_what_is_trimmed_at_once(local: LocalServer) -> None:
    """A run that ends with "trim everything" reaches those who follow it, and nobody who comes later."""
    with H2Client(local.port) as client:
        stream = client.open("GET", RECORDS + "?seq_num=0", SESSION)
        polling = client.open("GET", RECORDS + "?seq_num=0&wait=10", BASIN)
        client.wait(stream, lambda received: len(received.frames()) == 1)
        trim = {"headers": [["", "trim"]], "body": "\x7f" * 8}
        client.request("POST", RECORDS, BASIN, {"records": [{"body": "last words"}, trim, {"body": "end"}]})
        client.wait(stream, lambda received: len(received.frames()) == 2)
        found = message(client.streams[stream].frames()[1][1], reading=True)
        assert [body for _, _, body in found] == [b"last words", b"\x7f" * 8, b"end"]
        assert b"last words" in client.wait(polling, ended).body
        late = client.request("GET", RECORDS + "?seq_num=0", BASIN)
        assert b"last words" not in late.body
        assert b"end" in late.body


@pytest.mark.limit(40)
@pytest.mark.slow
def test_heartbeats_go_on_in_silence(local: LocalServer) -> None:
    """Without records a heartbeat comes within 15 seconds, before any client gives up."""
    with H2Client(local.port) as client:
        stream = client.open("GET", RECORDS + "?seq_num=0", SESSION)
        client.wait(stream, lambda received: len(received.frames()) == 2, timeout=16)


@pytest.mark.parametrize("form", [{"content-type": "s2s/proto"}, {"accept": "text/event-stream"}])
def test_deleting_a_stream_ends_its_readers_at_once(local: LocalServer, form: dict[str, str]) -> None:
    """Readers end with stream_deletion_pending, appends of an open session too."""
    with H2Client(local.port) as client:
        reading = client.open("GET", RECORDS, {**BASIN, **form})
        writing = client.open("POST", RECORDS, SESSION, end=False)
        client.wait(reading, lambda received: received.body)
        assert client.request("DELETE", "/v1/streams/s", BASIN).status == 202
        received = client.wait(reading, ended)
        assert b"stream_deletion_pending" in received.body
        client.send(writing, frame(append_input([b"x"])))
        terminal = client.wait(writing, ended).terminal()
        assert terminal is not None
        assert (terminal[0], terminal[1]["code"]) == (409, "stream_deletion_pending")


def test_a_consumer_without_credit_stops_nobody(local: LocalServer) -> None:
    """A read session whose client gives no credit waits; the connection and other streams go on."""
    with H2Client(local.port) as client:
        for _ in range(6):
            body = {"records": [{"body": "x" * 1_000_000}]}
            assert client.request("POST", RECORDS, BASIN, body).status == 200
        client.credit = False
        slow = client.open("GET", RECORDS + "?seq_num=0", SESSION)
        client.wait(slow, lambda received: len(received.body) > 60_000)  # nearly all that the connection allows
        held = len(client.streams[slow].body)
        for _ in range(20):
            stream = client.open("DELETE", "/v1/streams/nope", BASIN)
            client.wait(stream, lambda received: received.status is not None)
        assert len(client.streams[slow].body) <= 65535
        assert len(client.streams[slow].body) - held < 5000
    eventually(lambda: in_progress(local.port) == 0)


def test_a_large_input_over_a_small_window_arrives(local: LocalServer) -> None:
    """Credit for a request's body comes back as it is taken, however much there is."""
    with H2Client(local.port) as client:
        stream = client.open("POST", RECORDS, SESSION, end=False)
        inputs = 12
        client.send(stream, frame(append_input([b"x" * 1_000_000])) * inputs, end=True)
        received = client.wait(stream, ended)
        assert len(received.frames()) == inputs
        assert received.terminal() is None


@pytest.mark.parametrize("how", ["reset", "close"])
def test_abandoned_sessions_leave_nothing(local: LocalServer, how: str) -> None:
    """A reset stream or a closed connection ends its task in the server."""
    client = H2Client(local.port)
    streams = [client.open("GET", RECORDS, SESSION) for _ in range(50)]
    streams += [client.open("POST", RECORDS, SESSION, end=False) for _ in range(50)]
    for stream in streams:
        client.wait(stream, lambda received: received.status is not None)
    assert in_progress(local.port) == 100
    if how == "reset":
        for stream in streams:
            client.reset(stream)
    else:
        client.__exit__(None, None, None)
    eventually(lambda: in_progress(local.port) == 0)
    client.__exit__(None, None, None)


def test_stopping_ends_sessions_with_a_last_word(local: LocalServer) -> None:
    """Live sessions get terminal 503 unavailable, then GOAWAY and the end; accepted inputs are acknowledged."""
    with H2Client(local.port) as client, H2Client(local.port) as idle:
        reading = client.open("GET", RECORDS, SESSION)
        events = client.open("GET", RECORDS, {**BASIN, "accept": "text/event-stream"})
        writing = client.open("POST", RECORDS, SESSION, end=False)
        client.send(writing, frame(append_input([b"x"])))
        client.wait(writing, lambda received: len(received.frames()) == 1)
        client.wait(reading, lambda received: received.body)
        client.wait(events, lambda received: received.body)
        began = time.monotonic()
        local.close(timeout=5)
        assert time.monotonic() - began < 2
        for stream in (reading, writing):
            terminal = client.wait(stream, ended).terminal()
            assert terminal is not None
            assert (terminal[0], terminal[1]["code"]) == (503, "unavailable")
        assert b"event: error" in client.wait(events, ended).body
        client.wait_closed()
        idle.wait_closed()
        assert client.goaway
        assert idle.goaway
