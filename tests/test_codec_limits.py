"""Tests of the limits of an event: size, depth, cycles; and of the default hook and of batches."""

from __future__ import annotations

import math
import subprocess
import sys
from contextlib import suppress
from datetime import date
from decimal import Decimal
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s2pubsub.codec import MAX_DEPTH, MAX_INTEGER, MAX_RECORD_BYTES, MAX_VALUES, decode, encode, encode_many
from s2pubsub.codec.strict import Replacement, is_plain
from s2pubsub.errors import EncodeError
from tests.events import ID, NOON, TOPIC, at_every_depth, body_of, exact, nested, refused, scalars

# Size, depth, cycles.


@pytest.mark.parametrize("character", ["x", "€"])
def test_size(character: str) -> None:
    """C11: A record may take 1 MiB metered, counted in bytes of UTF-8; one byte more is refused with both numbers."""
    width = len(character.encode())
    room = MAX_RECORD_BYTES - 8 - len(body_of(""))
    text = character * (room // width) + "x" * (room % width)
    assert len(body_of(text)) == 2**20 - 8
    assert refused(text + "x", id=ID, created_at=NOON) == (
        "event",
        "takes 1048577 bytes as a record (8 and 1048569 of UTF-8), and S2 stores at most 1048576; "
        "split its data, or store that elsewhere and publish where",
    )


def test_many_values() -> None:
    """C11: A record of very many small values is written as one of few is."""
    data = [0] * 200_000
    assert decode(TOPIC, 0, body_of(data)).data == data


@pytest.mark.parametrize("kind", [list, dict])
def test_depth(kind: type) -> None:
    """C62: Up to the documented depth a value is stored; one level more, or any number, is refused."""
    deepest = nested(MAX_DEPTH, kind)
    assert decode(TOPIC, 0, body_of(deepest)).data == deepest
    step = "[0]" if kind is list else ".a"
    for depth in (MAX_DEPTH + 1, 1_000, 10_000, 200_000):
        assert refused(nested(depth, kind)) == (
            f"data{step * MAX_DEPTH}",
            "is nested more than 100 levels deep; send flatter data",
        )


def test_cycles() -> None:
    """C62: Data that contains itself is refused, with the place where it begins again; shared data is not a cycle."""
    mapping: dict[str, Any] = {"a": 1}
    mapping["me"] = mapping
    items: list[Any] = []
    items.append({"items": items})
    problem = "refers back to a dict or list that it lies in; send an id instead"
    assert refused(mapping) == ("data.me", problem)
    assert refused(items) == ("data[0].items", problem)
    twice: list[Any] = []
    twice += [twice, twice]
    assert refused(twice) == ("data[0]", problem)
    shared = {"x": [1]}
    assert decode(TOPIC, 0, body_of([shared, shared])).data == [shared, shared]
    assert encode(TOPIC, type="c", data=[shared, shared, ()], default=list)[0].data == [shared, shared, []]


def test_shared_data_that_multiplies() -> None:
    """A value that refers to the same lists again and again is refused at once, not written until memory ends."""
    value: Any = [1]
    for _ in range(MAX_DEPTH - 2):
        value = [value, value]
    assert refused(value) == ("data", f"holds more than {MAX_VALUES} values, more than fit into one record")


def test_as_many_values_as_fit() -> None:
    """They are counted to the last one, wherever they lie."""
    for wrap in (lambda count: [0] * (count - 1), lambda count: [[0] * (count - 2)]):
        assert is_plain(wrap(MAX_VALUES))
        assert not is_plain(wrap(MAX_VALUES + 1))
    assert len(Replacement("data", None).of([0] * MAX_VALUES)) == MAX_VALUES
    with pytest.raises(EncodeError, match="holds more than"):
        Replacement("data", None).of([0] * (MAX_VALUES + 1))


SMALL_STACK = """
import sys, threading
from s2pubsub.codec import MAX_DEPTH, MAX_READ_DEPTH, decode, encode
from s2pubsub.errors import DecodeError, EncodeError

def nested(depth, wrap):
    value = wrap(None)
    for _ in range(depth - 1):
        value = wrap(value)
    return value

WRAPS = (lambda value: [value], lambda value: {"a": value})
# Made and dropped outside of the small stack, which CPython 3.13 itself overflows when it drops them.
TOO_DEEP = [nested(depth, wrap) for wrap in WRAPS for depth in (MAX_DEPTH + 1, 1_000, 10_000, 200_000)]

def work():
    for wrap in WRAPS:
        deepest = nested(MAX_DEPTH, wrap)
        event, body = encode("t", type="c", data=deepest)
        assert decode("t", None, body).data == deepest
        assert encode("t", type="c", data=[object()], default=lambda value: nested(MAX_DEPTH - 2, wrap))
    for value in TOO_DEEP:
        try:
            encode("t", type="c", data=value)
        except EncodeError:
            pass
        else:
            raise SystemExit("not refused")
    head = b'{"type":"","runId":"","id":"","createdAt":0,"data":'
    room = MAX_READ_DEPTH - 1
    decode("t", 0, head + b"[" * room + b"]" * room + b"}")
    decode("t", 0, head + b'{"a":' * room + b"0" + b"}" * room + b"}")
    too_deep = head + b"[" * (room + 1) + b"]" * (room + 1) + b"}"
    for body in (too_deep, b"[" * 500_000, b'{"a":' * 200_000, b'["[' * 9_999):
        try:
            decode("t", 0, body)
        except DecodeError:
            pass
        else:
            raise SystemExit("not refused")
    done.append(True)

done = []
threading.stack_size(64 * 1024)
thread = threading.Thread(target=work)
thread.start()
thread.join()
assert done
"""


def test_small_stack() -> None:
    """C62: A thread with a stack of 64 KiB writes and reads the deepest data, and gets errors for deeper, no crash."""
    done = subprocess.run([sys.executable, "-c", SMALL_STACK], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_calls_near_their_limit() -> None:
    """C62: Published from calls at the limit of their nesting, an event is stored or refused, and never half."""
    outcomes = set()

    def write() -> None:
        try:
            outcomes.add(encode(TOPIC, type="c", data=nested(80), default=str)[0].data == nested(80))
        except EncodeError as error:
            outcomes.add(str(error))

    at_every_depth(write)
    assert True in outcomes
    assert outcomes <= {
        True,
        "data: was changed while it was being written, or the calls of this thread are nested too deeply to write it",
    }


# The default hook.


def test_default() -> None:
    """The hook gives what is stored in place of foreign values, also inside its own results; the data stays."""
    data = {"when": date(2026, 1, 2), "tags": {"b"}, "n": [1, (Decimal("1.50"),)]}

    def default(value: Any) -> Any:
        if isinstance(value, date):
            return value.isoformat()
        if isinstance(value, Decimal):
            return str(value)
        return list(value)

    event, body = encode(TOPIC, type="c", data=data, extra={"at": date(2026, 1, 3)}, default=default)
    assert event.data == {"when": "2026-01-02", "tags": ["b"], "n": [1, ["1.50"]]}
    assert event.extra == {"at": "2026-01-03"}
    assert decode(TOPIC, None, body) == event
    assert data == {"when": date(2026, 1, 2), "tags": {"b"}, "n": [1, (Decimal("1.50"),)]}


def test_default_is_checked() -> None:
    """C61: What the hook gives is checked as strictly, and the hook is not asked about values of JSON's own types."""
    assert refused([object()], default=lambda value: math.nan) == ("data[0]", "nan is not JSON; send None or a string")
    assert refused([object()], default=lambda value: {1: 2})[0] == "data[0]"
    assert refused([object()], default=lambda value: {"a": [2**53]})[0] == "data[0].a[0]"
    assert refused(math.inf, default=lambda value: "x")[0] == "data"
    assert refused(2**53, default=lambda value: "x")[0] == "data"
    assert refused({1: 2}, default=lambda value: "x")[0] == "data"
    integers = [MAX_INTEGER, -MAX_INTEGER]
    assert encode(TOPIC, type="c", data=[*integers, ()], default=list)[0].data == [*integers, []]


def test_default_without_end() -> None:
    """A hook that never gives JSON is refused: one that returns its argument, a new one, or one inside a list."""
    problem = "the default hook gave no JSON value for object; convert it first, or give a default hook"
    assert refused({"x": object()}, default=lambda value: value) == ("data.x", problem)
    assert refused({"x": object()}, default=lambda value: object()) == ("data.x", problem)
    for endless in (lambda value: [object()], lambda value: [value], lambda value: {"again": object()}):
        assert refused({"x": object()}, default=endless)[1] == "is nested more than 100 levels deep; send flatter data"


def test_default_at_the_deepest_place() -> None:
    """C62: What holds text may hold a value that becomes text; a hint says what would have become of the value."""
    deepest: list[Any] = [date(2026, 1, 2)]
    for _ in range(MAX_DEPTH - 1):
        deepest = [deepest]
    event, body = encode(TOPIC, type="c", data=deepest, default=str)
    assert decode(TOPIC, 0, body).data == event.data
    assert b'"2026-01-02"' in body
    encode(TOPIC, type="c", data=[()], default=lambda value: nested(MAX_DEPTH - 2))
    assert refused(deepest, default=lambda value: [1])[1] == "is nested more than 100 levels deep; send flatter data"
    problem = "the default hook gave no JSON value for datetime.date; use value.isoformat()"
    assert refused(date(2026, 1, 2), default=lambda value: value) == ("data", problem)


def test_default_that_fails() -> None:
    """An error of the hook is reported with the place, and is the cause."""
    with pytest.raises(EncodeError) as caught:
        encode(TOPIC, type="c", data=[object()], default=lambda value: 1 / 0)
    assert str(caught.value) == "data[0]: the default hook failed for object with ZeroDivisionError: division by zero"
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


# The two walks, threads, batches, JavaScript.

odd = st.recursive(
    scalars | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=2) | st.just(()) | st.dates(),
    lambda below: (
        st.lists(below, max_size=4)
        | st.dictionaries(st.text(max_size=2) | st.integers() | st.none(), below, max_size=4)
        | st.tuples(below)
    ),
    max_leaves=12,
)


@given(odd)
def test_walks_agree(value: Any) -> None:
    """The quick walk together with the encoder accepts exactly what the slow one accepts; the slow one copies equal."""
    try:
        copy = Replacement("data", None).of(value)
    except EncodeError as error:
        problem = error.path, error.problem
    else:
        assert is_plain(value)
        assert exact(copy) == exact(value)
        assert exact(decode(TOPIC, 0, body_of(value)).data) == exact(value)
        return
    assert refused(value) == problem


@pytest.mark.parametrize("first", ["", None, True, 0.5, 1, [], {}])
def test_all_of_it_is_looked_at(first: Any) -> None:
    """C61: What stands behind a value that fits is looked at, too."""
    assert refused([first, ()])[0] == "data[1]"
    assert refused({"a": first, "b": ()})[0] == "data.b"


def test_many() -> None:
    """A batch of events names the one that is refused."""
    events = [{"type": "a", "data": 1}, {"type": "b", "data": {"x": ()}}]
    with pytest.raises(EncodeError, match=r"^events\[1\]\.data\.x: is of type tuple"):
        encode_many(TOPIC, events)
    encoded = encode_many(TOPIC, [{"type": "a", "data": (1,), "run_id": "r", "extra": {"k": 1}}], default=list)
    event, body = encoded[0]
    assert (event.type, event.data, event.run_id, event.extra) == ("a", [1], "r", {"k": 1})
    assert decode(TOPIC, None, body) == event
    assert encode_many(TOPIC, []) == []


def test_data_that_changes() -> None:
    """Data that another thread changes while it is written is stored in one state or refused, nothing else."""
    data: dict[str, Any] = {str(number): [number] for number in range(300)}
    stop = []

    def change() -> None:
        while not stop:
            data["more"] = (1,)
            data.pop("more")

    thread = Thread(target=change)
    thread.start()
    try:
        for _ in range(300):
            with suppress(EncodeError):
                decode(TOPIC, 0, body_of(data))
    finally:
        stop.append(True)
        thread.join()
