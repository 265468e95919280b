"""Tests of the fast way to read: it takes nothing that the plain way refuses, and takes it as that does."""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import attrs
import pytest

from s2pubsub.codec import MAX_READ_DEPTH, decode, fast
from s2pubsub.errors import DecodeError
from s2pubsub.event import Event
from tests.events import TOPIC, body_of, exact, nested
from tests.topics import on_threads

ROUNDS = 30_000

NUMBERS = (
    *("0", "-0", "-0.0", "0e0", "-0e5", "1", "-1", "1.0", "1e5", "1E+5", "1e-5", "01", "1.", ".5", "-", "+1", "0x1"),
    *("9007199254740993", "18446744073709551615", "18446744073709551616", "-9223372036854775809", "1" + "0" * 400),
    *("1.7976931348623159e308", "1e400", "-1e400", "5e-324", "2e-324", "1e-400", "0.30000000000000004", "NaN"),
    *("2.2250738585072011e-308", "9007199254740992.5", "3.14159265358979323846264338327950288", "-Infinity"),
    "1" + "0" * 4400,
)
LETTERS = (
    *("a", "type", "id", " ", "0", "é", "漢", "😀", "\x7f", "\u2028", "\ufeff"),
    *("\\n", "\\/", '\\"', "\\\\", "\\u0000", "\\u0041", "\\u00e9", "\\ud83d\\ude00", "\\uD83D\\uDE00"),
    *("\\ud800", "\\udc00", "\\ud83d\\u0041", "\\x", "\\u12", "\n", "\x00"),
)
SPACES = ("", "", "", " ", "\n", "\t", "\r ", "\x0b")
DAMAGE = (b'"', b"\\", b"\x00", b" ", b"0", b"\xff", b"\xc3", b"\xed\xa0\x80", b"-", b",", b"}", b"//")


