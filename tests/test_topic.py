"""Tests of names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s2pubsub.topic import (
    check_topic,
    control_topic,
    enc,
    is_durable,
    run_topic,
    stream_name,
    thread_key,
    thread_name,
    thread_topic,
)

PREFIX = "mastra/durable/"


def test_stream_name() -> None:
    """A topic's stream is the prefix and the topic, whatever characters the topic has."""
    assert stream_name("agent.stream.run-7", PREFIX) == "mastra/durable/agent.stream.run-7"
    assert stream_name("../a b/ü\n", PREFIX) == "mastra/durable/../a b/ü\n"
    assert stream_name("...", "") == "..."


def test_is_durable() -> None:
    """A topic is stored when it starts with the prefix."""
    assert is_durable("agent.stream.x", "agent.")
    assert not is_durable("agents", "agent.")
    assert not is_durable("workflows", "agent.")
    assert is_durable("workflows", "")


@pytest.mark.parametrize(("character", "width"), [("x", 1), ("é", 2), ("€", 3), ("😀", 4)])
def test_length(character: str, width: int) -> None:
    """A stream's name may take 512 bytes of UTF-8, prefix included; the error names topic, size and limit."""
    room = 512 - len(PREFIX)
    topic = "x" * (room % width) + character * (room // width)
    assert len(stream_name(topic, PREFIX).encode()) == 512
    with pytest.raises(ValueError, match=r"takes 513 bytes of UTF-8, and S2 allows 512$") as caught:
        stream_name(topic + "x", PREFIX)
    assert ascii(topic[:57]) in str(caught.value)
    assert "'mastra/durable/' + topic" in str(caught.value)
    assert len(str(caught.value)) < 800


@pytest.mark.parametrize("name", [".", ".."])
def test_dots(name: str) -> None:
    """S2 has no stream named by one or two dots."""
    with pytest.raises(ValueError, match=r"^topic '\.+' is not possible without a stream prefix"):
        stream_name(name, "")
    assert stream_name(name, "p/") == f"p/{name}"


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize("value", [None, 5, b"x", Text("x"), True])
def test_types(value: Any) -> None:
    """A name is text and nothing else."""
    kind = type(value).__name__
    for call in (check_topic, lambda name: stream_name(name, PREFIX)):
        with pytest.raises(TypeError, match=f"^topic must be a str, not {kind}$"):
            call(value)
    for call in (run_topic, control_topic):
        with pytest.raises(TypeError, match=f"^run_id must be a str, not {kind}$"):
            call(value)
    with pytest.raises(TypeError, match=f"^key must be a str, not {kind}$"):
        thread_topic(value)
    with pytest.raises(TypeError, match=f"^resource_id must be a str, not {kind}$"):
        thread_key(value, "t")
    with pytest.raises(TypeError, match=f"^thread_id must be a str, not {kind}$"):
        thread_key("r", value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", "must not be empty"),
        ("a\0b", r"'a\\x00b' holds a NUL character, which S2 forbids in names"),
        ("a\ud83d", r"'a\\ud83d' holds a lone surrogate at character 1, which has no UTF-8"),
    ],
)
def test_values(value: str, expected: str) -> None:
    """C57: An empty name, a NUL and half of a surrogate pair are refused, also in run and thread ids."""
    for what, call in (
        ("topic", check_topic),
        ("topic", lambda name: stream_name(name, PREFIX)),
        ("run_id", run_topic),
        ("run_id", control_topic),
        ("thread_id", lambda name: thread_key("r", name)),
    ):
        with pytest.raises(ValueError, match=f"^{what} {expected}$"):
            call(value)


def test_long_values() -> None:
    """A message shows a name whole up to sixty characters, else its beginning."""
    for length, shown in ((60, ascii("\0" + "x" * 59)), (61, ascii("\0" + "x" * 56) + "...")):
        with pytest.raises(ValueError, match="NUL") as caught:
            check_topic("\0" + "x" * (length - 1))
        assert str(caught.value) == f"topic {shown} holds a NUL character, which S2 forbids in names"


def test_runs_and_threads() -> None:
    """Runs and conversations have the topics that TypeScript programs use."""
    assert run_topic("run-7") == "agent.stream.run-7"
    assert control_topic("run-7") == "agent.control.run-7"
    assert thread_key("user 1", "th/1") == "user 1\0th/1"
    assert thread_topic("user 1\0th/1") == "agent.thread-stream.user%201%00th%2F1"
    assert thread_topic(thread_key("", "t")) == "agent.thread-stream.%00t"
    with pytest.raises(ValueError, match=r"^resource_id .* NUL"):
        thread_key("a\0b", "t")
    with pytest.raises(ValueError, match=r"^key must not be empty$"):
        thread_topic("")
    with pytest.raises(ValueError, match=r"^key 'a\\ud83d' holds a lone surrogate, which has no UTF-8$"):
        thread_topic("a\ud83d")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_enc(key: str) -> None:
    """Keys are written as encodeURIComponent writes them: all but its unreserved characters as %XX of UTF-8."""
    kept = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.!~*'()"
    assert enc(key) == "".join(c if c in kept else "".join(f"%{byte:02X}" for byte in c.encode()) for c in key)


@given(st.text())
def test_thread_name(topic: str) -> None:
    """A thread's name is printable ASCII of bounded length."""
    name = thread_name("sub", topic)
    assert name.isascii()
    assert name.isprintable()
    assert name.startswith("s2pubsub-sub-")
    assert len(name) <= len("s2pubsub-sub-") + 60


def test_thread_name_is_readable() -> None:
    """It shows the topic as it is where it can, and cuts what is long."""
    assert thread_name("sub", "agent.stream.run-7") == "s2pubsub-sub-agent.stream.run-7"
    assert thread_name("lease", "user 1\0ü") == r"s2pubsub-lease-user 1\x00\xfc"
    assert thread_name("sub", "x" * 60) == "s2pubsub-sub-" + "x" * 60
    assert thread_name("sub", "x" * 61) == "s2pubsub-sub-" + "x" * 57 + "..."
