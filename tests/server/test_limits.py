"""What a client may not do to the embedded server: flood it, forge headers, send what is too deep or too large."""

from __future__ import annotations

import json
import socket
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import pytest

from s2pubsub import S2PubSub
from s2pubsub.server import LocalServer
from tests.conformance.raw_case import frame
from tests.server.conftest import BASIN, JSON
from tests.server.h2client import H2Client
from tests.server.raw import send
from tests.server.test_http1 import talk
from tests.server.test_sessions import in_progress
from tests.waiting import LONG, eventually

pytestmark = [pytest.mark.embedded]

RECORDS = "/v1/streams/s/records"
READ = [(":method", "GET"), (":path", f"{RECORDS}?seq_num=0"), (":scheme", "http"), (":authority", "x")]
FIELDS = [*READ, ("s2-basin", BASIN["s2-basin"]), ("content-type", "s2s/proto")]


class Rude:
    """An HTTP/2 client that checks nothing of what it sends."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=LONG)
        config = h2.config.H2Configuration(
            header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False
        )
        self.h2 = h2.connection.H2Connection(config)
        self.h2.initiate_connection()
        self.flush()

    def flush(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def events(self, kind: type[Any] | tuple[type[Any], ...]) -> list[Any]:
        """The events of that kind up to the end of the connection, or up to the first of it if there is one."""
        found: list[Any] = []
        while not found:
            data = self.socket.recv(65536)
            if not data:
                return found
            found = [event for event in self.h2.receive_data(data) if isinstance(event, kind)]
        return found

    def __enter__(self) -> Rude:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def test_a_flood_of_resets_ends_the_connection(local: LocalServer, caplog: pytest.LogCaptureFixture) -> None:
    """A client that makes requests and resets them at once gets GOAWAY with ENHANCE_YOUR_CALM and is cut off; nothing
    of it stays, others are served, and the log says it once.
    """
    with Rude(local.port) as rude:
        told: list[Any] = []
        try:
            for _ in range(100):
                for _ in range(50):
                    stream = rude.h2.get_next_available_stream_id()
                    rude.h2.send_headers(stream, FIELDS)
                    rude.h2.reset_stream(stream)
                rude.flush()
        except OSError:
            pass  # cut off in the middle
        try:
            told = rude.events(h2.events.ConnectionTerminated)
        except ConnectionResetError:
            pass  # what we sent too late has overtaken the server's word
    assert [event.error_code for event in told] in ([], [h2.errors.ErrorCodes.ENHANCE_YOUR_CALM])
    eventually(lambda: in_progress(local.port) == 0)
    assert send(local.port, "GET", "/health").status == 200
    assert [record.getMessage() for record in caplog.records if record.name == "s2pubsub.server"] == [
        "a client resets its requests too often; its connection is closed"
    ]


def test_the_flood_is_told_why(local: LocalServer) -> None:
    """Reset a hundred at a time, each hundred read before the next, requests are refused by a GOAWAY that says why."""
    answered = (h2.events.PingAckReceived, h2.events.ConnectionTerminated)
    with Rude(local.port) as rude:
        for _ in range(30):
            for _ in range(100):
                stream = rude.h2.get_next_available_stream_id()
                rude.h2.send_headers(stream, FIELDS)
                rude.h2.reset_stream(stream)
            rude.h2.ping(b"all read")
            rude.flush()
            told = [e for e in rude.events(answered) if isinstance(e, h2.events.ConnectionTerminated)]
            if told:
                break
        assert [event.error_code for event in told] == [h2.errors.ErrorCodes.ENHANCE_YOUR_CALM]


def test_an_honest_client_may_close_what_it_opens(local: LocalServer) -> None:
    """Two hundred sessions that are all reset at once, three times over, are no flood."""
    with H2Client(local.port) as client:
        for _ in range(3):
            streams = [
                client.open("GET", f"{RECORDS}?seq_num=0", {**BASIN, "content-type": "s2s/proto"}) for _ in range(200)
            ]
            for stream in streams:
                client.wait(stream, lambda received: received.status == 200)
            for stream in streams:
                client.reset(stream)
        assert client.request("GET", f"{RECORDS}/tail", BASIN).status == 200
        assert not client.goaway
    eventually(lambda: in_progress(local.port) == 0)


def test_the_sdk_in_a_hurry_is_no_flood(local: LocalServer) -> None:
    """Three hundred subscriptions opened and closed one after the other, as fast as it goes, are no flood."""
    with S2PubSub(basin=BASIN["s2-basin"], endpoints=local.url, access_token="any") as pubsub:
        for _ in range(300):
            pubsub.subscribe_with_replay("agent.stream.hurry").close()
        assert pubsub.stats().reconnects == 0


@pytest.mark.parametrize("value", [b"http://page\r\nset-cookie: a=b", b"x\ny", b"x\0y", b"\r"])
@pytest.mark.parametrize("name", [b"origin", b"access-control-request-headers", b"x\r\ny"])
def test_a_header_that_would_add_another_is_refused(local: LocalServer, name: bytes, value: bytes) -> None:
    """Over HTTP/2 a header with CR, LF or NUL resets its stream: nothing is repeated, and the connection goes on."""
    with Rude(local.port) as rude:
        stream = rude.h2.get_next_available_stream_id()
        rude.h2.send_headers(stream, [*READ, (name, value)], end_stream=True)
        rude.flush()
        (reset,) = rude.events(h2.events.StreamReset)
        assert (reset.stream_id, reset.error_code) == (stream, h2.errors.ErrorCodes.PROTOCOL_ERROR)
        good = rude.h2.get_next_available_stream_id()
        rude.h2.send_headers(good, [*READ[:1], (":path", "/health"), *READ[2:]], end_stream=True)
        rude.flush()
        (response,) = rude.events(h2.events.ResponseReceived)
        assert dict(response.headers)[b":status"] == b"200"


@pytest.mark.parametrize("origin", ["http://page\rx: y", "http://page\0", "a\n b"])
def test_over_http1_too(local: LocalServer, origin: str) -> None:
    """Over HTTP/1.1 such a header is a malformed request, or two; no header of the answer comes from it."""
    request = f"GET /health HTTP/1.1\r\nhost: x\r\norigin: {origin}\r\nconnection: close\r\n\r\n"
    answer = talk(local.port, request.encode("latin-1"))
    head = answer.partition(b"\r\n\r\n")[0].lower()
    assert b"\nx: y" not in head
    assert b"\0" not in head
    assert answer.startswith(b"HTTP/1.1 ")


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("depth", [40, 900, 200_000])
def test_documents_that_are_too_deep(local: LocalServer, opening: str, depth: int) -> None:
    """JSON deeper than anything of the API is refused before it is parsed, in a body and in a header."""
    closing = "]" if opening == "[" else "}"
    text = opening * depth + "1" + closing * depth
    answer = send(local.port, "POST", RECORDS, {**BASIN, **JSON}, text.encode())
    assert (answer.status, answer.document()["code"]) == (400, "bad_json")
    assert "deep" in answer.document()["message"]
    if depth == 40:
        answer = send(local.port, "POST", RECORDS, {**BASIN, **JSON, "s2-stream-config": text}, b'{"records":[]}')
        assert (answer.status, answer.document()["code"]) == (400, "bad_header")


def test_brackets_in_text_are_no_depth(local: LocalServer) -> None:
    """What stands in the text of a record, escaped quotes and all, does not count."""
    body = json.dumps({"records": [{"body": '["\\"' + "[{" * 5000 + '\\\\"'}]})
    assert send(local.port, "POST", RECORDS, {**BASIN, **JSON}, body.encode()).status == 200
    assert send(local.port, "POST", RECORDS, {**BASIN, **JSON}, body.encode()).status == 200


@pytest.mark.parametrize("size", [2 * 2**20 + 1, 2**24 - 1])
def test_a_frame_that_is_too_large_is_refused_by_its_length(local: LocalServer, size: int) -> None:
    """A session's frame above 2 MiB is refused when its length has come, not when its bytes have."""
    with H2Client(local.port) as client:
        stream = client.open("POST", RECORDS, {**BASIN, "content-type": "s2s/proto"}, end=False)
        client.send(stream, size.to_bytes(3, "big") + b"\0")
        received = client.wait(stream, lambda received: received.ended)
        assert received.terminal() is not None
        assert received.terminal()[0] == 400


def test_frames_of_nothing(local: LocalServer) -> None:
    """A frame without a length, and one that only claims to be compressed, end their session alone."""
    with H2Client(local.port) as client:
        for data in (bytes(3), frame(b"\xff" * 20, 0x40), frame(b"\xff" * 20, 0x20), frame(b"", 0x60)):
            stream = client.open("POST", RECORDS, {**BASIN, "content-type": "s2s/proto"}, end=False)
            client.send(stream, data)
            assert client.wait(stream, lambda received: received.ended).terminal() is not None
        assert client.request("GET", f"{RECORDS}/tail", BASIN).status == 200


@pytest.mark.parametrize("count", [101, 5000])
def test_many_parameters_and_headers(local: LocalServer, count: int) -> None:
    """More parameters than anybody needs are refused unread; so is a head of more than 16 KiB."""
    query = "&".join(f"p{number}=1" for number in range(count))
    status = send(local.port, "GET", f"{RECORDS}?{query[:8000]}", BASIN).status
    assert status == 400
    many = {f"x-{number}": "y" * 10 for number in range(count)}
    assert send(local.port, "GET", "/health", many).status == (200 if count == 101 else 431)
    assert send(local.port, "GET", "/health").status == 200
