"""Tests of what is written, and of what is refused and where."""

from __future__ import annotations

import dataclasses
import enum
import math
import os
import uuid
from collections import OrderedDict, UserDict, namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s2pubsub.codec import MAX_INTEGER, compose, decode, encode
from s2pubsub.errors import EncodeError
from tests.events import ID, NOON, TOPIC, body_of, exact, extras, refused, texts, values

# What is accepted.


def test_envelope() -> None:
    """A record is the envelope that TypeScript programs write: same keys, same order, same date, no white space."""
    event, body = encode(
        TOPIC, type="chunk", run_id="run-7", data={"é": [1, 1.0, True]}, id=ID, created_at=NOON, extra={"producedAt": 5}
    )
    assert body.decode() == (
        '{"type":"chunk","runId":"run-7","data":{"é":[1,1.0,true]},"id":"5a1e7c0e-3a52-4c0f-9d55-7f6f1f0a9b11",'
        '"createdAt":"2026-03-01T12:00:00.123Z","deliveryAttempt":1,"producedAt":5}'
    )
    assert event.index is None
    assert decode(TOPIC, None, body) == event
    assert decode(TOPIC, 4, body) == attrs.evolve(event, index=4)


def test_id_and_date_are_made() -> None:
    """Without them, an event gets a version 4 UUID of its own and the present time in whole milliseconds."""
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    events = [encode(TOPIC, type="", data=None)[0] for _ in range(200)]
    assert len({event.id for event in events}) == 200
    for event in events:
        assert event.run_id == ""
        made = uuid.UUID(event.id)
        assert (str(made), made.version, made.variant) == (event.id, 4, uuid.RFC_4122)
        assert event.created_at.microsecond % 1000 == 0
        assert event.created_at.tzinfo is UTC
        assert before <= event.created_at <= datetime.now(UTC)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_ids_of_forked_children() -> None:
    """C41: A process and those that it forks make different ids, although they are made in blocks."""

    def made() -> str:
        return "".join(encode(TOPIC, type="c", data=None)[0].id for _ in range(5))

    found = made()
    for _ in range(2):
        source, sink = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(sink, made().encode())
            finally:
                os._exit(0)
        os.close(sink)
        with open(source, "rb") as answer:
            found += answer.read().decode()
        os.waitpid(child, 0)
    found += made()
    assert len({found[start : start + 36] for start in range(0, len(found), 36)}) == 20


def test_a_draft() -> None:
    """What is to be stored becomes an event when its place is known."""
    draft = compose("c", [1], "r", ID, NOON, {"k": 2}, None)
    event, body = encode(TOPIC, type="c", data=[1], run_id="r", id=ID, created_at=NOON, extra={"k": 2})
    assert draft.body == body
    assert draft.event(TOPIC, 7) == attrs.evolve(event, index=7)


@given(values, texts, texts, extras)
def test_round_trip(data: Any, kind: str, run_id: str, extra: dict[str, Any]) -> None:
    """C61: What is accepted comes back with equal values, types and order, and is written again as the same bytes."""
    event, body = encode(TOPIC, type=kind, data=data, run_id=run_id, extra=extra)
    assert event.data is data
    again = decode(TOPIC, 3, body)
    assert again == attrs.evolve(event, index=3)
    assert exact(again.data) == exact(data)
    assert exact(again.extra) == exact(extra)
    fields = {"type": again.type, "run_id": again.run_id, "id": again.id, "created_at": again.created_at}
    assert encode(TOPIC, data=again.data, extra=again.extra, **fields)[1] == body


@pytest.mark.parametrize(
    "value", [-0.0, 0.0, 1e-7, 1e16, 5e-324, 1.7976931348623157e308, 1, 1.0, True, {}, [], "", None]
)
def test_same_type(value: Any) -> None:
    """C61: Numbers, truth values and empty containers come back as what they were, -0.0 with its sign."""
    assert exact(decode(TOPIC, 0, body_of([value])).data) == exact([value])


def test_date_is_cut() -> None:
    """A given date is cut, not rounded, to milliseconds and written in UTC."""
    moment = datetime(2026, 3, 1, 14, 0, 0, 123999, tzinfo=timezone(timedelta(hours=2)))
    event, body = encode(TOPIC, type="c", data=None, created_at=moment)
    assert event.created_at == NOON
    assert event.created_at.tzinfo is UTC
    assert b'"createdAt":"2026-03-01T12:00:00.123Z"' in body


@given(st.datetimes(timezones=st.timezones()))
def test_any_date(moment: datetime) -> None:
    """Every date with a time zone is stored to the millisecond, or refused at the ends of the calendar."""
    try:
        event, body = encode(TOPIC, type="c", data=None, created_at=moment)
    except EncodeError:
        assert moment.year in (1, 9999)
        return
    assert timedelta(0) <= moment - event.created_at < timedelta(milliseconds=1)
    assert decode(TOPIC, None, body).created_at == event.created_at


