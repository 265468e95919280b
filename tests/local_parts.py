"""Parts that the tests of the local transport share."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from s2pubsub import Event, LocalPubSub

HERE = "jobs"


@contextmanager
def switching_often() -> Iterator[None]:
    """Threads take turns after 10 µs, so that races show."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def publish(pubsub: LocalPubSub, numbers: Any, topic: str = HERE) -> list[Event]:
    """Publish an event for each number."""
    return [pubsub.publish(topic, type="job", data={"n": n, "list": [n]}) for n in numbers]


def numbers(events: list[Event]) -> list[int]:
    """The numbers of events."""
    return [event.data["n"] for event in events]


def local_threads() -> list[str]:
    """Names of the threads of callbacks."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("s2pubsub-local")]
