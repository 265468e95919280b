"""Raw requests of the data plane, to be sent after `control_cases`, which makes their basin and the stream s1."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterator
from typing import Any

from tests.conformance.raw_case import BASIN, EVENTS, JSON, ONE, PROTOBUF, SESSION, Case, append_input, dump, frame


def json_appends() -> Iterator[Case]:
    """Unary appends in JSON to the stream s1."""
    path, headers = "/v1/streams/s1/records", {**JSON, **BASIN}
    records: list[Any] = [{}, {"body": "x"}, {"body": None}, {"headers": None}, {"headers": []}, {"headers": [["a"]]}]
    records += [{"headers": [["a", "b", "c"]]}, {"headers": [["a", "b"]]}, {"headers": [["", "b"]]}, {"body": 1}]
    records += [{"body": "x", "timestamp": value} for value in ("1", 1, 2**64, 1e3, -1, None)]
    records += [{"headers": [["", "fence"]], "body": "tok"}, {"headers": [["", "fence"], ["a", "b"]]}]
    records += [{"headers": [["a", "b"], ["", "b"]]}, {"headers": [["", "fence"]], "body": "x" * 37}]
    records += [{"headers": [["", "trim"]], "body": body} for body in ("12345678", "1234567")]
    for record in records:
        yield Case("POST", path, headers, dump({"records": [record]}))
    one = [{"body": "x"}]
    for more in [
        {"fencing_token": "tok"},
        {"fencing_token": "no"},
        {"fencing_token": "no", "match_seq_num": 0},
        {"fencing_token": "x" * 37},
        *({"match_seq_num": value} for value in (0, None, -1, 1.0, "1", 2**64)),
    ]:
        yield Case("POST", path, headers, dump({"records": one, **more}))
    bodies = [
        b"",
        b"{}",
        b'{"records":[]}',
        b'{"records":null}',
        b'{"records":{"a":1}}',
        b'{"records":[{"body":"\\ud800"}]}',
    ]
    bodies += [b'{"records":[{"body":"\xff"}]}', b'{"records":[{"body":"a\x01b"}]}', ONE + b" x", b"\xef\xbb\xbf" + ONE]
    bodies += [
        b'{"records":[{"body":"x"}],"records":[]}',
        b'{"records":[{"body":"x","u":1}],"u":2}',
        ONE.replace(b'"x"', b"NaN"),
    ]
    bodies += [dump({"records": one * count}) for count in (1000, 1001)]
    bodies += [dump({"records": [{"body": "x" * size}]}) for size in (2**20 - 8, 2**20 - 7, 2**21)]
    for body in bodies:
        yield Case("POST", path, headers, body)
    for other in ({**BASIN}, {**BASIN, "content-type": "text/plain"}, JSON, {**JSON, "s2-basin": "nonexistent"}):
        yield Case("POST", path, other, ONE)
        yield Case("POST", "/v1/streams/nope/records", other, b"{")
    for form in ("raw", "base64", "json", "json-binsafe", "x", "", " raw "):
        body = b'{"records":[{"body":"aGVsbG8=","headers":[["YQ==","Yg=="]]}]}'
        yield Case("POST", path, {**headers, "s2-format": form}, body)
        yield Case("GET", path + "?tail_offset=1", {**BASIN, "s2-format": form})
    for text in ("aGVsbG8", "a", "aGVs bG8=", "aGVsbG9=", "_-==", ""):
        yield Case("POST", path, {**headers, "s2-format": "base64"}, dump({"records": [{"body": text}]}))
    large = gzip.compress(dump({"records": [{"body": "x" * (3 * 2**20)}]}))
    for encoding, body in [
        ("gzip", gzip.compress(ONE)),
        ("gzip", b"junk"),
        ("gzip", large),
        ("br", b"j"),
        ("identity", ONE),
    ]:
        yield Case("POST", path, {**headers, "content-encoding": encoding}, body)


def protobuf_appends() -> Iterator[Case]:
    """Unary appends in protobuf to the stream s1."""
    path = "/v1/streams/s1/records"
    bodies = [b"", append_input([]), append_input([b""]), append_input([b"x"]), append_input([b"\xff\xfe"])]
    bodies += [append_input([b"x"], 0), append_input([b"x"], None, "z"), append_input([b"x"], None, "z" * 37)]
    bodies += [b"\xff", b"\x0a\x05abc", b"\x08\x01", b"\x0a\x02\x20\x01", b"\x0a\x02\x18\x01", b"\x1a\x01\xff\x0a\x00"]
    bodies += [b"\x22\x00\x0a\x00", b"\x0b\x0a\x00\x0c", b"\x23\x24\x0a\x00", b"\x25\0\0\0\0\x0a\x00", b"\x24\x0a\x00"]
    bodies += [
        b"\x29" + bytes(8) + b"\x0a\x00",
        b"\x0a\x02\x10\x01",
        b"\x8a\x00\x00",
        b"\x0a\x80\x00",
        b"\x23\x2c\x0a\x00",
    ]
    bodies += [
        b"\x10" + b"\xff" * 9 + b"\x01\x0a\x00",
        b"\x10" + b"\xff" * 9 + b"\x02\x0a\x00",
        b"\x00\x00",
        b"\x22\x05a",
    ]
    bodies += [
        b"\xf8\xff\xff\xff\x7f\x00\x0a\x00",
        b"\x0a\x03\x1a\x05x",
        bytes(2**21 + 1),
        b"\x0a\x05\x08\x05\x1a\x01x",
    ]
    for body in bodies:
        yield Case("POST", path, {**PROTOBUF, **BASIN}, body)
        yield Case("POST", path, {**PROTOBUF, **BASIN, "accept": "application/x-protobuf"}, body)
    for accept in ("application/json, application/protobuf", "*/*", "application/protobuf;q=0.1", "nonsense"):
        headers = {**BASIN, "content-type": "application/x-protobuf", "accept": accept}
        yield Case("POST", path, headers, append_input([b"x"]))


def reads() -> Iterator[Case]:
    """Unary reads, sessions and event streams of the stream r1, which they make."""
    path = "/v1/streams/r1/records"
    for target in ("/v1/streams/s1/records", "/v1/streams/nope/records"):
        for headers in (BASIN, {}, {"s2-basin": "nonexistent"}):
            yield Case("GET", target + "/tail", headers)
            yield Case("GET", target + "?seq_num=0&count=1", headers)
    config = {"timestamping": {"uncapped": True}}
    yield Case("POST", "/v1/streams", {**JSON, **BASIN}, dump({"stream": "r1", "config": config}))
    empty = [
        "",
        "seq_num=0",
        "tail_offset=5",
        "timestamp=0",
        "timestamp=5",
        "count=0",
        "bytes=0",
        "seq_num=0&clamp=true",
    ]
    for query in [*empty, "wait=0", "count=0&seq_num=9", "until=0", "timestamp=5&until=5"]:
        yield Case("GET", f"{path}?{query}", BASIN)
    records = [{"body": f"body{number}", "timestamp": 100 * (number // 2)} for number in range(10)]
    yield Case("POST", path, {**JSON, **BASIN}, dump({"records": records}))
    starts = [f"seq_num={value}" for value in (0, 5, 9, 10, 11, -1, "x", 2**64 - 1, 2**64, "", "%30", "1+", "01")]
    starts += [f"tail_offset={value}" for value in (0, 3, 100, 2**64 - 1)]
    starts += [f"timestamp={value}" for value in (0, 100, 150, 400, 401)]
    clamps = [
        "seq_num=11&clamp=true",
        "seq_num=10&clamp=true",
        "seq_num=11&clamp=false",
        "seq_num=11&clamp=1",
        "clamp=TRUE",
    ]
    clamps += ["seq_num=11&clamp=", "timestamp=401&clamp=true"]
    limits = [
        f"seq_num=0&{name}={value}" for name in ("count", "bytes") for value in (0, 3, 12, 13, 39, 40, 99999, "x")
    ]
    limits += [
        "seq_num=10&count=0",
        "seq_num=11&count=0",
        "seq_num=0&count=2&bytes=1000",
        "seq_num=3&count=2",
        "count=1&count=2",
    ]
    limits += [f"seq_num=0&until={value}" for value in (0, 100, 101, "x")] + ["seq_num=9&until=1", "seq_num=10&until=1"]
    both = ["seq_num=0&timestamp=0", "seq_num=0&tail_offset=0", "timestamp=100&until=100", "timestamp=100&until=101"]
    both += ["timestamp=100&until=99", "timestamp=500&until=400", "seq_num=0&seq_num=1", "seq_num=0&foo=1"]
    waits = [
        "seq_num=0&wait=0",
        "seq_num=0&wait=1",
        "seq_num=10&wait=0",
        f"wait={2**32}",
        "wait=x",
        "seq_num=10&wait=1",
    ]
    for query in ["", *starts, *clamps, *limits, *both, *waits]:
        yield Case("GET", f"{path}?{query}", BASIN)
        if "wait=1" not in query:
            yield Case("GET", f"{path}?{query}", {**BASIN, "accept": "application/protobuf"})
    sessions = [
        "seq_num=0&count=3",
        "seq_num=0&count=20&wait=0",
        "seq_num=10&count=1",
        "seq_num=0&until=100",
        "seq_num=11",
    ]
    sessions += [
        "seq_num=0&bytes=12",
        "seq_num=0&count=0",
        "seq_num=0&wait=0",
        "seq_num=10&wait=0",
        "seq_num=10&wait=1",
    ]
    for query in [*sessions, "tail_offset=0&wait=0", "timestamp=500&until=400", "seq_num=x"]:
        yield Case("GET", f"{path}?{query}", {**BASIN, **SESSION})
        yield Case("GET", f"{path}?{query}", {**BASIN, **EVENTS})
        if "&" in query:  # others would go on for ever from there
            yield Case("GET", f"{path}?{query}", {**BASIN, **EVENTS, "last-event-id": "3,1,13"})
    for event_id in ("", "1", "1,2", "1,2,3", "a,b,c", "1,2,3,4", "-1,2,3"):
        for headers in (EVENTS, {}):
            yield Case("GET", f"{path}?seq_num=0&count=5", {**BASIN, **headers, "last-event-id": event_id})


def created_by_use() -> Iterator[Case]:
    """Streams that come into being by being used."""
    for config in ('{"storage_class":"standard"}', "{", "[]", '{"retention_policy":{"age":0}}', "null", ""):
        headers = {**BASIN, "s2-stream-config": config}
        yield Case("POST", "/v1/streams/nope2/records", {**JSON, **headers}, ONE)
        yield Case("GET", "/v1/streams/nope2/records", headers)
        yield Case("GET", "/v1/streams/nope2/records/tail", headers)
    settings = {"create_stream_on_append": True, "create_stream_on_read": True}
    yield Case("POST", "/v1/basins", JSON, dump({"basin": "basin-auto", "config": settings}))
    auto = {"s2-basin": "basin-auto"}
    yield Case("GET", "/v1/streams/x1/records/tail", auto)
    yield Case("GET", "/v1/streams/x2/records?seq_num=0", auto)
    yield Case("GET", "/v1/streams/x3/records?timestamp=5&until=5", auto)
    yield Case("GET", "/v1/streams/x9/records?seq_num=x", auto)
    for name, config, body in [
        ("x4", "{}", b'{"records":[]}'),
        ("x5", ' { "timestamping" : { "mode" : "arrival" } } ', ONE),
        ("x6", "{}", dump({"records": [{"body": "x"}], "match_seq_num": 5})),
        ("x7", '{"timestamping":{"mode":"client-require"}}', ONE),
        ("x8", "{", ONE),
    ]:
        headers = {**auto, **JSON, "s2-stream-config": config}
        yield Case("POST", f"/v1/streams/{name}/records", headers, body)
        yield Case("GET", f"/v1/streams/{name}", auto)
    yield Case("GET", "/v1/streams", auto)


def encrypted() -> Iterator[Case]:
    """Keys, right and wrong, on an encrypted stream and on one that is not."""
    yield Case("POST", "/v1/basins", JSON, dump({"basin": "basin-cipher", "config": {"stream_cipher": "aegis-256"}}))
    basin = {"s2-basin": "basin-cipher"}
    yield Case("POST", "/v1/streams", {**JSON, **basin}, dump({"stream": "e1"}))
    path = "/v1/streams/e1/records"
    key, other = (base64.b64encode(letter * 32).decode() for letter in (b"k", b"l"))
    fence = {"headers": [["", "fence"]], "body": "t"}
    for given in [None, "", key, other, "short", "x" * 44, "x" * 45, base64.b64encode(b"k" * 31).decode(), "!!!!"]:
        headers = dict(basin) if given is None else {**basin, "s2-encryption-key": given}
        yield Case("POST", path, {**JSON, **headers}, dump({"records": [fence, {"body": "secret"}]}))
        yield Case("GET", f"{path}/tail", headers)
        yield Case("GET", "/v1/streams/r1/records?seq_num=9", {**headers, **BASIN})
        for query in ("seq_num=0&count=1", "seq_num=0&count=9", "tail_offset=1&count=1"):
            for form in ({}, EVENTS, SESSION):
                yield Case("GET", f"{path}?{query}", {**headers, **form})


def append_sessions() -> Iterator[Case]:
    """Append sessions over HTTP/1.1, whole in one body."""
    yield Case("POST", "/v1/streams", {**JSON, **BASIN}, dump({"stream": "z1"}))
    path, one = "/v1/streams/z1/records", append_input([b"x"])
    zipped = gzip.compress(one)
    bodies = [
        b"",
        frame(one),
        frame(one) * 3,
        frame(b""),
        bytes(3),
        b"\0\0\1",
        bytes(2),
        b"\xff\xff\xff",
        frame(b"", 0x80),
    ]
    bodies += [frame(b"\x01\x90{}", 0x80), frame(b"", 0x60), frame(one, 0x10), frame(one, 0x0F), frame(b"junk", 0x20)]
    bodies += [
        frame(b"junk", 0x40),
        frame(zipped, 0x40),
        frame(zipped[:-3], 0x40),
        frame(one) + b"\0\0",
        frame(b"\xff"),
    ]
    bodies += [
        frame(one) + frame(append_input([b"x"], 0)) + frame(one),
        frame(one) + frame(b"\xff"),
        frame(append_input([])),
    ]
    bodies += [
        frame(append_input([b"x"], None, "zz")),
        (2**21 + 1).to_bytes(3, "big"),
        (2**21).to_bytes(3, "big") + b"\0",
    ]
    for body in bodies:
        yield Case("POST", path, {**SESSION, **BASIN}, body)
    yield Case("POST", "/v1/streams/nope/records", {**SESSION, **BASIN}, frame(one))
    yield Case("POST", path, SESSION, b"")
    yield Case("POST", "/v1/streams/e1/records", {**SESSION, "s2-basin": "basin-cipher"}, b"")
    yield Case("POST", path, {**BASIN, "content-type": "S2S/Proto; x=y"}, b"")


RECORDS = [json_appends, protobuf_appends, reads, created_by_use, encrypted, append_sessions]
