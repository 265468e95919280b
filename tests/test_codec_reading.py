"""Tests of reading: what is an event, what is not, and how a batch goes on."""

from __future__ import annotations

import json
import pickle
import weakref
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from s2pubsub.codec import MAX_READ_DEPTH, decode, decode_batch, encode, fast
from s2pubsub.errors import DecodeError, EncodeError
from s2pubsub.event import Event, build_event
from tests.events import ID, NOON, TOPIC, at_every_depth, body_of, nested, values

ENVELOPE = {"type": "chunk", "runId": "r", "data": None, "id": ID, "createdAt": "2026-03-01T12:00:00.123Z"}


@pytest.fixture(scope="module", autouse=True, params=["fast", "plain"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test runs with msgspec and without."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "plain":
            patch.setattr(fast, "read_envelope", None)
        else:
            assert fast.read_envelope is not None, "the extra 'fast' is not installed"
        yield


def body(**changes: Any) -> bytes:
    return json.dumps({key: value for key, value in (ENVELOPE | changes).items() if value is not ...}).encode()


def problem(record: bytes) -> str:
    with pytest.raises(DecodeError) as caught:
        decode(TOPIC, 5, record)
    assert (caught.value.topic, caught.value.index) == (TOPIC, 5)
    assert pickle.loads(pickle.dumps(caught.value)).problem == caught.value.problem
    return caught.value.problem


# What is read.


def test_record_of_typescript() -> None:
    """A record that a TypeScript program wrote becomes an event with its index."""
    record = (
        b'{"type":"chunk","runId":"run-7","data":{"type":"text-delta","payload":{"text":"Hel"}},'
        b'"id":"5a1e7c0e-3a52-4c0f-9d55-7f6f1f0a9b11","createdAt":"2026-03-01T12:00:00.123Z","deliveryAttempt":1}'
    )
    assert decode(TOPIC, 7, record) == Event(
        topic=TOPIC,
        type="chunk",
        run_id="run-7",
        data={"type": "text-delta", "payload": {"text": "Hel"}},
        id=ID,
        created_at=NOON,
        index=7,
        delivery_attempt=1,
        extra={},
    )


def test_extra_keys() -> None:
    """Unknown keys of the envelope are kept, with and without a delivery attempt, and written again behind the rest."""
    for attempt in (..., 3):
        event = decode(TOPIC, 0, body(deliveryAttempt=attempt, producedAt=5, outputProcessed=True, index=9, runID=None))
        assert event.extra == {"producedAt": 5, "outputProcessed": True, "index": 9, "runID": None}
        assert event.delivery_attempt == (1 if attempt is ... else 3)
        assert event.index == 0
    assert decode(TOPIC, 0, body(more=1)).extra == {"more": 1}
    again, record = encode(TOPIC, type=event.type, data=event.data, extra=event.extra)
    assert again.extra == event.extra
    assert record.endswith(b'"deliveryAttempt":1,"producedAt":5,"outputProcessed":true,"index":9,"runID":null}')


def test_liberal_values() -> None:
    """Empty texts, data null, whole floats as attempts, big integers, escapes and lone surrogates are read."""
    event = decode(TOPIC, 0, body(type="", runId="", id="", deliveryAttempt=2.0, data=[2**70, "\ud83d", "\u00e9"]))
    assert (event.type, event.run_id, event.id, event.delivery_attempt) == ("", "", "", 2)
    assert type(event.delivery_attempt) is int
    assert event.data == [2**70, "\ud83d", "é"]
    assert decode(TOPIC, 0, body()).data is None
    assert decode(TOPIC, 0, b" \t\r\n" + body() + b"\n ") == decode(TOPIC, 0, body())
    assert decode(TOPIC, 0, body() + b"\n ") == decode(TOPIC, 0, body())


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("2026-03-01T12:00:00.123Z", NOON),
        ("2026-03-01T12:00:00.123456789Z", NOON),
        ("2026-03-01T12:00:00.1239999Z", NOON),
        ("2026-03-01T12:00:00,123Z", NOON),
        ("2026-03-01T12:00:00.123", NOON),
        ("2026-03-01 12:00:00.123", NOON),
        ("2026-03-01t12:00:00.123z", NOON),
        ("2026-03-01T14:30:00.123+02:30", NOON),
        ("2026-03-01T07:00:00.123-0500", NOON),
        ("2026-03-01T12:00:00.1Z", NOON.replace(microsecond=100_000)),
        ("2026-03-01T12:00:00Z", NOON.replace(microsecond=0)),
        ("2026-03-01T12:00Z", NOON.replace(microsecond=0)),
        ("2026-03-01", datetime(2026, 3, 1, tzinfo=UTC)),
        ("2026-03", datetime(2026, 3, 1, tzinfo=UTC)),
        ("2026", datetime(2026, 1, 1, tzinfo=UTC)),
        ("2026-02-28T24:00:00.000Z", datetime(2026, 3, 1, tzinfo=UTC)),
        ("2026-02-28T24:00:00Z", datetime(2026, 3, 1, tzinfo=UTC)),
        ("2026-02-28T24:00Z", datetime(2026, 3, 1, tzinfo=UTC)),
        ("2026-03-02T11:59:00.123+23:59", NOON),
        ("0001-01-01T00:00:00.000Z", datetime(1, 1, 1, tzinfo=UTC)),
        ("9999-12-31T23:59:59.999Z", datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
        (1772366400123, NOON),
        (1772366400123.9, NOON),
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        (-0.9, datetime(1970, 1, 1, tzinfo=UTC)),
        (-62135596800000, datetime(1, 1, 1, tzinfo=UTC)),
        (253402300799999, datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
    ],
)
def test_dates(written: Any, read: datetime) -> None:
    """Dates are read as JavaScript reads them, cut to milliseconds; one without a zone is in UTC."""
    created_at = decode(TOPIC, 0, body(createdAt=written)).created_at
    assert created_at == read
    assert created_at.tzinfo is UTC


# What is refused.


@pytest.mark.parametrize(
    "written",
    [
        "",
        "yesterday",
        "2026-02-29T12:00:00.000Z",
        "2026-13-01T12:00:00.000Z",
        "2026-03-01T24:00:00.001Z",
        "2026-03-01T24:00:01.000Z",
        "2026-03-01T24:01:00.000Z",
        "2026-03-01T24:01Z",
        "2026-03-01T25:00:00.000Z",
        "2026-03-01T12:00:60.000Z",
        "0000-01-01T00:00:00.000Z",
        "+010000-01-01T00:00:00.000Z",
        "0001-01-01T00:00:00.000+01:00",
        "9999-12-31T23:59:59.999-01:00",
        "9999-12-31T24:00:00.000Z",
        "2026-03-01T12:00:00.123+24:00",
        "2026-03-01T12:00:00.123+01:60",
        "2026-03-01T12:00:00.123Z\n",
        "2026-W09-7T12:00:00.123Z",
        "20260301T120000.1234567Z",
        "\u0662\u0660\u0662\u0666-03-01T12:00:00.123Z",
        -62135596800001,
        253402300800000,
        10**400,
        1e300,
        True,
        None,
        [],
        {},
    ],
)
def test_bad_dates(written: Any) -> None:
    """What is no date within the years 1 to 9999 makes the record undecodable."""
    expected = "its createdAt is not a date within the years 1 to 9999 (ISO 8601, or epoch milliseconds)"
    assert problem(body(createdAt=written)) == expected


@pytest.mark.parametrize("key", ["type", "runId", "data", "id", "createdAt"])
def test_missing_key(key: str) -> None:
    """Every key of the envelope but the delivery attempt is needed."""
    assert problem(body(**{key: ...})) == f"it has no key {key!r}"


@pytest.mark.parametrize("key", ["type", "runId", "id"])
@pytest.mark.parametrize("value", [None, 1, True, [], {}])
def test_texts(key: str, value: Any) -> None:
    """Type, run id and id are texts."""
    assert problem(body(**{key: value})) == "its type, runId and id must be strings"


@pytest.mark.parametrize(("value", "name"), [(None, "None"), ("1", "str"), (True, "bool"), ([], "list")])
def test_delivery_attempt(value: Any, name: str) -> None:
    """A delivery attempt that is there must be a number; null is none."""
    assert problem(body(deliveryAttempt=value)) == f"its deliveryAttempt must be a number, not {name}"


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (b"", "it is not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"nonsense", "it is not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b'{"a":}', "it is not JSON: Expecting value: line 1 column 6 (char 5)"),
        (b'{"a":1', "it is not JSON: Expecting ',' delimiter: line 1 column 7 (char 6)"),
        (b"\xef\xbb\xbf{}", "it is not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"\xff", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        (b'"\xed\xa0\xbd"', "'utf-8' codec can't decode byte 0xed in position 1: invalid continuation byte"),
        (b"[]", "it is of type list, not an object"),
        (b"null", "it is of type None, not an object"),
        (b"{} {}", "more text follows the JSON value at character 2"),
        (b"{}\x0b", "more text follows the JSON value at character 2"),
        (b'{"a":NaN}', "it holds NaN, which is not JSON"),
        (b'{"a":[Infinity]}', "it holds Infinity, which is not JSON"),
        (b'{"a":-Infinity}', "it holds -Infinity, which is not JSON"),
        (b'{"a":1e999}', "it holds the number 1e999, which is too large for a float"),
        (b'{"a":1' + b"0" * 400 + b".0}", f"it holds the number 1{'0' * 39}, which is too large for a float"),
        (b'{"a":-1e999}', "it holds the number -1e999, which is too large for a float"),
    ],
)
def test_not_json(record: bytes, expected: str) -> None:
    """Anything but one strict JSON object in UTF-8 is undecodable, and the error says why."""
    assert problem(record) == expected


def test_an_error_without_an_index() -> None:
    """What was not stored has no index; its error says -1."""
    with pytest.raises(DecodeError) as caught:
        decode(TOPIC, None, b"")
    assert caught.value.index == -1


def test_long_integer() -> None:
    """An integer with more digits than Python reads is a decode error, not a ValueError."""
    assert problem(b'{"a":' + b"9" * 5000 + b"}").startswith("Exceeds the limit (4300 digits)")


def test_depth() -> None:
    """C62: A record is read down to the documented depth, whatever its strings hold; a deeper one is a decode error."""
    brackets = "[{" * 400 + '"\\'
    room = MAX_READ_DEPTH - 2
    for opening, closing, inside in (("[", "]", "{}"), ('{"a":', "}", "[]")):
        for depth in (room - 1, room):
            nested = opening * depth + (inside if depth < room else "0") + closing * depth
            record = body(data=[]).replace(b'"data": []', f'"data":[{nested},{json.dumps(brackets)}]'.encode())
            assert decode(TOPIC, 0, record).data[1] == brackets
        for depth in (room + 1, 1_000, 100_000):
            nested = opening * depth + "0" + closing * depth
            record = body(data=[]).replace(b'"data": []', f'"data":[{nested}]'.encode())
            assert problem(record) == "it is nested more than 250 levels deep"
            assert problem(opening.encode() * (depth + 3)) == "it is nested more than 250 levels deep"


def test_brackets_in_texts() -> None:
    """What a text holds is not depth, whatever is escaped in it or in the one before it."""
    data = ['"' + "[" * 400, "\\", "[" * 400, '\\"' + "{" * 400, "\\\\", "[" * 400]
    assert decode(TOPIC, 0, body(data=data)).data == data
    assert problem(json.dumps("[" * 400).encode()) == "it is of type str, not an object"


def test_reading_near_the_limit_of_calls() -> None:
    """C62: Read from calls at the limit of their nesting, a record is read or its error says why."""
    deep = body(data=nested(200))
    outcomes = set()

    def read() -> None:
        try:
            outcomes.add(decode(TOPIC, 0, deep).data == nested(200))
        except DecodeError as error:
            outcomes.add(error.problem)

    at_every_depth(read)
    assert True in outcomes
    assert outcomes <= {True, "it is nested too deeply for the call stack of this thread"}


def test_many_brackets() -> None:
    """A wide record is not taken for a deep one."""
    data = [[], {}] * 5_000
    assert decode(TOPIC, 0, body(data=data)).data == data


@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b'{"type":"","runId":"","data":0,"id":"","createdAt":1e308}')
def test_any_bytes(record: bytes) -> None:
    """Whatever a record holds, reading it gives an event or a DecodeError."""
    try:
        decode(TOPIC, 5, record)
    except DecodeError:
        return


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*ENVELOPE, "deliveryAttempt", "more"]), json_values), st.data())
def test_any_envelope(changes: dict[str, Any], data: st.DataObject) -> None:
    """Whatever an envelope holds, and wherever it is cut or changed, reading it gives an event or a DecodeError."""
    record = bytearray(json.dumps(ENVELOPE | changes).encode())
    if data.draw(st.booleans()):
        record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del record[data.draw(st.integers(0, len(record))) :]
    try:
        event = decode(TOPIC, 5, bytes(record))
    except DecodeError:
        return
    assert (type(event.type), type(event.run_id), type(event.id)) == (str, str, str)
    assert event.created_at.tzinfo is UTC
    assert event.created_at.microsecond % 1000 == 0
    assert type(event.delivery_attempt) is int
    try:
        again, written = encode(
            TOPIC,
            type=event.type,
            run_id=event.run_id,
            data=event.data,
            id=event.id,
            created_at=event.created_at,
            extra=event.extra,
        )
    except EncodeError:  # big integers and lone surrogates are read, but not written
        return
    assert decode(TOPIC, 5, written) == attrs.evolve(event, delivery_attempt=1)
    assert again == attrs.evolve(event, delivery_attempt=1, index=None)