# What is refused.


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_not_finite(number: float) -> None:
    """C58: NaN and infinities are refused wherever they are, with the place."""
    problem = f"{number!r} is not JSON; send None or a string"
    assert refused({"x": number}) == ("data.x", problem)
    assert refused([number]) == ("data[0]", problem)
    assert refused({"a": {"b": number}}) == ("data.a.b", problem)
    assert refused(number) == ("data", problem)
    assert refused(None, extra={"cost": number}) == ("extra.cost", problem)


def test_integers() -> None:
    """C59: Integers up to 2**53 - 1 are stored; 2**53, which stands for its neighbour, too, and beyond are refused."""
    for number in (MAX_INTEGER, -MAX_INTEGER):
        assert decode(TOPIC, 0, body_of([number])).data == [number]
    for number in (2**53, 2**53 + 1, -(2**53), -(2**53) - 1, 10**30):
        assert refused({"n": [number]}) == (
            "data.n[0]",
            f"{number} is beyond ±(2**53 - 1), where JavaScript readers change integers; "
            "send it as a string: use str(value)",
        )
    path, problem = refused({"n": 10**5000})
    assert path == "data.n"
    assert problem.startswith("an integer of 16610 bits is beyond")


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        ({1: "a"}, "1"),
        ({True: 1}, "True"),
        ({None: 1}, "None"),
        ({1.5: 1}, "1.5"),
        ({(1, 2): 1}, "of type tuple"),
        ({1: "a", "1": "b"}, "1"),
        ({10**40: 1}, "an integer of 133 bits"),
    ],
)
def test_keys(keys: dict[Any, Any], shown: str) -> None:
    """C60: Keys that are not text are refused with the place of their mapping, also inside lists and extra keys."""
    problem = f"has the key {shown}; keys of JSON are text: use str(key)"
    assert refused(keys) == ("data", problem)
    assert refused({"items": [0, keys]}) == ("data.items[1]", problem)
    assert refused(None, extra=keys) == ("extra", problem)


