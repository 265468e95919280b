"""Random histories: whatever is done to the embedded server and the real one in one order, both answer alike."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from s2pubsub.server import LocalServer
from s2pubsub.server.protobuf import record_payload, varint
from tests.conformance.answers import frames, message, positions
from tests.conformance.raw_case import frame
from tests.server.raw import Answer, send
from tests.servers import LiteServer

SETTLE = 5.0
JSON = {"content-type": "application/json"}

names = st.sampled_from(["one", "two"])
numbers = st.one_of(st.integers(0, 30), st.sampled_from([1000, 2**63, 2**64 - 1]))
tokens = st.sampled_from(["", "a", "b"])
bodies = st.text(alphabet="xy", max_size=8)
plain = st.builds(
    lambda body, headers: ([list(pair) for pair in headers], body),
    bodies,
    st.lists(st.tuples(st.just("h"), bodies), max_size=2),
)
fences = tokens.map(lambda token: ([["", "fence"]], token))
trims = st.integers(0, 40).map(lambda point: ([["", "trim"]], point.to_bytes(8, "big").decode()))
records = st.tuples(st.one_of(plain, plain, plain, fences, trims), st.integers(0, 60))
batches = st.lists(records, min_size=1, max_size=6)
matches = st.one_of(st.none(), st.none(), st.just("tail"), st.integers(0, 20))
conditions = st.one_of(st.none(), st.none(), tokens)
starts = st.one_of(
    st.none(),
    st.tuples(st.just("seq_num"), numbers),
    st.tuples(st.just("timestamp"), st.one_of(st.integers(0, 70), st.just(2**64 - 1))),
    st.tuples(st.just("tail_offset"), numbers),
)
limits = st.fixed_dictionaries(
    {},
    optional={
        "count": st.one_of(st.integers(0, 12), st.just(5000)),
        "bytes": st.one_of(st.integers(0, 150), st.just(2**30)),
        "until": st.integers(0, 70),
        "clamp": st.sampled_from(["true", "false"]),
    },
)


class Ports:
    """Where the two servers listen."""

    lite = 0
    embedded = 0


class SameHistory(RuleBasedStateMachine):
    """One history on both servers, in a basin of its own."""

    @initialize()
    def make_basin(self) -> None:
        self.basin = f"history-{uuid.uuid4().hex[:20]}"
        self.tail = 0
        config = {"default_stream_config": {"timestamping": {"uncapped": True}}}
        self.both("POST", "/v1/basins", {"basin": self.basin, "config": config})
        for name in ("one", "two"):
            self.both("POST", "/v1/streams", {"stream": name})

    def ask(self, port: int, method: str, target: str, body: Any, headers: dict[str, str]) -> Answer:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        return send(port, method, target, {"s2-basin": self.basin, **JSON, **headers}, data)

    def both(self, method: str, target: str, body: Any = None, *, settle: bool = False, **headers: str) -> Answer:
        """Do the same on both and compare.

        With ``settle`` the real server, which trims and deletes in its own time, may be asked again for a while.
        """
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        given = self.ask(Ports.embedded, method, target, body, fields)
        wanted = self.ask(Ports.lite, method, target, body, fields)
        deadline = time.monotonic() + SETTLE
        while b"transaction_conflict" in wanted.body and time.monotonic() < deadline:
            # Its own background work was at the stream's description; clients repeat such a request, too.
            wanted = self.ask(Ports.lite, method, target, body, fields)
            if method == "DELETE" and wanted.status == 404:
                return given  # the first attempt had deleted it all the same
        reading = method == "GET"
        expected = reduced(given, reading=reading)
        while settle and reduced(wanted, reading=reading) != expected and time.monotonic() < deadline:
            wanted = self.ask(Ports.lite, method, target, body, fields)
        assert expected == reduced(wanted, reading=reading), f"{method} {target} {body!r}: {given} is not {wanted}"
        return given

    @rule(name=names, batch=batches, match=matches, fencing_token=conditions)
    def append(self, name: str, batch: list[Any], match: Any, fencing_token: str | None) -> None:
        document: dict[str, Any] = {
            "records": [{"headers": headers, "body": body, "timestamp": at} for (headers, body), at in batch]
        }
        if match is not None:
            document["match_seq_num"] = self.tail if match == "tail" else match
        if fencing_token is not None:
            document["fencing_token"] = fencing_token
        answer = self.both("POST", f"/v1/streams/{name}/records", document)
        if answer.status == 200:
            self.tail = answer.document()["tail"]["seq_num"]

    @rule(name=names, inputs=st.lists(st.tuples(batches, matches, conditions), max_size=4), cut=st.integers(0, 3))
    def append_session(self, name: str, inputs: list[Any], cut: int) -> None:
        """Several inputs in one session; the last frame may be cut short."""
        data = b"".join(
            frame(encode(batch, None if match == "tail" else match, token)) for batch, match, token in inputs
        )
        data = data[: len(data) - cut] if data and cut > 1 else data
        self.both("POST", f"/v1/streams/{name}/records", data, content_type="s2s/proto")

    @rule(name=names, start=starts, more=limits, form=st.sampled_from(["json", "session", "events"]))
    def read(self, name: str, start: Any, more: dict[str, Any], form: str) -> None:
        query = dict([start] if start else [], **more)
        headers = {"events": {"accept": "text/event-stream"}, "session": {"content_type": "s2s/proto"}}.get(form, {})
        if form != "json":
            query.setdefault("count", 100)
        self.both("GET", f"/v1/streams/{name}/records?{urlencode(query)}", settle=True, **headers)

    @rule(name=names)
    def check_tail(self, name: str) -> None:
        self.both("GET", f"/v1/streams/{name}/records/tail")

    @rule(name=names, mode=st.sampled_from(["client-prefer", "client-require", None]))
    def reconfigure(self, name: str, mode: str | None) -> None:
        self.both("PATCH", f"/v1/streams/{name}", {"timestamping": {"mode": mode}})

    @rule(name=names)
    def recreate(self, name: str) -> None:
        """Delete the stream and make it anew."""
        self.both("DELETE", f"/v1/streams/{name}")
        self.both("GET", f"/v1/streams/{name}", settle=True)
        self.both("POST", "/v1/streams", {"stream": name}, settle=True)

    @rule()
    def list_streams(self) -> None:
        self.both("GET", "/v1/streams", settle=True)

    def teardown(self) -> None:
        for port in (Ports.lite, Ports.embedded):
            self.ask(port, "DELETE", f"/v1/basins/{self.basin}", None, {})


def encode(batch: list[Any], match_seq_num: int | None, fencing_token: str | None) -> bytes:
    """A protobuf AppendInput."""
    out = b""
    for (headers, body), timestamp in batch:
        pairs = [(name.encode(), value.encode()) for name, value in headers]
        record = b"\x08" + varint(timestamp)
        for pair in pairs:
            record += record_payload([pair], b"").replace(b"\x1a", b"\x12", 1)
        record += record_payload([], body.encode()).replace(b"\x22", b"\x1a", 1)
        out += b"\x0a" + varint(len(record)) + record
    if match_seq_num is not None:
        out += b"\x10" + varint(match_seq_num)
    if fencing_token is not None:
        out += b"\x1a" + varint(len(fencing_token)) + fencing_token.encode()
    return out


def reduced(answer: Answer, *, reading: bool) -> Any:
    """What both servers must agree on. Records of a read are joined: batches may be cut elsewhere."""
    kind = answer.headers.get("content-type", "")
    if kind == "s2s/proto":
        parts = frames(answer.body)
        errors = [(body[:2], json.loads(body[2:]).get("code")) for flags, body in parts if flags & 0x80]
        regular = [body for flags, body in parts if not flags & 0x80]
        if reading:
            return answer.status, [record for body in regular for record in message(body, reading=True)], errors
        return answer.status, [positions(body)[:2] for body in regular], errors
    if kind == "text/event-stream":
        return answer.status, list(event_records(answer.body))
    if not answer.body:
        return answer.status, None
    document = answer.document()
    for name in ("message", "created_at", "tail" if "records" in document else ""):
        document.pop(name, None)
    for stream in document.get("streams", []):
        stream.pop("created_at")
    return answer.status, document


def event_records(body: bytes) -> Iterator[Any]:
    for text in body.decode().split("\n\n"):
        lines = dict(line.partition(": ")[::2] for line in text.split("\n") if line)
        if lines.get("event") == "batch":
            yield from json.loads(lines["data"])["records"]
        elif lines.get("event") == "error":
            yield json.loads(lines["data"])["code"]


@pytest.mark.embedded
@pytest.mark.lite
@pytest.mark.slow
@pytest.mark.limit(300)
@pytest.mark.parametrize("kept", [False, True], ids=["memory", "data"])
def test_random_histories_are_answered_alike(tmp_path: Any, kept: bool) -> None:
    """Appends with and without conditions, fences, trims, reads of every kind, deletions: the same answers."""
    with LiteServer(flush="1ms") as lite, LocalServer(data=tmp_path if kept else None) as embedded:
        Ports.lite, Ports.embedded = lite.port, embedded.port
        quiet = settings(
            max_examples=25,
            stateful_step_count=30,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        )
        run_state_machine_as_test(SameHistory, settings=quiet)