# Batches and building.


def test_batch() -> None:
    """Command records are left out of a batch; the others keep their index."""
    content = body()
    events, error = decode_batch(TOPIC, 3, [content, None, content, None, content])
    assert error is None
    assert [event.index for event in events] == [3, 5, 7]
    assert events[0] == decode(TOPIC, 3, content)
    assert decode_batch(TOPIC, 3, []) == ([], None)


def test_bad_record_in_batch() -> None:
    """C63: The events before a bad record are returned with its error, and what follows can be read from behind it."""
    bodies = [body(data=index) for index in range(10)]
    bodies[5] = b"not JSON"
    events, error = decode_batch(TOPIC, 0, bodies)
    assert [event.data for event in events] == [0, 1, 2, 3, 4]
    assert error is not None
    assert error.index == 5
    assert str(error) == (
        "record 5 of topic 'agent.stream.run-7' is not a valid event: it is not JSON: "
        "Expecting value: line 1 column 1 (char 0); read on from index 6"
    )
    events, error = decode_batch(TOPIC, 6, bodies[error.index + 1 :])
    assert ([event.data for event in events], error) == ([6, 7, 8, 9], None)


@given(values)
def test_built_event(data: Any) -> None:
    """An event that a reader builds is one like any other: equal, frozen, complete, copyable, picklable."""
    built = build_event(TOPIC, "c", data, "r", ID, NOON, 3, 2, {"x": 1})
    made = Event(
        topic=TOPIC,
        type="c",
        data=data,
        run_id="r",
        id=ID,
        created_at=NOON,
        index=3,
        delivery_attempt=2,
        extra={"x": 1},
    )
    assert built == made
    assert repr(built) == repr(made)
    assert type(built) is Event
    assert weakref.ref(built)() is built
    assert list(attrs.asdict(built, recurse=False)) == [field.name for field in attrs.fields(Event)]
    assert pickle.loads(pickle.dumps(built)) == made
    assert attrs.evolve(built, index=4).index == 4
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        built.index = 4
    assert decode(TOPIC, None, body_of(data)).extra is not decode(TOPIC, None, body_of(data)).extra