class Color(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Plain:
    x: int = 1


@attrs.define
class Attrs:
    x: int = 1


class Text(str):
    __slots__ = ()


class Number(float):
    pass


class Model:
    """Has a __dict__."""

    def __init__(self) -> None:
        self.x = 1


Pair = namedtuple("Pair", "a b")  # the untyped one is what people pass


@pytest.mark.parametrize(
    ("value", "name", "remedy"),
    [
        (datetime(2026, 1, 1, tzinfo=UTC), "datetime.datetime", "use value.isoformat()"),
        (date(2026, 1, 1), "datetime.date", "use value.isoformat()"),
        (time(1), "datetime.time", "use value.isoformat()"),
        (timedelta(1), "datetime.timedelta", "use value.total_seconds()"),
        (Decimal(1), "decimal.Decimal", "use str(value)"),
        (uuid.UUID(int=1), "uuid.UUID", "use str(value)"),
        (b"", "bytes", "use base64 text"),
        (bytearray(), "bytearray", "use base64 text"),
        (memoryview(b""), "memoryview", "use base64 text"),
        (set(), "set", "use sorted(value) or list(value)"),
        (frozenset(), "frozenset", "use sorted(value) or list(value)"),
        ((), "tuple", "use list(value)"),
        (Pair(1, 2), f"{__name__}.Pair", "use list(value)"),
        (1j, "complex", "use [value.real, value.imag]"),
        (Color.RED, f"{__name__}.Color", "use its .value"),
        (Level.LOW, f"{__name__}.Level", "use its .value"),
        (Plain(), f"{__name__}.Plain", "use dataclasses.asdict(value)"),
        (Attrs(), f"{__name__}.Attrs", "use attrs.asdict(value)"),
        (Text("x"), f"{__name__}.Text", "use str(value)"),
        (Number(1), f"{__name__}.Number", "use float(value)"),
        (OrderedDict(), "collections.OrderedDict", "use dict(value)"),
        (UserDict(), "collections.UserDict", "use dict(value)"),
        (Model(), f"{__name__}.Model", "convert it first, or give a default hook"),
        (int, "type", "convert it first, or give a default hook"),
        ((x for x in ()), "generator", "use list(value)"),
        (range(3), "range", "use list(value)"),
        ({}.keys(), "dict_keys", "use list(value)"),
    ],
)
def test_foreign_types(value: Any, name: str, remedy: str) -> None:
    """C61: What JSON would lose or change is refused, with its place, its type and what to do."""
    problem = f"is of type {name}, which JSON would lose or change; {remedy}"
    assert refused({"items": [0, {"price": value}]}) == ("data.items[1].price", problem)
    assert refused(value) == ("data", problem)
    assert refused(None, extra={"x": value}) == ("extra.x", problem)


def test_numpy() -> None:
    """C58, C61: NumPy's numbers are refused, though one of them is a float by inheritance."""
    numpy = pytest.importorskip("numpy")
    assert refused({"x": numpy.float64("nan")})[0] == "data.x"
    for number in (numpy.int64(1), numpy.float64(1), numpy.bool_(True)):
        assert refused([number])[1].endswith("; use value.item()")
    assert refused([numpy.zeros(2)])[1].endswith("; use value.tolist()")


@pytest.mark.parametrize(
    ("key", "step"),
    [
        ("price", ".price"),
        ("a b", '["a b"]'),
        ("", '[""]'),
        ("0", '["0"]'),
        ("é", '["\\xe9"]'),
        ('a"b\n', '["a\\"b\\n"]'),
        ("it's", '["it\'s"]'),
        ("k" * 40, "." + "k" * 40),
        ("k" * 41, f'["{"k" * 40}..."]'),
        ('it\'s "so"', '["it\'s \\"so\\""]'),
    ],
)
def test_paths(key: str, step: str) -> None:
    """The place is written as one would in code: bounded, on one line, in ASCII."""
    assert refused({key: [()]})[0] == f"data{step}[0]"


def test_lone_surrogates() -> None:
    """Half of a surrogate pair is refused wherever text can be, since it has no UTF-8."""
    problem = "holds a lone surrogate at character 1, which has no UTF-8; join the halves of split text, or drop it"
    half = "a\ud83d"
    assert refused({"text": half}) == ("data.text", problem)
    assert refused({half: 1}) == ("data", f'has the key "a\\ud83d", which {problem}')
    assert refused(None, extra={"x": half}) == ("extra.x", problem)
    assert refused(None, run_id=half) == ("run_id", problem)
    assert refused(None, id=half) == ("id", problem)
    with pytest.raises(EncodeError, match=r"^type: holds a lone surrogate at character 1"):
        encode(TOPIC, type=half, data=None)


def test_what_a_message_shows() -> None:
    """Keys up to 40 characters and integers up to 128 bits are shown whole."""
    key = " " * 40
    assert refused({key: ()})[0] == f'data["{key}"]'
    assert refused({f"{key} ": ()})[0] == f'data["{key}..."]'
    assert refused(2**128 - 1)[1].startswith(f"{2**128 - 1} is beyond")
    assert refused(2**128)[1].startswith("an integer of 129 bits is beyond")


@pytest.mark.parametrize("value", [5, None, True, b"x", Text("x"), Color.RED])
def test_fields_of_other_types(value: Any) -> None:
    """C72: Type, run id and id are text and nothing else."""
    problem = f"must be a str, not {'None' if value is None else ''}"
    with pytest.raises(EncodeError, match=f"^type: {problem}"):
        encode(TOPIC, type=value, data=None)
    assert refused(None, run_id=value)[0] == "run_id"
    if value is not None:
        assert refused(None, id=value)[0] == "id"
    assert refused(None, run_id=5) == ("run_id", "must be a str, not int")
    with pytest.raises(EncodeError, match=r"^type: must be a str, not int$"):
        encode(TOPIC, type=1, run_id=2, data=None)  # type: ignore[arg-type]


def test_dates_that_are_refused() -> None:
    """A date must have a time zone and lie within the years that every reader knows."""
    assert refused(None, created_at=datetime(2026, 1, 1)) == (  # noqa: DTZ001
        "created_at",
        "has no time zone; use datetime.now(timezone.utc), or .astimezone()",
    )
    assert refused(None, created_at="2026-01-01") == ("created_at", "must be a datetime, not str")
    early = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))
    assert refused(None, created_at=early) == ("created_at", "lies outside the years 1 to 9999 in UTC")


@pytest.mark.parametrize("key", ["type", "runId", "data", "id", "createdAt", "deliveryAttempt"])
def test_extra_must_not_replace(key: str) -> None:
    """An extra key cannot take the place of a key of the event itself."""
    problem = "is a key of the event itself; give it as an argument, or rename it"
    assert refused(None, extra={key: 1}) == (f"extra.{key}", problem)


def test_extra_must_be_a_mapping() -> None:
    """C72: Extra keys come as a mapping, and nothing that is false passes for an empty one."""
    assert refused(None, extra=[]) == ("extra", "must be a mapping, not list")
    assert refused(None, extra=0) == ("extra", "must be a mapping, not int")
    assert encode(TOPIC, type="c", data=None, extra=UserDict(a=1))[0].extra == {"a": 1}