class Texts:
    """Random records, most of them nearly JSON. Strange parts are rare, so that many records have none."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def record(self) -> bytes:
        pick = self._random
        parts = [f'"{name}":{self._text()}' for name in ("type", "runId", "id")]
        parts += [f'"data":{self._value(0)}', f'"createdAt":{self._created_at()}']
        if pick.random() < 0.5:
            parts.append(f'"deliveryAttempt":{pick.choice(("1", "2", "1.0", "true", "null", self._number()))}')
        if pick.random() < 0.05:
            parts.append(f"{self._text()}:{self._value(3)}")  # an unknown key
        if pick.random() < 0.05:
            parts.append(pick.choice(parts))  # a key twice
        if pick.random() < 0.05:
            parts.pop(pick.randrange(len(parts)))
        if pick.random() < 0.05:
            parts[0] = parts[0].replace('"type"', pick.choice(('"\\u0074ype"', '"Type"', '"type "')))
        if pick.random() < 0.05:
            parts[0] = f'"type":{self._value(3)}'
        pick.shuffle(parts)
        body = bytearray(f"{self._space()}{{{','.join(parts)}}}{self._space()}".encode())
        if pick.random() < 0.3:
            self._damage(body)
        return bytes(body)

    def _damage(self, body: bytearray) -> None:
        for _ in range(self._random.randint(1, 2)):
            at = self._random.randrange(len(body))
            kind = self._random.random()
            if kind < 0.3:
                body[at] = self._random.randrange(256)
            elif kind < 0.6:
                del body[at : at + self._random.randint(1, 3)]
            else:
                body[at:at] = self._random.choice(DAMAGE)

    def _value(self, depth: int) -> str:
        kind = self._random.random()
        if kind < 0.2:
            return self._number()
        if kind < 0.4:
            return self._text()
        if kind < 0.55 or depth > 3:
            return self._random.choice(("true", "false", "null", "[]", "{}"))
        items = [self._value(depth + 1) for _ in range(self._random.randint(0, 3))]
        comma = f"{self._space()},{self._space()}"
        if kind < 0.8:
            return f"[{self._space()}{comma.join(items)}{self._space()}]"
        return f"{{{comma.join(f'{self._text()}{self._space()}:{item}' for item in items)}{self._space()}}}"

    def _text(self) -> str:
        common = LETTERS[:-7]
        letters = LETTERS if self._random.random() < 0.05 else common
        return f'"{"".join(self._random.choices(letters, k=self._random.randint(0, 6)))}"'

    def _number(self) -> str:
        if self._random.random() < 0.1:
            return self._random.choice(NUMBERS)
        number = str(self._random.getrandbits(self._random.choice((4, 53, 64, 65, 128))))
        if self._random.random() < 0.5:
            number += f".{self._random.getrandbits(self._random.choice((4, 30, 60, 90)))}"
        if self._random.random() < 0.4:
            number += f"{self._random.choice('eE')}{self._random.choice(('', '+', '-'))}{self._random.randrange(280)}"
        return self._random.choice(("", "-")) + number

    def _created_at(self) -> str:
        usual = '"2026-03-01T12:00:00.123Z"'
        return usual if self._random.random() < 0.8 else self._random.choice(('"2026"', "0", "1e3", "null", '"soon"'))

    def _space(self) -> str:
        return self._random.choice(SPACES) if self._random.random() < 0.2 else ""


def read(body: bytes) -> Event | str:
    try:
        return decode(TOPIC, 0, body)
    except DecodeError as error:
        return error.problem


def parts(event: Event) -> list[Any]:
    return [exact(getattr(event, field.name)) for field in attrs.fields(Event)]


def test_both_ways_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random records, sound and damaged, are read alike with msgspec and without, or refused for the same reason."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    texts = Texts(seed)
    records = [texts.record() for _ in range(ROUNDS)]
    found = [read(record) for record in records]
    read_by_msgspec = sum(isinstance(one, Event) and _takes(record) for record, one in zip(records, found, strict=True))
    monkeypatch.setattr(fast, "read_envelope", None)
    for record, one in zip(records, found, strict=True):
        other = read(record)
        if isinstance(one, str) or isinstance(other, str):
            assert one == other, record
        else:
            assert parts(one) == parts(other), record
    # The comparison is of something: many are read by msgspec, some by the other way only, and many by neither.
    events = sum(isinstance(one, Event) for one in found)
    assert ROUNDS // 5 < read_by_msgspec < events < ROUNDS * 4 // 5


def _takes(record: bytes) -> bool:
    assert fast.read_envelope is not None
    try:
        fast.read_envelope(record)
    except ValueError:
        return False
    return True


def test_only_shallow_records_go_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """C62: What is nested deeper than a small thread stack bears does not reach msgspec, and is read all the same."""
    assert fast.read_envelope is not None
    seen: list[bytes] = []
    way = fast.read_envelope
    monkeypatch.setattr(fast, "read_envelope", lambda body: seen.append(body) or way(body))
    head, tail = body_of(None).split(b"null")
    for depth in (1, fast.DEPTH - 1, fast.DEPTH, MAX_READ_DEPTH - 1):
        for kind in (list, dict):
            data = nested(depth, kind)
            record = head + json.dumps(data).encode() + tail
            assert exact(decode(TOPIC, 0, record).data) == exact(data)
            assert (record in seen) == (depth < fast.DEPTH)


def test_old_msgspec_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version with other errors or integers is left alone, as is one that is not there or says nothing known."""
    for version in ("0.18.6", "0.20.0", "0+unknown", ""):
        monkeypatch.setattr("msgspec.__version__", version)
        assert fast._reader() is None
    for version in ("0.21.0", "1.0.0rc1"):
        monkeypatch.setattr("msgspec.__version__", version)
        assert fast._reader() is not None
    monkeypatch.setitem(sys.modules, "msgspec", None)
    assert fast._reader() is None


def test_many_threads() -> None:
    """One decoder serves any number of threads."""

    def work(number: int) -> None:
        data = {"n": [number] * 5, str(number): str(number) * 30}
        body = body_of(data)
        for _ in range(2000):
            assert decode(TOPIC, number, body).data == data

    on_threads(8, work)
