"""Every record that the package logs is documented, with its level, and stands under one of two names."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import s2pubsub

PACKAGE = Path(s2pubsub.__file__).parent
DOCUMENT = PACKAGE / "docs" / "observability.md"
LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
NOT_THE_LIBRARY = ("demo", "examples")
ROW = re.compile(r"^\| ([A-Z, ]+) \| `(.*)` \| .* \|$", re.MULTILINE)


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Every logging call of the library, with its module."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = str(path.relative_to(PACKAGE))
        if module.startswith(NOT_THE_LIBRARY):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in (*LEVELS, "log")
                and ast.unparse(node.func.value).endswith(("logger", "_log"))
            ):
                yield module, node


def records() -> Iterator[tuple[str, str]]:
    """Level and format of each record whose format stands in the call."""
    for _, call in calls():
        level = call.func.attr  # type: ignore[attr-defined]
        text = call.args[1 if level == "log" else 0]
        if isinstance(text, ast.Constant):
            levels = {"exception": "ERROR", "log": "WARNING, DEBUG"}
            yield levels.get(level, level.upper()), str(text.value)


def test_every_record_is_documented() -> None:
    """Each format in the code is a row of the table, with its level; the rows that are none are made of parts."""
    rows = {(level, record) for level, record in ROW.findall(DOCUMENT.read_text())}
    logged = set(records())
    assert logged - rows == set()
    assert {record for _, record in rows - logged} == {
        "the callback for event … of topic %r raised",
        "the subscription to topic %r has ended: …",
        "event %s of topic %r was given up: group %r did not handle it in %d attempts",
    }
    for part in ("the callback for event {event.index} of topic %r raised", "the subscription to topic %r has ended: "):
        assert part in (PACKAGE / "subscription.py").read_text()


def test_two_names() -> None:
    """Loggers are called ``s2pubsub`` and ``s2pubsub.server``; both are silent by themselves, and no level is set."""
    names = set()
    for path in PACKAGE.rglob("*.py"):
        if not str(path.relative_to(PACKAGE)).startswith(NOT_THE_LIBRARY):
            names |= set(re.findall(r'getLogger\("([^"]*)"\)', path.read_text()))
    assert names == {"s2pubsub", "s2pubsub.server"}
    for name in names:
        assert logging.getLogger(name).level == logging.NOTSET
    assert [type(handler) for handler in logging.getLogger("s2pubsub").handlers] == [logging.NullHandler]


def test_names_are_escaped() -> None:
    """Where a record names a topic, run, group or lease it does so by ``%r``, so that no name can add a line."""
    unsafe = [
        text for _, text in records() if re.search(r"(topic|run|group|lease|key) %s", text) and "request" not in text
    ]
    assert unsafe == []
