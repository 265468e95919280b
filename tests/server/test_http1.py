"""HTTP/1.1 on the embedded server, byte by byte."""

from __future__ import annotations

import gzip
import json
import socket

import pytest

from s2pubsub.server import LocalServer
from tests.server.conftest import BASIN, JSON
from tests.server.raw import send
from tests.waiting import LONG

pytestmark = [pytest.mark.embedded]

RECORDS = "/v1/streams/s/records"
HEAD = "host: test\r\ns2-basin: server-tests\r\n"


def talk(port: int, data: bytes, *, end: bytes = b"", half_close: bool = False) -> bytes:
    """Send bytes, return all that comes until ``end`` or the end."""
    with socket.create_connection(("127.0.0.1", port), timeout=LONG) as connection:
        connection.sendall(data)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        received = b""
        while not end or end not in received:
            part = connection.recv(65536)
            if not part:
                break
            received += part
        return received


def test_requests_may_follow_each_other_without_waiting(local: LocalServer) -> None:
    """Pipelined requests on one connection are answered in order."""
    one = f"GET {RECORDS}/tail HTTP/1.1\r\n{HEAD}\r\n"
    last = f"GET /nothing HTTP/1.1\r\n{HEAD}connection: close\r\n\r\n"
    answers = talk(local.port, (one * 3 + last).encode()).split(b"HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers] == [b"200", b"200", b"200", b"404"]


def test_a_body_may_come_in_chunks_after_a_go_ahead(local: LocalServer) -> None:
    """Chunked bodies and ``Expect: 100-continue`` work."""
    head = f"POST {RECORDS} HTTP/1.1\r\n{HEAD}content-type: application/json\r\ntransfer-encoding: chunked\r\n"
    body = b'{"records":[{"body":"x"}]}'
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    received = talk(local.port, f"{head}expect: 100-continue\r\n\r\n".encode() + chunks, end=b'"tail"')
    assert received.startswith(b"HTTP/1.1 100 ")
    assert b"HTTP/1.1 200 " in received


def test_a_request_may_come_byte_by_byte(local: LocalServer) -> None:
    """Bytes may be split anywhere, the ones that tell the version of HTTP too."""
    request = f"GET /health HTTP/1.1\r\n{HEAD}connection: close\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", local.port), timeout=LONG) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for index in range(len(request)):
            connection.sendall(request[index : index + 1])
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n\r\n",
        b"GET\r\n\r\n",
        b"nonsense from the start\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\nzz",
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200) + b"\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnonsense that is no frame" * 5,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff\xff\xff\x00\x00" + bytes(100),
    ],
)
def test_what_is_no_http_is_refused(local: LocalServer, data: bytes) -> None:
    """Nonsense gets an error or a closed connection, and the next client is served."""
    received = talk(local.port, data, half_close=True)
    assert not received or received[:10] == b"HTTP/1.1 4" or received[3:4] in b"\x04\x07"
    assert send(local.port, "GET", "/health").status == 200


def test_an_endless_body_is_cut(local: LocalServer) -> None:
    """A body above 2 MiB is refused without being read to its end."""
    answer = send(local.port, "POST", RECORDS, {**BASIN, **JSON}, b"x" * (10 * 2**20))
    assert (answer.status, answer.document()["code"]) == (400, "bad_json")


def test_a_large_answer_is_compressed_on_request(local: LocalServer) -> None:
    """Unary answers above 1024 bytes are compressed when the client accepts that, small ones are not."""
    body = json.dumps({"records": [{"body": "x" * 5000}]}).encode()
    assert send(local.port, "POST", RECORDS, {**BASIN, **JSON}, body).status == 200
    headers = {**BASIN, "accept-encoding": "br, gzip;q=0.5"}
    large = send(local.port, "GET", RECORDS + "?seq_num=0", headers)
    assert large.headers["content-encoding"] == "gzip"
    assert len(large.body) < 1000
    assert json.loads(gzip.decompress(large.body))["records"][0]["body"] == "x" * 5000
    assert "content-encoding" not in send(local.port, "GET", RECORDS + "/tail", headers).headers


def test_browsers_of_any_origin_may_use_it(local: LocalServer) -> None:
    """Preflights are granted and answers carry the origin back."""
    origin = {"origin": "http://page.test", "access-control-request-method": "POST"}
    preflight = send(local.port, "OPTIONS", RECORDS, {**origin, "access-control-request-headers": "s2-basin,x"})
    assert preflight.status == 200
    assert preflight.headers["access-control-allow-origin"] == "http://page.test"
    assert preflight.headers["access-control-allow-headers"] == "s2-basin,x"
    answer = send(local.port, "GET", RECORDS + "/tail", {**BASIN, **origin})
    assert answer.headers["access-control-allow-origin"] == "http://page.test"


def test_a_head_has_no_body(local: LocalServer) -> None:
    """HEAD answers as GET does, with the length and without the body."""
    received = talk(local.port, f"HEAD /health HTTP/1.1\r\n{HEAD}connection: close\r\n\r\n".encode())
    assert b"content-length: 2" in received
    assert received.endswith(b"\r\n\r\n")


@pytest.mark.slow
@pytest.mark.limit(40)
def test_a_silent_client_is_let_go(local: LocalServer) -> None:
    """A connection on which no request is completed is closed within half a minute."""
    with (
        socket.create_connection(("127.0.0.1", local.port), timeout=30) as silent,
        socket.create_connection(("127.0.0.1", local.port), timeout=30) as slow,
    ):
        slow.sendall(b"GET / HTTP/1.1\r\nx: ")
        assert silent.recv(10) == b""
        assert slow.recv(10) in (b"", b"HTTP/1.1 4")
