"""Tests of mappings: events that are to be published, and settings."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import attrs
import pytest

from s2pubsub.codec import EventInput, encode, event_inputs, structure
from s2pubsub.errors import EncodeError
from tests.events import ID, NOON, TOPIC


class Transport(Protocol):
    def send(self) -> None: ...


@attrs.frozen(kw_only=True)
class Settings:
    basin: str
    token: str | None = None
    queue_size: int = 1024
    timeout: float | None = 30.0
    strict: bool = False
    mode: Literal["earliest", "latest"] = "latest"
    headers: Mapping[str, str] = {}
    hook: Callable[[Any], Any] | None = None
    inner: Transport | None = None
    anything: Any = None


def refused(mapping: Any) -> str:
    with pytest.raises(ValueError, match=r"^settings") as caught:
        structure(Settings, mapping, "settings")
    return str(caught.value)


def test_settings() -> None:
    """Values of the right types are taken as they are, and what is not given has its default."""
    hook = str.upper
    given = UserDict(
        basin="b",
        timeout=5,
        queue_size=1,
        strict=True,
        mode="earliest",
        headers={"a": "b"},
        hook=hook,
        inner=self_made(),
    )
    made = structure(Settings, given, "settings")
    assert made == Settings(**given)
    assert type(made.timeout) is int
    assert structure(Settings, {"basin": "b"}, "settings") == Settings(basin="b")


def self_made() -> Transport:
    class Own:
        def send(self) -> None:
            pass

    return Own()


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("basin", None, "must be str, not None"),
        ("basin", b"x", "must be str, not bytes"),
        ("token", 1, "must be str or None, not int"),
        ("queue_size", "5", "must be int, not str"),
        ("queue_size", True, "must be int, not bool"),
        ("queue_size", 5.0, "must be int, not float"),
        ("queue_size", None, "must be int, not None"),
        ("timeout", "5", "must be float or None, not str"),
        ("timeout", True, "must be float or None, not bool"),
        ("strict", 1, "must be bool, not int"),
        ("mode", "first", "must be 'earliest' or 'latest', not str"),
        ("headers", [], "must be Mapping, not list"),
        ("hook", "x", "must be Callable or None, not str"),
    ],
)
def test_values_are_not_coerced(key: str, value: Any, expected: str) -> None:
    """C72: A value of another type is refused with its key; nothing is converted."""
    assert refused({"basin": "b", key: value}) == f"settings.{key}: {expected}"


def test_keys() -> None:
    """C72: A misspelt key is named with its neighbour, before the missing one that it stands for."""
    assert refused({"basn": "b"}) == "settings.basn: is not a known key; did you mean 'basin'?"
    assert (
        refused({"basin": "b", "queuesize": 1}) == "settings.queuesize: is not a known key; did you mean 'queue_size'?"
    )
    assert refused({"basin": "b", "modern": 1}) == "settings.modern: is not a known key; did you mean 'mode'?"
    assert refused({}) == "settings.basin: is missing"
    known = "basin, token, queue_size, timeout, strict, mode, headers, hook, inner, anything"
    assert refused({"basin": "b", "x y": 1}) == f'settings["x y"]: is not a known key; known are {known}'
    assert refused({"basin": "b", 7: 1}) == f"settings[7]: is not a known key; known are {known}"
    assert refused([1]) == "settings must be a mapping, not list"
    assert refused(None) == "settings must be a mapping, not None"


def input_error(event: Any) -> str:
    with pytest.raises(EncodeError) as caught:
        event_inputs([{"type": "a", "data": 1}, event])
    return str(caught.value)


def test_bad_events() -> None:
    """C72: An event with a type that is no text, a run id True, no data or a misspelt key is refused by its key."""
    assert input_error({"type": 5, "data": 1}) == "events[1].type: must be str, not int"
    assert input_error({"type": None, "data": 1}) == "events[1].type: must be str, not None"
    assert input_error({"type": "x", "data": 1, "run_id": True}) == "events[1].run_id: must be str, not bool"
    assert input_error({"type": "x", "data": 1, "extra": None}) == "events[1].extra: must be Mapping, not None"
    assert input_error({"type": "x"}) == "events[1].data: is missing"
    assert input_error({"data": 1}) == "events[1].type: is missing"
    assert input_error({"type": "x", "data": 1, "runId": "r"}) == (
        "events[1].runId: is not a known key; did you mean 'run_id'?"
    )
    assert input_error({"type": "x", "dta": 1}) == "events[1].dta: is not a known key; did you mean 'data'?"
    assert input_error(5) == "events[1]: must be a mapping or an Event, not int"


@pytest.mark.parametrize("events", [{"type": "x", "data": 1}, "abc", b"abc", 5, None])
def test_not_events(events: Any) -> None:
    """One event, text or a number in place of a sequence of events is refused."""
    kind = "None" if events is None else type(events).__name__
    with pytest.raises(EncodeError, match=rf"^events: must be a sequence of mappings or events, not {kind}$"):
        event_inputs(events)


def test_events() -> None:
    """Mappings, inputs and events can be mixed; an event that is published again keeps type, data, run id and extra."""
    event, _ = encode(TOPIC, type="c", data=[1], run_id="r", id=ID, created_at=NOON, extra={"k": 1})
    ready = EventInput(type="x", data=None)
    assert event_inputs(item for item in (event, ready, UserDict(type="y", data={}, run_id="q"))) == [
        EventInput(type="c", data=[1], run_id="r", extra={"k": 1}),
        ready,
        EventInput(type="y", data={}, run_id="q"),
    ]
