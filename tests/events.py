"""What the tests of the codec share: values of every kind, and what becomes of them."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import strategies as st

from s2pubsub.codec import MAX_INTEGER, encode
from s2pubsub.errors import EncodeError

TOPIC = "agent.stream.run-7"
NOON = datetime(2026, 3, 1, 12, 0, 0, 123000, tzinfo=UTC)
ID = "5a1e7c0e-3a52-4c0f-9d55-7f6f1f0a9b11"

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-MAX_INTEGER, MAX_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values = st.recursive(
    scalars, lambda below: st.lists(below, max_size=5) | st.dictionaries(texts, below, max_size=5), max_leaves=20
)
extras = st.dictionaries(texts.filter(lambda key: key not in json.loads(body_of(None))), values, max_size=3)


def body_of(data: Any, **fields: Any) -> bytes:
    return encode(TOPIC, type="chunk", data=data, id=ID, created_at=NOON, **fields)[1]


def refused(data: Any, **fields: Any) -> tuple[str, str]:
    with pytest.raises(EncodeError) as caught:
        encode(TOPIC, type="chunk", data=data, **fields)
    assert caught.value.outcome == "not_stored"
    assert str(caught.value) == f"{caught.value.path}: {caught.value.problem}"
    return caught.value.path, caught.value.problem


def exact(value: Any) -> Any:
    """A form that is equal only for the same values of the same types, in the same order of keys."""
    if isinstance(value, dict):
        return "dict", [(key, exact(item)) for key, item in value.items()]
    if isinstance(value, list):
        return "list", [exact(item) for item in value]
    return type(value).__name__, value.hex() if isinstance(value, float) else value


def nested(depth: int, kind: type = list) -> Any:
    value: Any = kind()
    for _ in range(depth - 1):
        value = [value] if kind is list else {"a": value}
    return value


def at_every_depth(action: Callable[[], None]) -> None:
    """Call ``action`` on a thread, from one more nested call each time, up to where it cannot begin any more."""

    def descend(levels: int) -> None:
        if levels:
            descend(levels - 1)
        else:
            action()

    def work() -> None:
        for levels in range(sys.getrecursionlimit()):
            try:
                descend(levels)
            except RecursionError:  # of `descend` itself, or of `action` before it could begin
                return

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
