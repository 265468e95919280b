"""Bad input of every kind, as hypothesis strategies: what to send over one connection, and how to send it."""

from __future__ import annotations

import gzip
import json
import socket
from typing import Any

import hpack
from attrs import frozen
from hypothesis import strategies as st

from s2pubsub.server.protobuf import varint
from tests.conformance.raw_case import append_input, frame

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
ANSWER = 0.05
"""Seconds to wait for an answer: an attacker does not wait for long."""
KEYS = ["records", "headers", "body", "timestamp", "match_seq_num", "fencing_token", "stream", "basin", "config", "age"]


@frozen
class Attack:
    """Parts to send one after the other on a connection; with ``read`` some of the answer is taken first."""

    parts: list[bytes]
    read: bool
    half_close: bool


def carry_out(port: int, attack: Attack) -> bytes:
    """Send an attack; what the server answered before the connection was dropped."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        try:
            for part in attack.parts:
                connection.sendall(part)
            if attack.half_close:
                connection.shutdown(socket.SHUT_WR)
            if attack.read:
                connection.settimeout(ANSWER)
                received = connection.recv(65536)
        except OSError:
            pass  # cut by the server, or nothing came
    return received


# Pieces

raw = st.binary(max_size=200)
numbers = st.sampled_from([0, 1, 7, 2**31, 2**32, 2**63, 2**64 - 1, 2**64])
names = st.sampled_from(["s", "nope", "%00", "%ff", "..", "a%2Fb", "x" * 600, "", "*"])
paths = st.one_of(
    st.builds(
        "/v1/streams/{}/records{}".format, names, st.sampled_from(["", "/tail", "?seq_num=0", "?wait=1&count=1"])
    ),
    st.builds("/v1/streams/{}".format, names),
    st.builds("/v1/basins/{}".format, names),
    st.sampled_from(
        ["/", "*", "/v1/basins", "/v1/streams", "/health", "/metrics", "//", "/v1/metrics?set=storage", "?"]
    ),
    st.text(alphabet="/v1%?=&*.\x7f", max_size=20),
)
queries = st.lists(
    st.builds(
        "{}={}".format, st.sampled_from(["seq_num", "count", "bytes", "wait", "clamp", "until", "timestamp"]), numbers
    )
).map("&".join)
methods = st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "CONNECT", "TRACE", "get", ""])
fields = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["content-type", "accept"]),
            st.sampled_from(
                ["s2s/proto", "application/json", "application/protobuf", "text/event-stream", "*/*", ";;", ""]
            ),
        ),
        st.tuples(st.just("s2-basin"), st.sampled_from(["server-tests", "server-tests", "server-tests", "x", ""])),
        st.tuples(
            st.sampled_from(["content-encoding", "accept-encoding"]),
            st.sampled_from(["gzip", "zstd", "br", "gzip;q=x"]),
        ),
        st.tuples(
            st.sampled_from(["s2-format", "last-event-id", "s2-encryption-key", "s2-stream-config"]),
            st.text(max_size=10),
        ),
        st.tuples(st.just("content-length"), st.sampled_from(["0", "5", "-1", "99999999999", "x"])),
        st.tuples(st.sampled_from(["transfer-encoding", "te", "connection", "upgrade", "expect"]), st.text(max_size=8)),
        st.tuples(st.text(alphabet="aZ:\0 é", max_size=5), st.text(max_size=5)),
    ),
    max_size=7,
).map(lambda pairs: [("s2-basin", "server-tests"), *pairs])

json_values: Any = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.floats(), st.text(max_size=5), st.just("x" * 3000)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)),
    max_leaves=12,
)
documents = json_values.map(lambda value: json.dumps(value).encode())


@st.composite
def protobufs(draw: Any, depth: int = 0) -> bytes:
    """Messages that look like protobuf, with wrong lengths here and there."""
    out = b""
    for _ in range(draw(st.integers(0, 4))):
        field, kind = draw(st.integers(0, 6)), draw(st.sampled_from([0, 2, 2, 2, 1, 5, 3, 4]))
        out += varint(field << 3 | kind)
        if kind == 0:
            out += draw(st.one_of(numbers.map(lambda value: varint(value % 2**64)), st.just(b"\xff" * 11)))
        elif kind == 2:
            inner = draw(protobufs(depth + 1)) if depth < 3 else draw(raw)
            out += varint(draw(st.sampled_from([len(inner), len(inner), len(inner) + 1, 2**31, 2**63]))) + inner
        else:
            out += draw(st.binary(max_size=8))
    return out


messages = st.one_of(
    protobufs(),
    raw,
    st.builds(
        append_input,
        st.lists(raw, max_size=3),
        st.one_of(st.none(), st.integers(0, 9)),
        st.sampled_from([None, "", "t"]),
    ),
    st.just(append_input([b"x" * 100_000])),
)
bombs = st.sampled_from([gzip.compress(bytes(20_000_000)), b"\x28\xb5\x2f\xfd\xa0" + b"\xff" * 50])
session_frames = st.one_of(
    st.builds(frame, messages, st.sampled_from([0, 0, 0, 0x20, 0x40, 0x60, 0x80, 0x1F])),
    st.builds(lambda data: frame(gzip.compress(data), 0x40), messages),
    st.builds(frame, bombs, st.sampled_from([0x20, 0x40])),
    st.builds(lambda size, data: size.to_bytes(3, "big") + data, st.integers(0, 2**24 - 1), raw),
)
contents = st.one_of(documents, messages, bombs, st.lists(session_frames, max_size=4).map(b"".join))


# Connections


@st.composite
def http1_requests(draw: Any) -> bytes:
    """Something like an HTTP/1.1 request, perhaps with bytes changed."""
    content = draw(contents)
    head = [f"{draw(methods)} {draw(paths)} HTTP/1.1", "host: x", *(f"{n}: {v}" for n, v in draw(fields))]
    if draw(st.booleans()):
        head.append(f"content-length: {len(content)}")
    return draw(mangled("\r\n".join([*head, "", ""]).encode("utf-8", "replace") + content))


@st.composite
def mangled(draw: Any, data: bytes) -> bytes:
    """``data`` as it is, cut short, or with a byte changed."""
    how = draw(st.sampled_from(["whole", "whole", "cut", "change"]))
    place = draw(st.integers(0, max(0, len(data) - 1)))
    if how == "cut":
        return data[:place]
    if how == "change" and data:
        return data[:place] + bytes([draw(st.integers(0, 255))]) + data[place + 1 :]
    return data


def http2_frame(kind: int, flags: int, stream: int, payload: bytes, length: int | None = None) -> bytes:
    size = len(payload) if length is None else length
    return size.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


@st.composite
def http2_conversations(draw: Any) -> list[bytes]:
    """A preface, requests with contents, and frames that do not belong there."""
    encoder = hpack.Encoder()
    out = [PREFACE + http2_frame(4, 0, 0, b"")]
    stream = 1
    for _ in range(draw(st.integers(1, 5))):
        if draw(st.integers(0, 3)) == 0:
            strange = st.builds(
                http2_frame,
                st.integers(0, 12),
                st.integers(0, 255),
                st.sampled_from([0, 1, 2, 3, 5, stream, 2**31 - 1]),
                raw,
                st.sampled_from([None, None, 0, 16384, 2**24 - 1]),
            )
            out.append(draw(strange))
            continue
        pseudo = [
            (":method", draw(methods)),
            (":path", draw(st.one_of(paths, queries.map("/v1/streams/s/records?{}".format)))),
        ]
        pseudo += [(":scheme", "http"), (":authority", "x")]
        block = encoder.encode(draw(st.sampled_from([pseudo, pseudo, pseudo[:1], pseudo[::-1]])) + draw(fields))
        block = draw(mangled(block))
        ended = draw(st.booleans())
        out.append(http2_frame(1, 0x05 if ended else 0x04, stream, block[:16000]))
        if not ended:
            data = draw(mangled(draw(contents)))[:60_000]
            pieces = [data[at : at + 16000] for at in range(0, len(data), 16000)]
            out += [http2_frame(0, 0, stream, piece) for piece in pieces]
            out += draw(st.sampled_from([[], [http2_frame(0, 1, stream, b"")], [http2_frame(3, 0, stream, bytes(4))]]))
        stream += 2
    return out


attacks = st.builds(
    Attack,
    st.one_of(
        st.lists(http1_requests(), min_size=1, max_size=3),
        http2_conversations(),
        http2_conversations(),
        st.lists(raw, min_size=1, max_size=3),
    ),
    st.booleans(),
    st.booleans(),
)
