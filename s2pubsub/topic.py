"""Names: of topics, of the streams that store them, and of the topics that runs and threads use.

Relies on nothing. Not for reading or writing topics, and not for lease tokens (``fence``).

The names are shared with TypeScript programs, so they follow JavaScript's rules where these differ from Python's.
"""

from __future__ import annotations

from urllib.parse import quote

__all__ = [
    "MAX_STREAM_NAME_BYTES",
    "check_topic",
    "control_topic",
    "enc",
    "is_durable",
    "run_topic",
    "stream_name",
    "thread_key",
    "thread_name",
    "thread_topic",
]

MAX_STREAM_NAME_BYTES = 512
"""Longest name of a stream, in bytes of UTF-8."""

_SHOWN = 60
"""Characters of a name that an error or a thread's name shows."""


def check_topic(topic: str) -> None:
    """Raise ``TypeError`` or ``ValueError`` unless ``topic`` can name a topic: text, not empty, without NUL."""
    _check_text("topic", topic)


def is_durable(topic: str, topic_prefix: str) -> bool:
    """Say whether ``topic`` is stored in S2 (it starts with ``topic_prefix``) or lives in this process only."""
    return topic.startswith(topic_prefix)


def stream_name(topic: str, stream_prefix: str) -> str:
    """Return the name of the stream that stores ``topic``.

    Raises:
        TypeError: ``topic`` is not text.
        ValueError: S2 would refuse the name; the message gives the topic and the limit.
    """
    check_topic(topic)
    name = stream_prefix + topic
    size = len(name.encode())
    if size > MAX_STREAM_NAME_BYTES:
        raise ValueError(
            f"topic {_brief(topic)} is too long: its stream's name, {_brief(stream_prefix)} + topic, takes {size} "
            f"bytes of UTF-8, and S2 allows {MAX_STREAM_NAME_BYTES}"
        )
    if name in (".", ".."):
        raise ValueError(f"topic {topic!r} is not possible without a stream prefix: S2 has no stream named {name!r}")
    return name


def enc(key: str) -> str:
    """Return ``key`` as JavaScript's ``encodeURIComponent`` writes it. A lone surrogate raises ``ValueError``."""
    try:
        return quote(key, safe="!'()*-._~")
    except UnicodeEncodeError:
        raise ValueError(f"key {_brief(key)} holds a lone surrogate, which has no UTF-8") from None


def run_topic(run_id: str) -> str:
    """Return the topic of a run's events."""
    _check_text("run_id", run_id)
    return f"agent.stream.{run_id}"


def control_topic(run_id: str) -> str:
    """Return the topic on which a run is asked to abort."""
    _check_text("run_id", run_id)
    return f"agent.control.{run_id}"


def thread_topic(key: str) -> str:
    """Return the topic of a conversation's events and lease; ``key`` is a lease key, such as ``thread_key`` gives."""
    if type(key) is not str:
        raise TypeError(f"key must be a str, not {type(key).__name__}")
    if not key:
        raise ValueError("key must not be empty")
    return f"agent.thread-stream.{enc(key)}"


def thread_key(resource_id: str, thread_id: str) -> str:
    """Return the key of the conversation ``thread_id`` of ``resource_id`` (which may be empty)."""
    if resource_id != "":
        _check_text("resource_id", resource_id)
    _check_text("thread_id", thread_id)
    return f"{resource_id}\0{thread_id}"


def thread_name(purpose: str, name: str) -> str:
    """Return a name for an operating-system thread, such as ``s2pubsub-sub-agent.stream.run-7``.

    Printable ASCII whatever ``name`` holds, and of bounded length: it goes to logs and stack dumps.
    """
    shown = ascii(name[: _SHOWN + 1])[1:-1]
    return f"s2pubsub-{purpose}-{shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + '...'}"


def _check_text(what: str, value: str) -> None:
    if type(value) is not str:
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    if not value:
        raise ValueError(f"{what} must not be empty")
    if "\0" in value:
        raise ValueError(f"{what} {_brief(value)} holds a NUL character, which S2 forbids in names")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{what} {_brief(value)} holds a lone surrogate at character {error.start}, which has no UTF-8"
        ) from None


def _brief(text: str) -> str:
    return ascii(text) if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]!a}..."
