"""Events that one language writes and the other reads: the same values at the same indices."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest

from s2pubsub import DecodeError, EncodeError, S2PubSub
from s2pubsub.codec import MAX_RECORD_BYTES, RECORD_OVERHEAD, encode
from tests.events import exact
from tests.interop.cases import ODD_VALUES, RUN, RUN_EVENTS, THREAD_EVENTS
from tests.interop.node import NodeError, Peer
from tests.raw import Streams
from tests.servers import Server
from tests.waiting import LONG

pytestmark = pytest.mark.interop

RUN_TOPIC = f"agent.stream.{RUN}"
THREAD_TOPIC = "agent.thread-stream.user%201%00th%2F1"
EVENTS = {
    "run": (RUN_TOPIC, RUN_EVENTS),
    "thread": (THREAD_TOPIC, THREAD_EVENTS),
    "odd": ("agent.odd/ключ 👋", [("", value) for value in ODD_VALUES]),
}


def groups(way: str) -> Any:
    names = {"run": "events of runs", "thread": "events of conversations", "odd": "odd values"}
    marked = [pytest.param(name, marks=pytest.mark.shows(what, way)) for name, what in names.items()]
    return pytest.mark.parametrize("group", marked)


def as_javascript(value: Any) -> Any:
    """What JSON of JavaScript makes of a value: no -0, no difference of 1.0 and 1, keys that are numbers first."""
    if isinstance(value, dict):
        numbers = sorted((key for key in value if key.isdigit()), key=int)
        rest = [key for key in value if not key.isdigit()]
        return {key: as_javascript(value[key]) for key in [*numbers, *rest]}
    if isinstance(value, list):
        return [as_javascript(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return int(value)
    return value


@groups("Python writes, TypeScript reads")
def test_typescript_reads_what_python_writes(peer: Peer, pubsub: S2PubSub, group: str) -> None:
    """Each event that Python publishes is for TypeScript the same value, -0 included, at the same index."""
    topic, events = EVENTS[group]
    stored = pubsub.publish_many(topic, [{"type": kind, "data": data, "run_id": RUN} for kind, data in events])
    expected = [{"index": event.index, "type": event.type, "runId": RUN, "data": event.data} for event in stored]
    outcome = peer.call("compare", topic=topic, expected=expected)
    assert outcome == {"count": len(events), "differing": []}
    dates = [event["createdAt"] for event in peer.call("history", topic=topic)]
    assert dates == [event.created_at.timestamp() * 1000 for event in stored]


@groups("TypeScript writes, Python reads")
def test_python_reads_what_typescript_writes(peer: Peer, pubsub: S2PubSub, group: str) -> None:
    """Each event that TypeScript publishes is for Python the same value at the same index, as history and live."""
    topic, events = EVENTS[group]
    with pubsub.subscribe(topic) as live:
        peer.call("publish", topic=topic, events=[{"type": kind, "data": data, "runId": RUN} for kind, data in events])
        history = pubsub.get_history(topic)
        assert [(event.index, event.type, event.run_id) for event in history] == [
            (index, kind, RUN) for index, (kind, _) in enumerate(events)
        ]
        for event, (_, data) in zip(history, events, strict=True):
            assert exact(event.data) == exact(as_javascript(data))
        assert [live.get(LONG) for _ in events] == history
    ours = [(event.id, round(event.created_at.timestamp() * 1000), event.delivery_attempt) for event in history]
    theirs = peer.call("history", topic=topic)
    assert ours == [(event["id"], event["createdAt"], event["deliveryAttempt"]) for event in theirs]
    assert [event["index"] for event in theirs] == [event.index for event in history]


def test_the_comparison_notices_differences(peer: Peer, pubsub: S2PubSub) -> None:
    """The comparison in Node tells -0 from 0, null from nothing, and one index or type from another."""
    stored = pubsub.publish(RUN_TOPIC, type="a", data=[-0.0, {"b": None}], run_id=RUN)
    right = {"index": 0, "type": "a", "runId": RUN, "data": stored.data}
    assert peer.call("compare", topic=RUN_TOPIC, expected=[right])["differing"] == []
    for change in ({"data": [0, {"b": None}]}, {"data": [-0.0, {}]}, {"index": 1}, {"type": "b"}, {"runId": ""}):
        wrong = {**right, **change}
        assert peer.call("compare", topic=RUN_TOPIC, expected=[wrong])["differing"] == [wrong]


@pytest.mark.shows("values that only JavaScript has", "TypeScript writes, Python reads")
def test_values_that_only_javascript_has(peer: Peer, pubsub: S2PubSub) -> None:
    """Undefined, NaN, dates, maps and halves of characters arrive as JSON of JavaScript has them."""
    peer.call("publishNative", topic=RUN_TOPIC)
    found = {event.type: event.data for event in pubsub.iter_history(RUN_TOPIC)}
    assert found == {
        "undefined_member": {"a": 1, "c": [None, 1]},
        "not_a_number": [None, None, None],
        "negative_zero": 0,
        "date": "2026-01-01T00:00:00.123Z",
        "map_set_error": [{}, {}, {}],
        "instance": {"x": 1},
        "half_emoji": ["\ud83d", "\udc4b"],
        "control": "\0\x1f\x7f\u2028\u2029\ufeff",
        "integers": [2**53 - 1, -(2**53 - 1), 2**53 + 2, 1e21, 5e-324, 1.7976931348623157e308],
        "number_like_keys": {"10": "b", "9": "a", "__proto": None, "": "empty"},
        "bytes": {"0": 1, "1": 2},
        "bytes_of_node": {"type": "Buffer", "data": [104, 105]},
        "to_json": "own form",
    }
    assert list(found["number_like_keys"]) == ["9", "10", "__proto", ""]


@pytest.mark.shows("records of exactly 1 MiB", "both ways")
def test_largest_record(peer: Peer, pubsub: S2PubSub) -> None:
    """A record of exactly 1 MiB goes both ways; one byte more is refused by both, and nothing is stored."""
    _, empty = encode(RUN_TOPIC, type="chunk", data="", run_id=RUN)
    room = MAX_RECORD_BYTES - RECORD_OVERHEAD - len(empty)
    text = "ü" * (room // 2) + "x" * (room % 2)
    pubsub.publish(RUN_TOPIC, type="chunk", data=text, run_id=RUN)
    peer.call("publish", topic=RUN_TOPIC, events=[{"type": "chunk", "data": text, "runId": RUN}])
    assert [event.data == text for event in pubsub.get_history(RUN_TOPIC)] == [True, True]
    assert [event["data"] == text for event in peer.call("history", topic=RUN_TOPIC)] == [True, True]
    with pytest.raises(EncodeError):
        pubsub.publish(RUN_TOPIC, type="chunk", data=text + "x", run_id=RUN)
    with pytest.raises(NodeError):
        peer.call("publish", topic=RUN_TOPIC, events=[{"type": "chunk", "data": text + "x", "runId": RUN}])
    assert pubsub.tail(RUN_TOPIC) == 2


ENVELOPE = {"type": "chunk", "runId": RUN, "data": 1, "id": "i", "createdAt": "2026-03-01T12:00:00.123Z"}
DATES: list[Any] = [
    "2026-03-01T12:00:00.123Z",
    "2026-03-01T12:00:00Z",
    "2026-03-01T12:00Z",
    "2026-03-01T12:00:00.1Z",
    "2026-03-01T12:00:00.123456789Z",
    "2026-03-01T14:30:00.123+02:30",
    "2026-03-01T09:29:59.999-02:30",
    "2026-03-01T12:00:00.123",
    "2026-03-01",
    "2026-03",
    "2026",
    "2026-03-01T24:00:00.000Z",
    "0001-01-01T00:00:00.000Z",
    "9999-12-31T23:59:59.999Z",
    1772366400123,
    1772366400123.9,
    0,
    -1,
]


@pytest.mark.shows("dates in every form", "records read by both")
def test_dates(server: Server, basin: str, peer: Peer, pubsub: S2PubSub) -> None:
    """Both languages read the same moment from every form of date (TypeScript in the zone UTC)."""
    bodies = [json.dumps({**ENVELOPE, "createdAt": date}).encode() for date in DATES]
    Streams(server, basin).append(RUN_TOPIC, *bodies)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    ours = [(event.created_at - epoch).total_seconds() * 1000 for event in pubsub.get_history(RUN_TOPIC)]
    theirs = [event["createdAt"] for event in peer.call("history", topic=RUN_TOPIC)]
    assert dict(zip(map(str, DATES), map(round, ours), strict=True)) == dict(
        zip(map(str, DATES), map(round, theirs), strict=True)
    )


@pytest.mark.shows("unknown keys, old and newer envelopes", "records read by both")
def test_envelopes_of_other_versions(server: Server, basin: str, peer: Peer, pubsub: S2PubSub) -> None:
    """Records without an attempt, with unknown keys and with white space are events for both; Python keeps the keys."""
    bodies = [
        json.dumps(ENVELOPE).encode(),
        json.dumps({**ENVELOPE, "deliveryAttempt": 3}).encode(),
        json.dumps({**ENVELOPE, "deliveryAttempt": 2.0}).encode(),
        json.dumps({**ENVELOPE, "producedAt": 1.5, "outputProcessed": True, "new": {"a": []}}).encode(),
        b"\n\t " + json.dumps(ENVELOPE, indent=2).encode() + b"\r\n",
        json.dumps({**ENVELOPE, "id": "", "type": "", "runId": ""}).encode(),
        json.dumps({**ENVELOPE, "data": None}).encode(),
    ]
    Streams(server, basin).append(RUN_TOPIC, *bodies)
    ours = pubsub.get_history(RUN_TOPIC)
    theirs = peer.call("history", topic=RUN_TOPIC)
    assert [event.delivery_attempt for event in ours] == [1, 3, 2, 1, 1, 1, 1]
    assert [(e.index, e.id, e.type, e.run_id, e.data, e.delivery_attempt) for e in ours] == [
        tuple(event[key] for key in ("index", "id", "type", "runId", "data", "deliveryAttempt")) for event in theirs
    ]
    assert ours[3].extra == {"producedAt": 1.5, "outputProcessed": True, "new": {"a": []}}


@pytest.mark.shows("unknown keys, old and newer envelopes", "Python writes, TypeScript reads")
def test_extra_keys_are_passed_on(peer: Peer, pubsub: S2PubSub) -> None:
    """An event that Python read with unknown keys and publishes again is an event for TypeScript."""
    extra = {"producedAt": 1, "outputProcessed": False}
    stored = pubsub.publish_many(RUN_TOPIC, [{"type": "chunk", "data": {}, "run_id": RUN, "extra": extra}])
    assert pubsub.get_history(RUN_TOPIC)[0].extra == extra
    assert [event["id"] for event in peer.call("history", topic=RUN_TOPIC)] == [stored[0].id]


BROKEN = [
    b"",
    b"null",
    b"[]",
    b'"text"',
    b"{",
    json.dumps({**ENVELOPE, "id": 1}).encode(),
    json.dumps({**ENVELOPE, "type": None}).encode(),
    json.dumps({**ENVELOPE, "runId": []}).encode(),
    json.dumps({key: value for key, value in ENVELOPE.items() if key != "data"}).encode(),
    json.dumps({**ENVELOPE, "createdAt": "yesterday"}).encode(),
    json.dumps({**ENVELOPE, "createdAt": "2026-02-30T25:00:00Z"}).encode(),
    json.dumps({**ENVELOPE, "createdAt": None}).encode(),
    json.dumps({**ENVELOPE, "createdAt": True}).encode(),
    json.dumps({**ENVELOPE, "deliveryAttempt": "1"}).encode(),
    json.dumps({**ENVELOPE, "deliveryAttempt": None}).encode(),
    json.dumps({**ENVELOPE, "data": math.nan}).encode(),
    json.dumps({**ENVELOPE, "data": -math.inf}).encode(),
]


@pytest.mark.shows("records that are no events", "refused by both")
def test_records_that_are_no_events(server: Server, basin: str, peer: Peer, pubsub: S2PubSub) -> None:
    """What is no event for one language is none for the other."""
    streams = Streams(server, basin)
    for number, body in enumerate(BROKEN):
        topic = f"agent.broken.{number}"
        streams.append(topic, json.dumps(ENVELOPE).encode(), body)
        with pytest.raises(DecodeError) as caught:
            pubsub.get_history(topic)
        assert caught.value.index == 1
        with pytest.raises(NodeError):
            peer.call("history", topic=topic)


@pytest.mark.shows("positions", "both ways")
def test_positions_agree(peer: Peer, pubsub: S2PubSub) -> None:
    """From index k both deliver k first, then what follows live; at the tail both see only what is new."""
    for number in range(4):
        pubsub.publish(RUN_TOPIC, type="n", data=number)
    from_two = peer.handle("subscribe", topic=RUN_TOPIC, start=2)
    latest = peer.handle("subscribe", topic=RUN_TOPIC, start="latest")
    with pubsub.subscribe(RUN_TOPIC, start=2) as ours, pubsub.subscribe(RUN_TOPIC) as our_latest:
        peer.call("publish", topic=RUN_TOPIC, events=[{"type": "n", "data": 4, "runId": ""}])
        assert pubsub.publish(RUN_TOPIC, type="n", data=5).index == 5
        assert [ours.get(LONG).index for _ in range(4)] == [2, 3, 4, 5]
        assert [our_latest.get(LONG).index for _ in range(2)] == [4, 5]
    assert [event["index"] for event in peer.call("heard", handle=from_two, count=4)] == [2, 3, 4, 5]
    assert [event["index"] for event in peer.call("heard", handle=latest, count=2)] == [4, 5]
    for offset in (0, 3, 6, 100):
        theirs = peer.call("history", topic=RUN_TOPIC, offset=offset)
        assert [event["index"] for event in theirs] == [event.index for event in pubsub.get_history(RUN_TOPIC, offset)]
    assert peer.call("history", topic="agent.stream.nobody") == pubsub.get_history("agent.stream.nobody") == []
